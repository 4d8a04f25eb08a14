"""Attacks: one module per promise, each with PROMISE, BOUNDED, SOAK and run(count, seed, folder) -> Outcome.

``scripts/soak.py`` runs them; ``tests/hostile/test_attacks.py`` runs each with its BOUNDED count.
"""

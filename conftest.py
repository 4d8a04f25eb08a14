"""Doctests of the torch side are left out where torch is absent."""

import importlib.util

TORCH_SIDE = ("heads.py", "losses", "encoders", "training")
collect_ignore = ["benchmarks", "scripts"]
if importlib.util.find_spec("torch") is None:
    collect_ignore += [f"src/matryo/{name}" for name in TORCH_SIDE]

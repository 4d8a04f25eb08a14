"""Doctests of what cannot be imported are left out: the torch side without torch, compiled modules without numba."""

import importlib.util

TORCH_SIDE = ("heads.py", "losses", "encoders", "training")
collect_ignore = ["benchmarks", "scripts"]
if importlib.util.find_spec("numba") is None:
    collect_ignore += ["src/matryo/evaluation/kernel.py", "src/matryo/retrieve/kernels.py"]
if importlib.util.find_spec("torch") is None:
    collect_ignore += [f"src/matryo/{name}" for name in TORCH_SIDE]

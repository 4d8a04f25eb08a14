"""Doctests of modules that cannot be imported here are not collected: without torch, without numba, without Triton."""

import importlib.util
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "tests" / "helpers"))
from imports import FILES, needs

OPTIONAL = ("torch", "numba", "triton")
absent = {name for name in OPTIONAL if importlib.util.find_spec(name) is None}
collect_ignore = ["benchmarks", "scripts", *(str(path) for path in FILES if needs(path) & absent)]

if "torch" not in absent:
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"   # read when Triton is imported, which other libraries do too

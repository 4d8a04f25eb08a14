"""Doctests of what cannot be imported are left out: the torch side without torch, compiled modules without numba."""

import importlib.util
import os

TORCH_SIDE = ("heads.py", "losses", "encoders", "training", "export",
              *(f"retrieve/{name}.py" for name in ("gpu", "device", "device_steps")))
TRITON = ("retrieve/device_kernels.py",
          *(f"losses/kernels/fused{name}.py" for name in ("", "_kernels", "_operands", "_pulls", "_small")))
collect_ignore = ["benchmarks", "scripts"]
if importlib.util.find_spec("numba") is None:
    compiled = ("evaluation/kernel.py", "evaluation/kernel_vectors.py", "retrieve/certify.py", "retrieve/kernels.py")
    collect_ignore += [f"src/matryo/{name}" for name in compiled]
    loops = ("bounded", "kernels", "stages", "tables", "vectors")
    collect_ignore += [f"src/matryo/retrieve/partition/{name}.py" for name in loops]
if importlib.util.find_spec("torch") is None:
    collect_ignore += [f"src/matryo/{name}" for name in (*TORCH_SIDE, *TRITON)]
else:
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"   # read when Triton is imported, which other libraries do too
if importlib.util.find_spec("triton") is None:
    collect_ignore += [f"src/matryo/{name}" for name in TRITON]

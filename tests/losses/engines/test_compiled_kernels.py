"""Properties of the compiled kernels, which need no GPU to check. The other tests interpret the kernels on a CPU."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")

COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from matryo.losses.engines.triton.kernels import gradient_kernel

pointers = {"ends": "i32", "negative": "i32", "grads": "bf16", "row_offset": "fp32"}
numbers = ("ragged_steps", "even_steps", "even_start", "rows", "columns", "first", "width", "tiles", "lowest", "dims")
vectors = {"x_ragged": (64, 32), "y_ragged": (128, 32), "x_even": (64, 64), "y_even": (128, 64)}
constants = {"BM": 64, "BN": 128, "BR": 32, "BK": 64, "GROUP": 16, "HELD": 3, "PRECISION": "ieee"}
signature, known = {}, {}
for name in gradient_kernel.arg_names:
    if name in pointers:
        signature[name] = "*" + pointers[name]
    elif name in numbers:
        signature[name] = "i32"
    elif name in vectors:
        signature[name] = "tensordesc<bf16[{},{}]>".format(*vectors[name])
    else:   # what a plain cross-entropy has none of, and the constants
        signature[name] = "constexpr"
        known[name] = constants.get(name, False if name.isupper() else None)
source = ASTSource(gradient_kernel, signature, known)
print(compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 4}).asm["ttir"])
"""


def test_the_gradients_of_earlier_dims_wait_in_registers(tmp_path):
    """Both loops carry the sum of products and the score gradients of three dims; the compiler merges none of them."""
    place = {"TRITON_CACHE_DIR": str(tmp_path)}
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | place
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loops = re.findall(r"scf\.for .*-> \((.*?)\)", done.stdout)
    carried = [len(re.findall("tensor<64x(?:128|64)x", types)) for types in loops]   # two bfloat16 per uint32
    assert carried == [1 + 3, 1 + 3]

"""torch without Triton (Windows, macOS) must import and compute."""

import subprocess
import sys

SCRIPT = """
import sys


class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] == "triton" else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)


sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
import torch
from matryo.losses import engines, nested_contrastive

a, b = torch.randn(2, 8, 16).unbind()
plain, chunked, auto = (nested_contrastive(a, b, [4, 16], engine=engine) for engine in ("plain", "chunked", "auto"))
torch.testing.assert_close(chunked, plain)
torch.testing.assert_close(auto, plain)
assert not engines.HAS_TRITON
try:
    nested_contrastive(a, b, [4, 16], engine="triton")
except ValueError as error:
    print(error)
"""


def test_losses_run_without_triton():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "needs the triton package (got not installed): pip install triton" in done.stdout

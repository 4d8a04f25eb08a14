"""Without torch, tests of the torch side are not collected; with it, one thread: tiny tensors only wait for more."""

import importlib.util
import sys
from pathlib import Path

import pytest
from imports import needs

TORCH_SIDE = ("encoders", "export", "inference", "losses", "training", "test_heads.py", "test_nesting_torch.py",
              "cli/test_demo.py", "cli/test_export.py", "cli/test_train*.py")  # fmt: skip
HOSTILE = [str(path) for path in Path(__file__).parent.glob("hostile/test_*.py") if "torch" in needs(path)]
collect_ignore_glob = ["helpers", "hostile/attacks"]
if importlib.util.find_spec("torch") is None:
    collect_ignore_glob += [*TORCH_SIDE, *HOSTILE]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

"""Without torch, the torch side's tests are not collected; with it, one thread: tiny tensors only wait for more."""

import importlib.util
import sys

import pytest

TORCH_TESTS = (
    "training",
    "encoders",
    "losses",
    "export",
    "cli/test_demo.py",
    "cli/test_export.py",
    "cli/test_train.py",
    "cli/test_train_text.py",
    "test_heads.py",
    "test_nesting_torch.py",
)
collect_ignore = [] if importlib.util.find_spec("torch") else list(TORCH_TESTS)


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

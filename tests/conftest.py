"""Without torch, the torch side's tests are not collected; everything else runs."""

import importlib.util

TORCH_TESTS = (
    "training",
    "encoders",
    "losses",
    "cli/test_demo.py",
    "cli/test_train.py",
    "test_heads.py",
    "test_nesting_torch.py",
)
collect_ignore = [] if importlib.util.find_spec("torch") else list(TORCH_TESTS)

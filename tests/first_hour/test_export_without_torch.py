"""`matryo export` without PyTorch says what to install, in one line."""

import subprocess
import sys

BLOCKED = """
import sys

sys.modules["torch"] = None   # every `import torch` fails, whether it is installed or not
from matryo.cli import main

sys.exit(main(["export", "runs/none", "--to", "timm"]))
"""


def test_the_missing_extra_is_named():
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.splitlines() == ["matryo: error: this needs PyTorch: pip install 'matryo[train]'"]

"""A process that is killed while it holds the lock of a bar stops no other process."""

import os
import subprocess
import sys

import pytest

KILLED = """
import os, signal
from matryo.progress import tqdm
tqdm(total=1, disable=True).close()
if (child := os.fork()) == 0:
    tqdm.get_lock().acquire()
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
tqdm(total=1, disable=True).close()
print("free")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_child_holds_no_lock_of_its_parent():
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "free\n"), done.stderr

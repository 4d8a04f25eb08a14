"""Doctests of modules that cannot be imported here are not collected: without torch, Triton, LangChain.

No test may open a connection to another machine: matryo needs no network.
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "tests" / "helpers"))
from imports import FILES, needs

OPTIONAL = ("torch", "triton", "langchain_core", "llama_index")
absent = {name for name in OPTIONAL if importlib.util.find_spec(name) is None}
collect_ignore = ["benchmarks", "scripts", *(str(path) for path in FILES if needs(path) & absent)]

if "torch" not in absent:
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"   # read when Triton is imported, which other libraries do too

CONNECTIONS: list[str] = []   # what tests, and the imports before them, tried to reach


def _refuse(event, details):
    if event not in ("socket.connect", "socket.getaddrinfo"):
        return
    address = details[1] if event == "socket.connect" else details[:1]
    host = address[0] if isinstance(address, tuple) else None   # other addresses are files
    if host not in (None, "", "localhost", "127.0.0.1", "::1", "0.0.0.0"):
        CONNECTIONS.append(f"{event} {host}")
        raise ConnectionRefusedError(f"tests must not connect to {host}")


sys.addaudithook(_refuse)


@pytest.fixture(autouse=True)
def connections():
    """The connections that were refused; a test that tried one fails, even if its code tolerates the refusal."""
    yield CONNECTIONS
    tried = [*CONNECTIONS]
    CONNECTIONS.clear()
    assert not tried

"""A server process to attack, on loopback."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from matryo import Index
from matryo.errors import MissingExtra

DIM = 16
VECTOR = [0.5] * DIM


def require() -> None:
    """Raise if the server cannot run here."""
    with MissingExtra.unless_installed("uvicorn", "serve"):
        import httptools  # noqa: F401
        import orjson  # noqa: F401
        import uvicorn  # noqa: F401


def make_index(folder: Path, rows: int = 200) -> Path:
    """An index with the ids r0, r1, …"""
    with Index.create(folder / "idx", nesting=[4, DIM]) as index:
        vectors = np.random.default_rng(0).normal(size=(rows, DIM)).astype(np.float32)
        index.add(vectors, ids=[f"r{n}" for n in range(rows)], payload=[{"n": n} for n in range(rows)])
    return folder / "idx"


class Server:
    """``matryo serve`` in a process of its own."""

    def __init__(self, *words: object) -> None:
        command = [sys.executable, "-m", "matryo", "serve", *map(str, words), "--port", "0", "--quiet"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rsplit(b":", 1)[1].strip(b" /\n"))

    def connect(self, seconds: float = 10) -> http.client.HTTPConnection:
        """A new connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def memory(self) -> int:
        """Its resident bytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def post(connection: http.client.HTTPConnection, path: str, body: Any) -> tuple[int, Any]:
    """Send JSON: the status, and the JSON of the answer."""
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    with contextlib.suppress(ValueError):
        return answer.status, json.loads(content)
    return answer.status, content

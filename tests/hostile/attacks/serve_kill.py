"""Kill a server with SIGKILL while clients upsert, load and search."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import threading
from pathlib import Path

from attacks.outcome import Outcome
from attacks.served import DIM, VECTOR, Server, make_index, post, require
from matryo import Index

__all__ = ["require"]

PROMISE = "What a server has acknowledged is there after it was killed under load, and the index is whole."
BOUNDED, SOAK = 1, 50
_ONE = "/v1/indexes/idx"


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Kill ``count`` servers of one index at random moments; after each, every acknowledged row must be there."""
    chance, outcome, acknowledged = random.Random(seed), Outcome(0), set[str]()
    path = make_index(folder)
    for attempt in range(count):
        server = Server("--index", path, "--writable")
        clients = [threading.Thread(target=upsert, args=(server, f"u{attempt}-{n}-", acknowledged)) for n in range(2)]
        clients += [threading.Thread(target=load, args=(server, f"l{attempt}-", acknowledged)),
                    threading.Thread(target=search, args=(server,))]  # fmt: skip
        for client in clients:
            client.start()
        threading.Event().wait(chance.uniform(0.05, 0.8))
        server.kill()
        for client in clients:
            client.join()
        outcome.attempts += 1
        with Index.open(path) as index:
            index.verify()
            lost = sum(id not in index for id in acknowledged)
        if lost:
            outcome.failures.append(f"kill {attempt}, seed {seed}: {lost} of {len(acknowledged)} rows are lost")
    if count >= BOUNDED and not acknowledged:
        outcome.failures.append("nothing was acknowledged before a kill: the attack attacks nothing")
    return outcome


def upsert(server: Server, prefix: str, acknowledged: set[str]) -> None:
    """Upsert 20 rows at a time until the server is gone."""
    number, connection = 0, server.connect()
    with contextlib.suppress(OSError, http.client.HTTPException):
        while True:
            ids = [f"{prefix}{n}" for n in range(number, number + 20)]
            if post(connection, f"{_ONE}/upsert", {"ids": ids, "vectors": [VECTOR] * 20})[0] == 200:
                acknowledged.update(ids)
            number += 20


def search(server: Server) -> None:
    """Search until the server is gone."""
    connection = server.connect()
    with contextlib.suppress(OSError, http.client.HTTPException):
        while True:
            post(connection, f"{_ONE}/search", {"vector": VECTOR, "where": {"n": {"$lt": 50}}})


def load(server: Server, prefix: str, acknowledged: set[str]) -> None:
    """Stream rows without an end, and read what is acknowledged."""
    connection, sent = server.connect(), 0

    def lines() -> bytes:
        nonlocal sent
        rows = [{"id": f"{prefix}{n}", "vector": [1.0] * DIM} for n in range(sent, sent + 100)]
        sent += 100
        return b"".join(json.dumps(row).encode() + b"\n" for row in rows)

    def read(answers: http.client.HTTPResponse) -> None:
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            while line := answers.readline():
                acknowledged.update(f"{prefix}{n}" for n in range(json.loads(line).get("committed", 0)))

    with contextlib.suppress(OSError, http.client.HTTPException):
        connection.putrequest("POST", f"{_ONE}/load")
        connection.putheader("content-type", "application/x-ndjson")
        connection.putheader("transfer-encoding", "chunked")
        connection.endheaders()
        reader = None
        while True:
            part = lines()
            connection.send(b"%x\r\n%b\r\n" % (len(part), part))
            if reader is None and sent >= 1000:   # the first batch is complete: its acknowledgement comes
                reader = threading.Thread(target=read, args=(connection.getresponse(),))
                reader.start()

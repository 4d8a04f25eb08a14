"""Killed at any moment, a store has all that was acknowledged, exactly once, and each call whole or not at all."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from matryo.errors import IndexFolderError
from matryo.nesting import Nesting
from matryo.retrieve.store import Limits, Store
from matryo.retrieve.store.sql.records import read_segments

if TYPE_CHECKING:
    from collections.abc import Iterator

KILLS = 20   # the attack kill_index has more
DIM = 8
LIMITS = Limits(pending_bytes=20 * DIM * 4, segment_bytes=60 * DIM * 4)
STEPS = ("add", "add", "add many", "upsert", "upsert", "delete", "compact")

# One process imports everything and forks a writer for each life, so that a life is short. A life speaks through
# pipes of its own: what one did not read must not reach the next.
NURSERY = """
import os, socket, sys
sys.path.insert(0, sys.argv[2])
from test_store_kill import live

control = socket.socket(fileno=int(sys.argv[1]))
while True:
    path, handles, _, _ = socket.recv_fds(control, 4096, 2)
    if not path:
        break
    child = os.fork()
    if child == 0:
        live(path.decode(), *handles)
        os._exit(0)
    for handle in handles:
        os.close(handle)
    _, status = os.waitpid(child, 0)
    control.send(str(os.waitstatus_to_exitcode(status)).encode())
"""


def live(path: str, reads: int, writes: int) -> None:
    """A writer's life: open the store, or create it, and do what is said, acknowledging each step."""
    lines, answer = os.fdopen(reads, "r"), os.fdopen(writes, "w")
    print(os.getpid(), file=answer, flush=True)
    try:
        store = Store.open(path, writable=True, limits=LIMITS)
    except IndexFolderError:
        store = Store.create(path, Nesting([2, DIM]), int8_up_to=2, limits=LIMITS)
    print("open", file=answer, flush=True)
    for line in lines:
        step, ids, version = json.loads(line)
        if step == "compact":
            store.compact()
        elif step == "delete":
            store.delete(ids)
        else:
            call = store.upsert if step == "upsert" else store.add
            call(vectors_of(ids, version), ids, payload_of(ids, version))
        print("done", file=answer, flush=True)


def vectors_of(ids: list[str], version: int) -> np.ndarray:
    return np.array([[int(one.split()[1]), version, *range(DIM - 2)] for one in ids], np.float32)


def payload_of(ids: list[str], version: int) -> list[dict[str, Any]]:
    return [{"of": one, "version": version} for one in ids]


class Nursery:
    """The process that bears writers."""

    def __init__(self) -> None:
        self.control, far = socket.socketpair()
        here = str(Path(__file__).parent)
        command = [sys.executable, "-c", NURSERY, str(far.fileno()), here]
        quiet = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, pass_fds=[far.fileno()], env=quiet)
        far.close()

    def bear(self, path: Path) -> Life:
        (its_in, our_out), (our_in, its_out) = os.pipe(), os.pipe()
        socket.send_fds(self.control, [str(path).encode()], [its_in, its_out])
        os.close(its_in)
        os.close(its_out)
        return Life(our_in, our_out, self.control)

    def end(self) -> None:
        self.control.close()
        assert self.process.wait() == 0


class Life:
    """One writer, from its birth to its kill."""

    def __init__(self, reads: int, writes: int, control: socket.socket) -> None:
        self.lines, self.voice, self.control = os.fdopen(reads, "r"), os.fdopen(writes, "w"), control
        self.pid = int(self.lines.readline())

    def say(self, step: str, ids: list[str], version: int) -> None:
        print(json.dumps([step, ids, version]), file=self.voice, flush=True)

    def hear(self, word: str) -> None:
        assert self.lines.readline().strip() == word

    def kill(self) -> list[str]:
        """End it; what it had still said."""
        os.kill(self.pid, signal.SIGKILL)
        rest = self.lines.read().split()
        assert int(self.control.recv(16)) == -signal.SIGKILL
        self.lines.close()
        self.voice.close()
        return rest


class History:
    """What the store must hold: the version of each id. ``plan`` draws the next step and what follows from it."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.held, self.version = chance, dict[str, int](), 0

    def plan(self) -> tuple[str, list[str], dict[str, int]]:
        step = self.chance.choice(STEPS)
        self.version += 1
        known = sorted(self.held)
        if step == "compact" or (step == "delete" and not known):
            return "compact", [], self.held
        if step == "delete":
            ids = self.chance.sample(known, self.chance.randint(1, len(known)))   # so that it stays small
            return step, ids, {one: version for one, version in self.held.items() if one not in ids}
        count = self.chance.randint(25, 80) if step == "add many" else self.chance.randint(1, 6)
        ids = [f"id {self.version * 100 + i}" for i in range(count)]
        if step == "upsert":
            ids = [*ids[:2], *self.chance.sample(known, min(len(known), self.chance.randint(1, 30)))]
        return step.split()[0], ids, {**self.held, **dict.fromkeys(ids, self.version)}


def found_in(path: Path) -> dict[str, int]:
    """What is in the store, by a reader that checks every byte, vector and payload."""
    with Store.open(path) as store:
        store.verify()
        ids = store.snapshot().ids().tolist()
        assert len(set(ids)) == len(ids) == store.count
        vectors, payload = store.get(ids)
        held = {one: int(vector[1]) for one, vector in zip(ids, vectors, strict=True)}
        for one, vector, about in zip(ids, vectors, payload, strict=True):
            np.testing.assert_array_equal(vector, vectors_of([one], held[one])[0])
            assert about == payload_of([one], held[one])[0]
        return held


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.end()


def test_killed_at_random_it_has_what_was_acknowledged(tmp_path: Path, nursery: Nursery) -> None:
    chance, path = random.Random(4), tmp_path / "index"
    Store.create(path, Nesting([2, DIM]), int8_up_to=2).close()
    history, times, cut = History(chance), [0.01], 0
    for _ in range(KILLS):
        life = nursery.bear(path)
        steps = chance.randint(0, 4)   # with none, it is killed while it opens
        if steps:
            life.hear("open")
        for _ in range(steps - 1):
            step, ids, after = history.plan()
            start = time.monotonic()
            life.say(step, ids, history.version)
            life.hear("done")
            times.append(time.monotonic() - start)
            history.held = after
        after = history.held
        if steps:
            step, ids, after = history.plan()
            life.say(step, ids, history.version)
        # As long as a step takes on this machine, so that kills fall everywhere within one.
        time.sleep(chance.random() * 1.5 * statistics.median(times))
        acknowledged = "done" in life.kill()
        cut += bool(steps) and not acknowledged
        found = found_in(path)
        assert found == after or (not acknowledged and found == history.held), step
        history.held = found
    assert cut >= KILLS // 10   # else nothing was proved
    with Store.open(path, writable=True, limits=LIMITS) as store:
        store.compact()
        assert sorted(entry.name for entry in (path / "segments").iterdir()) == names(store)
    assert found_in(path) == history.held


def test_killed_while_it_is_created_it_can_be_created_again(tmp_path: Path, nursery: Nursery) -> None:
    chance = random.Random(5)
    times = [0.01]
    for kill in range(10):
        path = tmp_path / str(kill)
        life = nursery.bear(path)
        time.sleep(chance.random() * 1.5 * statistics.median(times))
        if "open" in life.kill():
            assert found_in(path) == {}
        start = time.monotonic()
        life = nursery.bear(path)   # it opens what is there, or creates it
        life.hear("open")
        times.append(time.monotonic() - start)
        life.say("add", ["id 1"], 3)
        life.hear("done")
        life.kill()
        assert found_in(path) == {"id 1": 3}


def test_a_reader_sees_whole_steps_while_a_writer_works_and_is_killed(tmp_path: Path, nursery: Nursery) -> None:
    """Every step upserts the same ids, so any whole commit has all of them with one version."""
    path, ids = tmp_path / "index", [f"id {n}" for n in range(30)]
    Store.create(path, Nesting([2, DIM]), int8_up_to=2).close()
    last = 0
    with Store.open(path) as reader:
        for life_number in range(5):
            life = nursery.bear(path)
            life.hear("open")
            for step in range(1, 9):
                version = 10 * life_number + step
                life.say("upsert" if step % 4 else "compact", ids, version)
                for _ in range(3):   # meanwhile
                    snapshot = reader.snapshot()
                    if snapshot.count:
                        rows = np.concatenate([one.blocks.rows(one.positions, DIM) for one in snapshot.segments])
                        assert snapshot.ids().tolist() == ids
                        assert len(set(rows[:, 1].tolist())) == 1
                        assert rows[0, 1] >= last
                        last = int(rows[0, 1])
                life.hear("done")
            life.kill()
        reader.verify()


def names(store: Store) -> list[str]:
    return sorted(record.name for record in read_segments(store._database))

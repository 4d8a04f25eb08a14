"""Damage one file of a complete or of an unfinished run, then load or resume it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from attacks.outcome import Outcome, ended
from attacks.tiny_run import model_digest, train, train_half
from matryo.training.run.paths import RunFolder

PROMISE = "A damaged run is refused with an error, or loads and resumes to the same weights, bit for bit."
BOUNDED, SOAK = 16, 1000
_LOGS = ("metrics.jsonl", "tensorboard/")   # nothing is built or resumed from these


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Make ``count`` damages; two of three hit a complete run."""
    chance, outcome = random.Random(seed), Outcome(0)
    complete, half = folder / "complete", folder / "half"
    train(complete)
    train_half(half)
    assert RunFolder(complete).verify() and RunFolder(half).verify()
    wanted = model_digest(complete)
    for number in range(count):
        source = half if number % 3 == 2 else complete
        work = folder / "work"
        shutil.copytree(source, work)
        path = chance.choice(sorted(path for path in work.rglob("*") if path.is_file()))
        name = path.relative_to(work).as_posix()
        said = f"{source.name}: {damage(path, chance)} of {name}"
        outcome.attempts += 1
        noticed = ended(RunFolder(work).verify)
        missed = noticed.kind == "returned" and not name.startswith(_LOGS) and _changed(path, source / name)
        end = ended(_model, work, source is half)
        if not end.clean or not noticed.clean:
            outcome.failures.append(f"{said}: {end.text or noticed.text}")
        elif end.kind == "returned" and end.value != wanted:
            outcome.failures.append(f"{said}: another model, in silence")
        elif missed:
            outcome.failures.append(f"{said}: verify noticed nothing")
        shutil.rmtree(work)
    return outcome


def damage(path: Path, chance: random.Random) -> str:
    """Damage a file in a random way that changes it, and return what was done."""
    before = path.read_bytes()
    kind = chance.choice(["flip", "flip", "flip", "cut", "zeros", "noise", "addition", "deletion"])
    if kind == "deletion":
        path.unlink()
        return kind
    data, size = bytearray(before), len(before)
    # Headers are small and decide most: aim at the first kilobyte as often as at all the rest.
    start = chance.randrange(min(size, 1024) if chance.random() < 0.5 else size)
    end = min(size, start + chance.choice([1, 8, 64, 4096]))
    if kind == "flip":
        data[start] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        del data[start:]
    elif kind == "addition":
        data += chance.randbytes(end - start)
    else:
        data[start:end] = bytes(end - start) if kind == "zeros" else chance.randbytes(end - start)
    if data == before:   # zeros over zeros
        data[start] ^= 1
    path.write_bytes(data)
    return f"{kind} at byte {start}"


def _model(work: Path, resume: bool) -> str:
    if resume:
        train(work)
    return model_digest(work)


def _changed(path: Path, original: Path) -> bool:
    """Whether a file is there and says something else than it said; white space in JSON does not count."""
    if path.name != "run.json" or not path.is_file():
        return path.is_file() and path.read_bytes() != original.read_bytes()
    return RunFolder(path.parent).facts != RunFolder(original.parent).facts

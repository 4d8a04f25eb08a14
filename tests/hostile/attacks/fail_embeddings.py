"""Let a call of the system fail, or an interrupt come, while embeddings are overwritten."""

from __future__ import annotations

from pathlib import Path

from attacks.outcome import Outcome
from attacks.overwrite_embeddings import read_version, stream_version, write_version
from attacks.overwriting import fail

PROMISE = "A write of embeddings that raises, for a disk error at any step, has changed nothing at the path."
BOUNDED, SOAK = 16, 600


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Fail writers of both kinds."""
    half = count // 2
    at_once = fail(half, seed, folder / "at once" / "mine", write_version, read_version)
    in_batches = fail(count - half, seed, folder / "in batches" / "mine", stream_version, read_version)
    return Outcome(at_once.attempts + in_batches.attempts, at_once.failures + in_batches.failures)

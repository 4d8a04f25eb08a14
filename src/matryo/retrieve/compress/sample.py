"""One pass over vectors: their moments, and a sample that codecs are fitted to; unfit vectors are errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import EmbeddingsError, InputError
from matryo.nesting import truncate
from matryo.progress import tqdm
from matryo.retrofit.moments import Moments
from matryo.retrofit.reading import Reservoir, batches_of

if TYPE_CHECKING:
    from matryo.arrays import Array, Floats, Integers

_ROWS, _NUMBERS = 20_000, 1 << 25   # of a sample: rows, and numbers in them
_FEWEST = 2 * 256   # rows: fewer than two per centroid mean nothing


@dataclass(frozen=True, eq=False)
class Sample:
    """The moments and the sample of a pass over vectors; under cosine, over their directions."""

    moments: Moments
    rows: Integers
    """The numbers of the sampled rows, increasing."""
    vectors: Floats
    """The sampled rows."""
    seen: int

    @property
    def dim(self) -> int:
        """The number of columns."""
        return self.moments.dim


def read_sample(
    vectors: Any, metric: str, *, wanted: Integers | None = None, seed: int = 0, progress: bool = True
) -> Sample:
    """Read ``vectors`` once, in bounded memory. The sample holds the rows ``wanted``."""
    rng = np.random.default_rng(seed)
    moments, reservoir, zeros, first_zero = Moments(1), Reservoir(1, np.empty(0, np.int64), rng), 0, 0
    low: Array | None = None
    high: Array | None = None
    with tqdm(desc="compress", unit="row", unit_scale=True, delay=2, disable=not progress) as bar:
        for batch in batches_of(vectors):
            if low is None or high is None:
                dim = batch.shape[1]
                most = max(2048, min(_ROWS, _NUMBERS // dim))
                moments = Moments(dim)
                reservoir = Reservoir(most, np.empty(0, np.int64) if wanted is None else wanted, rng)
                low, high = batch[0].copy(), batch[0].copy()
            low, high = np.minimum(low, batch.min(axis=0)), np.maximum(high, batch.max(axis=0))
            dead = np.flatnonzero(~batch.any(axis=1)) if metric == "cosine" else np.empty(0, np.int64)
            first_zero = reservoir.seen + int(dead[0]) if len(dead) and not zeros else first_zero
            zeros += len(dead)
            unit = truncate(batch, batch.shape[1]) if metric == "cosine" else batch
            moments.add(unit)
            reservoir.add(unit)
            bar.update(len(batch))
    if zeros:
        got = f"{zeros} rows of zeros, the first is row {first_zero}"
        raise EmbeddingsError("vectors must have a direction", got=got, cure="drop those rows, or encode them again")
    _check(moments, reservoir.seen, low, high)
    rows, sample = reservoir.sample()
    _check_distinct(sample)
    return Sample(moments, rows, sample, reservoir.seen)


def check_columns(vectors: Floats, dim: int, name: str) -> None:
    """Raise unless ``vectors`` are of the model that ``dim`` columns belong to, as far as their number shows it."""
    if vectors.shape[1] != dim:
        raise InputError(f"{name} must have {dim} columns, as the vectors have", got=vectors.shape[1],
                         cure="encode both with one model")  # fmt: skip


def _check(moments: Moments, seen: int, low: Array | None, high: Array | None) -> None:
    least = max(_FEWEST, moments.dim)
    if seen < least or low is None or high is None:
        rule = f"a compression of {moments.dim} dims needs at least {least} vectors"
        raise EmbeddingsError(rule, got=seen, cure="pass more vectors of this model, also of another corpus")
    if (low == high).all():
        raise EmbeddingsError("vectors must differ", got=f"{seen} equal ones", cure="check how they were encoded")
    constant = np.flatnonzero(low == high)
    if len(constant):
        got = f"{len(constant)} columns with one value, the first is column {constant[0]}"
        raise EmbeddingsError("every column must vary", got=got, cure="drop those columns from vectors and queries")


def _check_distinct(sample: Floats) -> None:
    """Raise if most rows occur more than once: held-out rows would find their own copies."""
    kinds = len(np.unique(np.ascontiguousarray(sample).view(np.dtype((np.void, 4 * sample.shape[1])))))
    if 2 * kinds < len(sample):
        got = f"{kinds} different ones in a sample of {len(sample)}"
        raise EmbeddingsError("most vectors must occur once", got=got, cure="drop the duplicates first")

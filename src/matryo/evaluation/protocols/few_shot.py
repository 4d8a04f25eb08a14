"""Few-shot: n examples a class, the nearest class mean decides, over repeated draws.

A prefix is put on the unit sphere, a class is the direction of the mean of its n prefixes, and a query belongs to the
class with which its cosine is largest.

>>> vectors = [[1, 4], [1, 5], [1, -4], [1, -5]]      # only the second column tells the classes apart
>>> few_shot(EmbeddingSet.of(vectors, labels=[0, 0, 1, 1]), shots=[1], dims=[1, 2]).accuracy
((0.5, 1.0),)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from tqdm import tqdm

from matryo.embeddings import UNKNOWN, EmbeddingSet
from matryo.errors import EmbeddingsError, InputError
from matryo.evaluation.checks import check_finite, chosen_dims, labels_of
from matryo.evaluation.draws import shuffled_by_class
from matryo.nesting import truncate
from matryo.results import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

    Floats = np.ndarray[Any, np.dtype[np.float32]]
    Integers = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["FewShot", "few_shot"]


@dataclass(frozen=True)
class FewShot(Result):
    """Accuracy of nearest class means after n shots, by number of shots and dim."""

    kind: ClassVar[str] = "few-shot"
    model: str
    dataset: str
    split: str
    classes: str
    """Which classes the ways were drawn from: "all", or a phrase such as "never trained"."""
    ways: int
    draws: int
    dims: tuple[int, ...]
    shots: tuple[int, ...]
    accuracy: tuple[tuple[float, ...], ...]
    """[shots][dims]: the mean over the draws."""
    margin: tuple[tuple[float, ...], ...]
    """[shots][dims]: half the width of the 95 % confidence interval of that mean."""


def few_shot(
    embeddings: EmbeddingSet,
    *,
    shots: Sequence[int] = (1, 3, 5, 7, 9),
    ways: int | None = None,
    draws: int = 100,
    dims: Sequence[int] | None = None,
    classes: Sequence[int] | None = None,
    about: str = "all",
    seed: int = 0,
    progress: bool = True,
) -> FewShot:
    """Draw ``ways`` classes and n ``shots`` of each, classify all their other examples; repeat ``draws`` times.

    ``classes`` restricts the ways to some classes, which ``about`` describes. All that have enough examples take
    part unless ``ways`` asks for fewer. The examples of one shot are among those of three, and every dim sees the
    same draws, so that columns and rows differ by what they measure and not by luck. The margin is that of the
    draws; it knows nothing of how the examples at hand were chosen.
    """
    labels = labels_of(embeddings, "embeddings")
    nesting, asked = chosen_dims(embeddings, dims), _check_shots(shots, draws)
    able = _able(embeddings, labels, classes, asked[-1])
    if ways is not None and not 2 <= ways <= len(able):
        raise InputError(
            f"ways must lie in 2 … {len(able)}, the classes with enough examples", got=ways, cure="ask for fewer"
        )
    chosen = len(able) if ways is None else ways
    rng = np.random.default_rng(seed)
    drawn = [_Draw.of(labels, np.sort(rng.permutation(able)[:chosen]), rng) for _ in range(draws)]
    found = np.empty((len(asked), len(nesting), draws))
    with tqdm(desc="few-shot", total=len(nesting) * draws, unit="draw", delay=2, disable=not progress) as bar:
        for place, dim in enumerate(nesting.dims):
            vectors = embeddings.at(dim)
            check_finite(vectors, np.arange(len(vectors)), "embeddings")
            for number, draw in enumerate(drawn):
                found[:, place, number] = draw.accuracies(vectors, asked)
                bar.update()
    mean, margin = found.mean(axis=2), 1.96 * found.std(axis=2, ddof=1) / np.sqrt(draws)
    what = embeddings.manifest
    return FewShot(
        what.title, what.dataset, what.split, about, chosen, draws, nesting.dims, asked, _tuples(mean), _tuples(margin)
    )


@dataclass(frozen=True, eq=False)
class _Draw:
    """Examples of some ways, class after class and shuffled: the first n of each are the shots."""

    rows: Integers
    ways: Integers
    """[rows], the way of each."""
    places: Integers
    """[rows], counted within each way."""

    @classmethod
    def of(cls, labels: Integers, classes: Integers, rng: np.random.Generator) -> _Draw:
        among = np.flatnonzero(np.isin(labels, classes))
        order, places = shuffled_by_class(labels[among], rng)
        rows = among[order]
        return cls(rows, np.searchsorted(classes, labels[rows]), places)

    def accuracies(self, vectors: Floats, shots: Sequence[int]) -> list[float]:
        """The share of the examples that are no shots which unit ``vectors`` tell right, for each of ``shots``."""
        own = vectors[self.rows]
        first = np.flatnonzero(self.places == 0)
        sums = np.cumsum(own[first[:, None] + np.arange(max(shots))], axis=1)
        found = []
        for count in shots:
            means = truncate(sums[:, count - 1], sums.shape[2])
            right = (own @ means.T).argmax(axis=1) == self.ways
            found.append(float(right[self.places >= count].mean()))
        return found


def _able(embeddings: EmbeddingSet, labels: Integers, classes: Sequence[int] | None, shots: int) -> Integers:
    # The classes with enough examples: all of them must, if they were named, and otherwise two.
    present, numbers = np.unique(labels[labels != UNKNOWN], return_counts=True)
    counts = dict(zip(present.tolist(), numbers.tolist(), strict=True))
    wanted = sorted(counts if classes is None else {int(label) for label in classes})
    able = [label for label in wanted if counts.get(label, 0) > shots]
    if len(able) < (2 if classes is None else max(2, len(wanted))):
        extreme = max if classes is None else min
        told = extreme(wanted, key=lambda label: counts.get(label, 0), default=UNKNOWN)
        name = f" ({embeddings.classes[told]})" if 0 <= told < len(embeddings.classes) else ""
        raise EmbeddingsError(
            f"{shots}-shot needs two classes or more, with {shots + 1} examples each, one of them to ask about",
            got=f"{counts.get(told, 0)} of class {told}{name}" if wanted else "no class",
            cure="ask for fewer shots, leave that class out, or give more examples",
        )
    return np.array(able, np.int64)


def _check_shots(shots: Sequence[int], draws: int) -> tuple[int, ...]:
    asked = tuple(sorted({int(count) for count in shots}))
    if not asked or asked[0] < 1:
        raise InputError("there must be shots, each at least 1", got=tuple(shots), cure="the paper's are 1, 3, 5, 7, 9")
    if draws < 2:
        raise InputError("a confidence interval needs at least two draws", got=draws, cure="ask for more")
    return asked


def _tuples(figures: Any) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, figures.tolist()))

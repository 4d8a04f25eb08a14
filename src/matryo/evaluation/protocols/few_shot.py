"""Few-shot: nearest-class-mean accuracy after n examples per class, over repeated draws.

Prefixes are normalised. A class is the direction of the mean of its n prefixes, and a query is assigned to the class
with the largest cosine.

>>> vectors = [[1, 4], [1, 5], [1, -4], [1, -5]]      # only the second column separates the classes
>>> few_shot(EmbeddingSet.of(vectors, labels=[0, 0, 1, 1]), shots=[1], dims=[1, 2]).accuracy
((0.5, 1.0),)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from matryo.arguments import checked
from matryo.embeddings import UNKNOWN, EmbeddingSet
from matryo.errors import EmbeddingsError, InputError
from matryo.evaluation.checks import check_finite, chosen_dims, class_counts, labels_of
from matryo.evaluation.draws import shuffled_by_class
from matryo.evaluation.protocol import Protocol
from matryo.nesting import truncate
from matryo.progress import tqdm
from matryo.results import SplitResult, as_tuples
from matryo.tables import Metric

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matryo.arrays import Floats, Integers
    from matryo.evaluation.subject import Subject

_SHOTS = (1, 3, 5, 7, 9)
_DRAWS = 30   # all classes take part in each draw, so that the mean settles soon


@dataclass(frozen=True)
class FewShot(SplitResult):
    """Nearest-class-mean accuracy by number of shots and dim."""

    kind: ClassVar[str] = "few-shot"
    classes: str
    """Which classes were drawn from: "all", or a phrase such as "never trained"."""
    ways: int
    """Classes per draw."""
    draws: int
    dims: tuple[int, ...]
    shots: tuple[int, ...]
    accuracy: tuple[tuple[float, ...], ...]
    """[shots, dims]: the mean over the draws."""
    margin: tuple[tuple[float, ...], ...]
    """[shots, dims]: half the width of the 95 % confidence interval of that mean."""

    @property
    def about(self) -> str:
        """The classes and draws."""
        return f"few-shot, {self.ways} classes ({self.classes}), mean of {self.draws} draws"

    def metrics(self) -> list[Metric]:
        """Return the accuracy by dim for each number of shots."""
        rows = zip(self.shots, self.accuracy, strict=True)
        return [Metric(f"{count}-shot", dict(zip(self.dims, row, strict=True))) for count, row in rows]


@checked
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

    ``classes`` restricts the draws to some classes, which ``about`` describes. All classes with enough examples take
    part unless ``ways`` is smaller. One shot is among the three of three shots, and every dim uses the same draws, so
    that differences between dims and shots are not due to chance. The margin covers the variation of the draws, not
    the choice of the examples at hand.
    """
    labels = labels_of(embeddings, "embeddings")
    nesting, counts = chosen_dims(embeddings, dims), _check_shots(shots, draws)
    able = _able(embeddings, labels, classes, counts[-1])
    if ways is not None and not 2 <= ways <= len(able):
        raise InputError(
            f"ways must be between 2 and {len(able)}, the number of classes with enough examples",
            got=ways,
            cure="choose fewer",
        )
    chosen = len(able) if ways is None else ways
    rng = np.random.default_rng(seed)
    drawn = [_Draw.of(labels, np.sort(rng.permutation(able)[:chosen]), rng) for _ in range(draws)]
    accuracies = np.empty((len(counts), len(nesting), draws))
    with tqdm(desc="few-shot", total=len(nesting) * draws, unit="draw", delay=2, disable=not progress) as bar:
        for place, dim in enumerate(nesting.dims):
            vectors = embeddings.at(dim)
            check_finite(vectors, np.arange(len(vectors)), "embeddings")
            for number, draw in enumerate(drawn):
                accuracies[:, place, number] = draw.accuracies(vectors, counts)
                bar.update()
    mean, margin = accuracies.mean(axis=2), 1.96 * accuracies.std(axis=2, ddof=1) / np.sqrt(draws)
    return FewShot(
        *embeddings.manifest.origin, about, chosen, draws, nesting.dims, counts,
        as_tuples(mean.tolist()), as_tuples(margin.tolist()),
    )  # fmt: skip


def _measure(subject: Subject) -> Iterator[FewShot]:
    measured = partial(few_shot, draws=_DRAWS, dims=subject.dims, progress=subject.progress)
    for queries in subject.with_repeated_classes():
        counts = class_counts(queries)
        # As many shots as half of the classes allow, with one more example to classify.
        median = float(np.median(counts[counts > 0])) if counts.any() else 0.0
        yield measured(queries, shots=tuple(n for n in _SHOTS if n < median) or _SHOTS[:1])
        novel = [label for label in subject.novel(queries) if counts[label] > 1]
        if len(novel) > 1:
            shots = tuple(n for n in _SHOTS if n < counts[novel].min())
            yield measured(queries, shots=shots, classes=novel, about="never trained")


PROTOCOL = Protocol("few-shot", _measure)


@dataclass(frozen=True, eq=False)
class _Draw:
    """Examples of the drawn classes, class by class and shuffled: the first n of each are the shots."""

    rows: Integers
    ways: Integers
    """[rows]: the number of the class of each."""
    places: Integers
    """[rows]: the position of each within its class."""

    @classmethod
    def of(cls, labels: Integers, classes: Integers, rng: np.random.Generator) -> _Draw:
        among = np.flatnonzero(np.isin(labels, classes))
        order, places = shuffled_by_class(labels[among], rng)
        rows = among[order]
        return cls(rows, np.searchsorted(classes, labels[rows]), places)

    def accuracies(self, vectors: Floats, shots: Sequence[int]) -> list[float]:
        """Return the accuracy of unit ``vectors`` on the examples that are not shots, for each of ``shots``."""
        own = vectors[self.rows]
        first = np.flatnonzero(self.places == 0)
        sums = np.cumsum(own[first[:, None] + np.arange(max(shots))], axis=1)
        accuracies = []
        for count in shots:
            means = truncate(sums[:, count - 1], sums.shape[2])
            right = (own @ means.T).argmax(axis=1) == self.ways
            accuracies.append(float(right[self.places >= count].mean()))
        return accuracies


def _able(embeddings: EmbeddingSet, labels: Integers, classes: Sequence[int] | None, shots: int) -> Integers:
    # The classes with enough examples: all of ``classes`` must have them; otherwise at least two classes.
    present, numbers = np.unique(labels[labels != UNKNOWN], return_counts=True)
    counts = dict(zip(present.tolist(), numbers.tolist(), strict=True))
    wanted = sorted(counts if classes is None else {int(label) for label in classes})
    able = [label for label in wanted if counts.get(label, 0) > shots]
    if len(able) < (2 if classes is None else max(2, len(wanted))):
        extreme = max if classes is None else min
        label = extreme(wanted, key=lambda one: counts.get(one, 0), default=UNKNOWN)
        name = f" ({embeddings.classes[label]})" if 0 <= label < len(embeddings.classes) else ""
        raise EmbeddingsError(
            f"{shots}-shot needs at least two classes with {shots + 1} examples each, one of them to classify",
            got=f"{counts.get(label, 0)} of class {label}{name}" if wanted else "no class",
            cure="choose fewer shots, exclude that class, or add examples",
        )
    return np.array(able, np.int64)


def _check_shots(shots: Sequence[int], draws: int) -> tuple[int, ...]:
    counts = tuple(sorted({int(count) for count in shots}))
    if not counts or counts[0] < 1:
        raise InputError("shots must be at least 1", got=tuple(shots), cure="the paper uses 1, 3, 5, 7, 9")
    if draws < 2:
        raise InputError("a confidence interval needs at least two draws", got=draws, cure="choose draws=30")
    return counts

"""The answer: the smallest dim that keeps a share of the full-dim quality, on each metric and split.

``templates/report.js`` makes the same choice in the page from :func:`payload`; a test compares both. All numbers and
their texts are computed here, so the script only compares and selects.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.evaluation.protocols.pairs import Pairs
from matryo.evaluation.protocols.sts import Sts
from matryo.metrics import mflops, vector_bytes
from matryo.report.models import METRICS, source_of
from matryo.report.series import Z95, Group, gather, sampling_variance

if TYPE_CHECKING:
    from matryo.report.material import Material

KEEP = 0.98
"""The default share of the full-dim quality that the answer must keep."""
ALL = "all"


@dataclass(frozen=True)
class Kept:
    """The quality that one model keeps at each dim, by one metric on one split."""

    metric: str
    split: str
    dims: tuple[int, ...]
    quality: tuple[float, ...]
    kept: tuple[float, ...]
    """Quality divided by the full-dim quality of the source model."""
    error: tuple[float, ...]
    """Half of the 95 % interval of ``kept``: over seeds (paired) and over queries.

    Queries are treated as independent at the two dims. They are the same queries, so the true interval is narrower.
    """
    database: int
    """Vectors searched per query; 0 where nothing is searched."""

    def smallest(self, dims: Sequence[int], keep: float, errors: float = 0.0) -> int | None:
        """The smallest of ``dims`` that keeps ``keep``, as every larger one does; None if the largest does not.

        ``errors`` = −1 uses the lower end of the 95 % interval and +1 its upper end.
        """
        chosen = None
        for dim, kept, error in reversed(list(zip(self.dims, self.kept, self.error, strict=True))):
            if dim in dims:
                if kept + errors * error < keep:
                    break
                chosen = dim
        return chosen

    def text(self, index: int) -> str:
        """The quality kept at a dim, with its error."""
        if self.kept[index] >= 1:
            return "as good as the full dim"
        return f"{100 * self.kept[index]:.1f} ± {100 * self.error[index]:.1f} %"


@dataclass(frozen=True)
class Subject:
    """A model that the question can be asked about."""

    name: str
    source: str
    """The model whose full dim is the reference: the model itself, or the one that a baseline is made from."""
    dims: tuple[int, ...]
    """Dims to choose from: the trained ones, or every measured dim if only one was trained."""
    curves: tuple[Kept, ...]

    @property
    def full(self) -> int:
        """The largest dim."""
        return self.dims[-1]


@dataclass(frozen=True)
class Choice:
    """A question: one model, a metric and a split (or all of them), and the share of the quality to keep."""

    model: int = 0
    metric: str = ALL
    split: str = ALL
    keep: float = KEEP

    def covers(self, curve: Kept) -> bool:
        """Whether the question is about this curve."""
        return self.metric in (ALL, curve.metric) and self.split in (ALL, curve.split)


def subjects(material: Material) -> list[Subject]:
    """Every model with a metric at two dims or more, nested models first."""
    values: dict[tuple[str, str, str], _Values] = {}
    trained: dict[str, set[int]] = {}
    for line in material.lines:
        if len(line.groups) > 1:   # one model per dim: nothing to truncate
            continue
        group = line.groups[0]
        trained.setdefault(line.name, set()).update(row.dim for row in group.first.rows if row.trained)
        for metric, figure in METRICS.items():
            by_dim = [{row.dim: figure(row) for row in one.rows} for one in group.results]
            sizes = group.first.queries, group.first.database
            values[line.name, metric, line.place] = _Values.of(group, by_dim, *sizes)
    for pairs in gather(material.rows, Pairs, lambda one: (one.dims, one.ks, one.sides)):
        k = min(pairs.first.ks, key=lambda k: abs(k - 10))
        for direction in (0, 1):
            by_dim = [dict(zip(one.dims, one.at("nDCG", k, direction), strict=True)) for one in pairs.results]
            sizes = pairs.first.asked[direction], pairs.first.counts[1 - direction]
            metric = f"nDCG@{k}, {pairs.first.directions[direction]}"
            values[pairs.name, metric, pairs.place] = _Values.of(pairs, by_dim, *sizes)
    for sts in gather(material.rows, Sts, lambda one: one.dims):
        by_dim = [dict(zip(one.dims, one.spearman, strict=True)) for one in sts.results]
        values[sts.name, "Spearman", sts.place] = _Values.of(sts, by_dim, sts.first.pairs, 0, _spearman_variance)
    by_model: dict[str, list[Kept]] = {}
    names = {name for name, _, _ in values}
    for (name, metric, split), found in values.items():
        reference = values.get((_source(name, names), metric, split), found)
        if len(found.dims) > 1 and reference.dims and reference.mean(reference.dims[-1]) > 0:
            by_model.setdefault(name, []).append(_kept(metric, split, found, reference))
    return [
        _subject(name, _source(name, names), curves, trained.get(name, set())) for name, curves in by_model.items()
    ]


def answer(models: Sequence[Subject], choice: Choice) -> dict[str, Any]:
    """The texts of the first screen, by the id of their element; "dim" is the number, or None."""
    model = models[choice.model]
    curves = [curve for curve in model.curves if choice.covers(curve)]
    dim = _smallest(model, curves, choice.keep)
    share = f"{100 * choice.keep:g} %"
    on = _on(choice, curves)
    facts: dict[str, Any] = dict.fromkeys(("other", "kept", "range", "bytes", "flops"), "")
    facts |= {"dim": dim, "warning": _warning(model, curves, choice.keep), "table": _table(model, choice.keep)}
    rivals = [(d, m.name) for m in models if m is not model and m.source == model.source
              and (d := _smallest(m, [c for c in m.curves if choice.covers(c)], choice.keep))]   # fmt: skip
    best = min(rivals, default=None)
    if best and best[0] < (dim or math.inf):
        facts["other"] = f"{best[1]} needs only {best[0]} dims."
    if dim is None:
        facts["headline"] = f"No dim keeps {share}"
        facts["why"] = f"Even {model.full} dims of {model.name} keep less than {share} of the quality of " \
                       f"{model.source} {on}."   # fmt: skip
        return facts
    facts["headline"] = f"Use all {dim} dims" if dim == model.full else f"Use {dim} of {model.full} dims"
    reason = f"that keeps at least {share} of the full-dim quality {on}."
    facts["why"] = f"{dim} is the smallest dim of {model.name} {reason}"
    lowest = min(curves, key=lambda curve: curve.kept[curve.dims.index(dim)])
    if lowest.error[lowest.dims.index(dim)]:   # the full dim is its own reference
        facts["kept"] = f"{lowest.text(lowest.dims.index(dim))}: {lowest.metric} on {lowest.split}"
    possible, certain = (_smallest(model, curves, choice.keep, errors) or model.full for errors in (1.0, -1.0))
    facts["range"] = f"{dim} dims" if possible == certain else f"{possible} to {certain} dims"
    facts["bytes"] = _cost("bytes", *(f"{vector_bytes(d):,}" for d in (dim, model.full)))
    if database := max(curve.database for curve in curves):
        facts["flops"] = _cost("MFLOPs", *(f"{mflops(database, d):.3g}" for d in (dim, model.full)))
    return facts


def payload(models: Sequence[Subject]) -> list[dict[str, Any]]:
    """The models as JSON for the page's script, with every text that it may have to show."""
    return [
        {
            "name": model.name, "source": model.source, "dims": model.dims,
            "bytes": [f"{vector_bytes(dim):,}" for dim in model.dims],
            "curves": [
                {"metric": c.metric, "split": c.split, "dims": c.dims, "kept": c.kept, "error": c.error,
                 "database": c.database, "texts": [c.text(i) for i in range(len(c.dims))],
                 "flops": [f"{mflops(c.database, dim):.3g}" for dim in model.dims]}
                for c in model.curves
            ],
        }
        for model in models
    ]  # fmt: skip


def _smallest(model: Subject, curves: Sequence[Kept], keep: float, errors: float = 0.0) -> int | None:
    """The smallest dim that every curve was measured at and keeps."""
    common = [dim for dim in model.dims if all(dim in curve.dims for curve in curves)]
    each = [curve.smallest(model.dims, keep, errors) for curve in curves]
    if not curves or None in each:
        return None
    return next((dim for dim in common if dim >= max(dim for dim in each if dim)), None)


def _on(choice: Choice, curves: Sequence[Kept]) -> str:
    metrics, splits = ({*names} for names in zip(*((c.metric, c.split) for c in curves), strict=True))
    metric = f"each of {len(metrics)} metrics" if choice.metric == ALL and len(metrics) > 1 else curves[0].metric
    split = f"each of {len(splits)} splits" if choice.split == ALL and len(splits) > 1 else curves[0].split
    return f"by {metric} on {split}"


def _warning(model: Subject, curves: Sequence[Kept], keep: float) -> str:
    """The metric on which the splits disagree most, with its easiest and its hardest split."""
    text, most = "", 1.0
    for metric in dict.fromkeys(curve.metric for curve in curves):
        # No dim suffices: worse than the full dim.
        needs = [(c.smallest(model.dims, keep) or 2 * model.full, c.split) for c in curves if c.metric == metric]
        (low, easy), (high, hard) = min(needs, key=lambda n: n[0]), max(needs, key=lambda n: n[0])
        if high / low > most:
            most, needed = high / low, f"{high} are needed" if high <= model.full else "no dim suffices"
            text = f"The splits disagree: by {metric}, {low} dims suffice on {easy}, but {needed} on {hard}."
    return text


def _table(model: Subject, keep: float) -> list[list[str]]:
    metrics = list(dict.fromkeys(curve.metric for curve in model.curves))
    lines = [["split", *metrics]]
    for split in dict.fromkeys(curve.split for curve in model.curves):
        cells = {c.metric: c.smallest(model.dims, keep) for c in model.curves if c.split == split}
        lines.append([split, *(str(cells[m] or "none") if m in cells else "–" for m in metrics)])
    return lines


def _cost(unit: str, part: str, whole: str) -> str:
    return f"{part} {unit}" if part == whole else f"{part} instead of {whole} {unit}"


def _source(name: str, names: Collection[str]) -> str:
    """The model that a baseline is made from, under the name of its family ("fixed" for "fixed-512") if need be."""
    source = source_of(name)
    family = re.sub(r"[- ]\d+$", "", source)
    return family if source not in names and family in names else source


def _subject(name: str, source: str, curves: Sequence[Kept], trained: set[int]) -> Subject:
    measured = {dim for curve in curves for dim in curve.dims}
    chosen = trained & measured
    return Subject(name, source, tuple(sorted(chosen if len(chosen) > 1 else measured)), tuple(curves))


@dataclass(frozen=True)
class _Values:
    """A metric by seed and dim."""

    by_seed: Mapping[int | None, Mapping[int, float]]
    queries: int
    database: int
    variance: Callable[[float, int], float]

    @classmethod
    def of(
        cls, group: Group[Any], each: Sequence[Mapping[int, float | None]], queries: int, database: int,
        variance: Callable[[float, int], float] = sampling_variance,
    ) -> _Values:  # fmt: skip
        known = [{dim: y for dim, y in by_dim.items() if y is not None} for by_dim in each]
        return cls(dict(zip((row.seed for row in group.rows), known, strict=True)), queries, database, variance)

    @property
    def dims(self) -> list[int]:
        """The dims that every seed has."""
        return sorted(set.intersection(*({*by_dim} for by_dim in self.by_seed.values())))

    def mean(self, dim: int) -> float:
        return float(np.mean([by_dim[dim] for by_dim in self.by_seed.values()]))


def _kept(metric: str, split: str, values: _Values, reference: _Values) -> Kept:
    full = reference.dims[-1]
    whole = reference.mean(full)
    kept, error = [], []
    for dim in values.dims:
        share = values.mean(dim) / whole
        kept.append(share)
        error.append(0.0 if values is reference and dim == full else _error(values, reference, dim, full, share))
    quality = tuple(values.mean(dim) for dim in values.dims)
    return Kept(metric, split, tuple(values.dims), quality, tuple(kept), tuple(error), values.database)


def _error(values: _Values, reference: _Values, dim: int, full: int, share: float) -> float:
    # Ratio estimator: the variance of y − share · y_full, paired by seed, divided by the mean of y_full squared.
    whole = reference.mean(full)
    paired = values.by_seed.keys() & reference.by_seed.keys()
    residuals = [values.by_seed[seed][dim] - share * reference.by_seed[seed][full] for seed in paired]
    over_seeds = float(np.var(residuals, ddof=1)) / len(residuals) if len(residuals) > 1 else 0.0
    over_queries = values.variance(values.mean(dim), values.queries) + share**2 * reference.variance(
        whole, reference.queries
    )
    return Z95 * math.sqrt(over_seeds + over_queries) / whole


def _spearman_variance(rho: float, pairs: int) -> float:
    """The variance of a rank correlation (Bonett and Wright, 2000)."""
    return (1 - rho**2) ** 2 * (1 + rho**2 / 2) / max(1, pairs - 3)

"""Metrics by dim, read from the figures of stored rows of any kind."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from matryo.arguments import checked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Figures indexed [axis][dims], by kind: the list that labels the outer axis, and the title of one of its rows.
_OUTER_AXES = {
    "few-shot": ("shots", "{metric} with {label} per class"),
    "stream": ("groups", "{metric} of {label}"),
    "robustness": ("splits", "{metric} on {label}"),
}
_PAIR_METRICS = {"hit": "hit", "recall": "recall", "ndcg": "nDCG", "mrr": "MRR"}
_SPREAD = re.compile(r"(^|_)(sd|margin)$")
_SHARE = re.compile(
    r"(^|[ _])(top\d+|(map|p|knn|recall|hit|ndcg|mrr)@\d+|\d+-nn|map10|"
    r"accuracy|single|fine|rejected|first_right|auc|oracle|head)"
    r"( (on|of|with) .*| .* → .*)?$",
    re.IGNORECASE,
)


@checked
def figures_by_dim(kind: str, figures: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    """Return ``figures`` of a row of ``kind`` as {title: {dim: value}}; see :meth:`Row.by_dim`.

    >>> figures_by_dim("probe", {"dims": [8, 16], "top1": [0.5, 0.75], "model": "mine"})
    {'top1': {8: 0.5, 16: 0.75}}
    >>> figures_by_dim("train", {"top1": {"val": {"8": 0.5}}, "seconds": 3.0})
    {'top1 on val': {8: 0.5}}
    """
    dims = figures.get("dims")
    if isinstance(dims, dict):   # evaluate: {dim: {metric: value}}
        columns: dict[str, dict[int, float]] = {}
        for dim, metrics in dims.items():
            for name, value in metrics.items():
                if type(value) in (int, float):
                    columns.setdefault(name, {})[int(dim)] = value
        return columns
    if isinstance(dims, list | tuple):
        return _by_listed_dims(kind, figures, dims)
    return {   # a training: {metric: {split: {dim: value}}}
        f"{metric} on {split}": {int(dim): value for dim, value in values.items()}
        for metric, splits in figures.items()
        if isinstance(splits, dict)
        for split, values in splits.items()
        if isinstance(values, dict) and values and all(str(dim).isdecimal() for dim in values)
    }


def _by_listed_dims(kind: str, figures: Mapping[str, Any], dims: Sequence[int]) -> dict[str, dict[int, float]]:
    columns: dict[str, dict[int, float]] = {}

    def add(title: str, values: Any) -> None:
        # Metrics are floats; lists of integers count something else and may be as long as dims by chance.
        listed = isinstance(values, list | tuple) and len(values) == len(dims)
        if listed and all(type(value) is float or value is None for value in values):
            present = {dim: value for dim, value in zip(dims, values, strict=True) if value is not None}
            columns.update({title: present} if present else {})

    if kind == "pairs":   # metric: [direction][dim][k]
        for direction, title in enumerate((" → ".join(figures["sides"]), " → ".join(figures["sides"][::-1]))):
            for key, name in _PAIR_METRICS.items():
                for place, k in enumerate(figures["ks"] if key in figures else ()):
                    add(f"{name}@{k} {title}", [at_dim[place] for at_dim in figures[key][direction]])
        return columns
    axis, pattern = _OUTER_AXES.get(kind, ("", ""))
    for name, values in figures.items():
        if _SPREAD.search(name) or (kind == "cascade" and name != "single"):   # whose other lists are by threshold
            continue
        if isinstance(values, dict):   # text-finetune: {dataset: {metric: [dims]}}
            for metric, inner in values.items():
                add(f"{metric} on {name}", inner)
        elif axis and isinstance(values, list | tuple) and values and isinstance(values[0], list | tuple):
            for label, inner in zip(figures[axis], values, strict=True):
                add(pattern.format(metric=name, label=label), inner)
        elif name != axis and name not in ("edges", "losses", "oracle" if kind == "robustness" else ""):
            add(name, values)
    return columns


@checked
def is_share(title: str) -> bool:
    """Whether the metric of :meth:`Row.by_dim` is a fraction of 1, to be shown in percent.

    >>> [is_share(title) for title in ("map@10", "top1 on val", "masked_loss on val", "mflops", "spearman")]
    [True, True, False, False, False]
    """
    return _SHARE.search(title) is not None


@checked
def infer_role(figures: Mapping[str, Any]) -> str:
    """Return the role of a row that was stored without one, as far as its figures show it.

    Baselines are named "model + method". An evaluation marks the dims trained at, and a training measures only those.
    Other rows do not record the nesting, so their role is unknown.
    """
    if " + " in str(figures.get("model", "")):
        return "post hoc"
    dims = figures.get("dims")
    if isinstance(dims, dict):
        trained = sum(isinstance(metrics, dict) and bool(metrics.get("trained")) for metrics in dims.values())
    elif dims is None and (columns := figures_by_dim("train", figures)):
        trained = max(map(len, columns.values()))
    else:
        return ""
    return "nested" if trained > 1 else "fixed"

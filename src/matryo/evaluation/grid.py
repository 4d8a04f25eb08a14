"""Grids: each metric after each number of layers and at each dim, from the results of one model that was cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matryo.tables import Block, Metric, number, percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matryo.evaluation.subject import Subject

COST = "MFLOPs/token"
"""The column of millions of multiply-adds per token or patch, where the manifest records them."""


def grids(results: Sequence[Any], subjects: Mapping[str, Subject], show: Sequence[str] | None = None) -> list[Block]:
    """Return a block per metric and split, with a line per model and a column per dim.

    Args:
        results: of one protocol; those of models that are not in ``subjects``, such as baselines, are left out.
        subjects: the same model after fewer layers and as a whole, by name.
        show: the titles of the metrics; an empty one is all, None those shown by default. Only percentages are shown.
    """
    lines: dict[tuple[str, str], dict[str, Mapping[Any, float | None]]] = {}
    for result in (result for result in results if result.model in subjects):
        for block in result.blocks():
            wanted = block.shown if show is None else show or [metric.title for metric in block.metrics]
            for metric in block.metrics:
                if metric.title in wanted and metric.text is percent:
                    title = f"{metric.title}, {block.name}" if block.name else metric.title
                    by_layers = lines.setdefault((block.where, title), {})
                    by_layers[_label(subjects[result.model])] = metric.values
    costs = {_label(subject): _about(subject).get("mflops_per_token") for subject in subjects.values()}
    return [
        Block("", where, f"{title} by layers and dim", [Metric(COST, costs, number), *_by_dim(values)], rows="layers")
        for (where, title), values in lines.items()
        if any(value is not None for by_dim in values.values() for value in by_dim.values())
    ]


def _by_dim(lines: Mapping[str, Mapping[Any, float | None]]) -> list[Metric]:
    dims = sorted({dim for values in lines.values() for dim in values})
    return [Metric(str(dim), {label: values.get(dim) for label, values in lines.items()}) for dim in dims]


def _label(subject: Subject) -> str:
    return str(_about(subject).get("layers", "all"))


def _about(subject: Subject) -> Mapping[str, Any]:
    model = subject.database.manifest.model
    return {} if isinstance(model, str) else model

"""The best nested recipe beside every fixed model, with the same map and without: who is ahead at each dim."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, stdev

from matryo.results import Row
from pages.markdown import grid, latest, spread
from pages.models import METRICS, ByColumn, seeds_by_column, series_of

# What the names of recipes add to that of the plain one: the best, and an older one whose norm fixed models had too.
BEST, NECK = "-best", "-neck"
RIVALS = ("fixed", "PCA", "SVD")
ABOUT = """**{best}, split `{split}`, {title}, against the best fixed model.** `fixed`, `PCA` and `SVD` are as above, of
the plain recipe; `with map` are those of {best}, whose fixed models have the same map after training. `with neck` are
those of {plain}-neck, an earlier version of {best} with a batch norm (`encoder.neck = "batch"`) instead of the map; the
commands of its rows call it {best}. The difference is to the highest of these columns, with its standard error."""


def best_tables(rows: list[Row]) -> list[str]:
    """For each metric of each recipe that has a best one, a table and a verdict."""
    parts = []
    for best, split, title, nested, rivals in comparisons(rows):
        lines = []
        for dim, values in sorted(nested.items()):
            gap, error, name = difference(values, rivals, dim)
            at = [spread(by_dim.get(dim, []), 1) for by_dim in rivals.values()]
            lines.append([f"{dim}", spread(values, 1), *at, f"{gap:+.2f} ± {error:.2f} ({name})"])
        parts += [ABOUT.format(best=best, plain=best.removesuffix(BEST), split=split, title=title)]
        parts += [grid(["dim", "nested", *rivals, "nested − best fixed"], lines), verdict(nested, rivals)]
    return parts


def comparisons(rows: list[Row]) -> Iterator[tuple[str, str, str, dict[int, list[float]], ByColumn]]:
    """Of each best recipe: its name, a split, a metric, the nested values, and those of fixed models and their maps."""
    kept = latest([row for row in rows if row.kind == "evaluate"], lambda row: (row.subject, row.seed))
    groups = dict.fromkeys((series_of(row.figures["model"]), row.figures["split"]) for row in kept)
    for best, split in groups:
        if not best.endswith(BEST):
            continue
        plain = best.removesuffix(BEST)
        for title, _, metric in METRICS:
            columns = {
                series: seeds_by_column(
                    [r for r in kept if (series_of(r.figures["model"]), r.figures["split"]) == (series, split)], metric
                )
                for series in (plain, best, plain + NECK)
            }   # fmt: skip
            rivals = {
                f"{name}{about}": found[name]
                for found, about in zip(columns.values(), ("", ", with map", ", with neck"), strict=True)
                for name in RIVALS if name in found
            }   # fmt: skip
            trained = {d: v for d, v in columns[best].get("MRL", {}).items() if any(d in r for r in rivals.values())}
            if trained:
                yield best, split, title, trained, rivals


def difference(values: list[float], rivals: ByColumn, dim: int) -> tuple[float, float, str]:
    """Nested − best rival in points, the standard error of that difference of means, and the name of the rival."""
    there = {name: by_dim[dim] for name, by_dim in rivals.items() if by_dim.get(dim)}
    name = max(there, key=lambda one: fmean(there[one]))
    error = sum(stdev(v) ** 2 / len(v) for v in (values, there[name]) if len(v) > 1) ** 0.5
    return fmean(values) - fmean(there[name]), error, name


def verdict(nested: dict[int, list[float]], rivals: ByColumn) -> str:
    """Where the nested model is as good as the best fixed one, within a standard error, and where it is not."""
    found = {dim: difference(values, rivals, dim) for dim, values in sorted(nested.items())}
    behind = [f"{dim} ({gap:+.2f})" for dim, (gap, error, _) in found.items() if gap < -error]
    if not behind:
        return "The nested model is at least as good at every dim, within one standard error."
    return f"The nested model is behind by more than one standard error at {', '.join(behind)}; not at the other dims."

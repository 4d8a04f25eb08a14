"""The page of settings that were compared on held-out vendors of the emoji: each beside the recipe as it is."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, stdev

from matryo.results import Row
from pages.markdown import grid, latest

METRIC = "1-NN"
ABOUT = """Each model is trained on the drawings of three of the four training vendors and measured on those of the
fourth, which is held out; the test splits are not used. 1-NN accuracy in percent: the mean over seeds for each vendor,
and the difference that the changed setting makes, which is the mean over all pairs of vendor and seed, with its
standard error. A pair is two runs with one vendor held out and one seed."""

Pairs = list[tuple[str, dict[int, float], dict[int, float]]]   # the vendor; percent by dim as it is, and changed


def settings_tables(rows: list[Row]) -> list[str]:
    """For each changed setting a table: dims down; the recipe, the setting and the difference across."""
    parts = [ABOUT]
    for setting, pairs in compared(rows):
        vendors = list(dict.fromkeys(vendor for vendor, *_ in pairs))
        heads = [f"{vendor}: {name}" for vendor in vendors for name in ("recipe", "changed")]
        lines = []
        for dim in sorted(pairs[0][1]):
            gap, error = difference(pairs, dim)
            of_vendors = [[pair for pair in pairs if pair[0] == vendor] for vendor in vendors]
            means = [
                mean for part in of_vendors
                for mean in (fmean(recipe[dim] for _, recipe, _ in part), fmean(changed[dim] for *_, changed in part))
            ]   # fmt: skip
            lines.append([f"{dim}", *(f"{mean:.1f}" for mean in means), f"{gap:+.2f} ± {error:.2f}"])
        seeds = ", ".join(f"{sum(pair[0] == vendor for pair in pairs)} of {vendor}" for vendor in vendors)
        parts += [f"**{setting}.** {len(pairs)} pairs of runs: {seeds}."]
        parts += [grid(["dim", *heads, "changed − recipe"], lines)]
    return parts


def compared(rows: list[Row]) -> Iterator[tuple[str, Pairs]]:
    """Each changed setting, with its runs beside those of the recipe for the vendors and seeds that both have."""
    found: dict[str, dict[tuple[str, int | None], dict[int, float]]] = {}
    for row in latest(rows, lambda row: (name_of(row), row.figures["held_out"], row.seed)):
        by_dim = {int(dim): 100 * value for dim, value in row.figures[METRIC].items()}
        found.setdefault(name_of(row), {})[row.figures["held_out"], row.seed] = by_dim
    recipe = found.pop("", {})
    for setting, runs in found.items():
        pairs = [(key[0], recipe[key], runs[key]) for key in sorted(runs, key=str) if key in recipe]
        if pairs:
            yield setting, pairs


def name_of(row: Row) -> str:
    """The changed fields; empty for the recipe as it is."""
    return ", ".join(f"{field} = {value}" for field, value in row.figures["changed"].items())


def difference(pairs: Pairs, dim: int) -> tuple[float, float]:
    """The mean difference in points over all pairs, and its standard error."""
    gaps = [changed[dim] - recipe[dim] for _, recipe, changed in pairs]
    return fmean(gaps), stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else float("nan")


def finding(rows: list[Row]) -> str:
    """Of each setting, where it gains and where it loses more than its standard error."""
    parts = []
    for setting, pairs in compared(rows):
        found = {dim: difference(pairs, dim) for dim in sorted(pairs[0][1])}
        better = [f"{dim} ({gap:+.1f})" for dim, (gap, error) in found.items() if gap > error]
        worse = [f"{dim} ({gap:+.1f})" for dim, (gap, error) in found.items() if gap < -error]
        parts.append(
            f"`{setting}` changes 1-NN accuracy on held-out vendors by more than one standard error "
            f"for the better at {', '.join(better) or 'no dim'}, for the worse at {', '.join(worse) or 'no dim'}."
        )
    return " ".join(parts)


MAKERS = {"settings": settings_tables}

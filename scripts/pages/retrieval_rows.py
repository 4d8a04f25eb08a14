"""Rows of retrieval: which of them count, how they compare, and how they are spelt on a page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from matryo.results import Row

RECALLS = (0.95, 0.99, 1.0)
EXACT = 0.99995   # the recall from which on all counts as found
ALIKE = 0.001   # mAP@10 that counts as equal


# ── which ─────────────────────────────────────────────────────────────────────────────────────────────────────


def newest(rows: Iterable[Row]) -> list[Row]:
    """Of each index of each engine on each database, the rows of its last run."""
    kept: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        key = row.subject, row.hardware, row.figures["engine"], json.dumps(row.figures["build"], sort_keys=True)
        if key in kept and kept[key][0].figures["run"] != row.figures["run"]:
            del kept[key]   # in the order of the new run
        kept.setdefault(key, []).append(row)
    return [row for group in kept.values() for row in group]


def databases(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    """By what was searched, on what machine; smaller ones first."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(newest(rows), key=lambda row: row.figures["count"]):
        found.setdefault((row.subject, row.hardware), []).append(row)
    return found


def shown(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    """The databases, but only the largest of those that differ in size only: growth shows the others."""
    grown = {name: max(row.figures["count"] for row in group) for name, group in families(rows).items()}
    return {key: here for key, here in databases(rows).items()
            if here[0].figures["count"] == grown.get(family(here[0]), here[0].figures["count"])}  # fmt: skip


def best(rows: Iterable[Row], good: Callable[[Row], bool]) -> Row | None:
    """The quickest of those that are good."""
    return max((row for row in rows if good(row)), key=lambda row: row.figures["qps"], default=None)


def enough(row: Row, recall: float) -> bool:
    """Whether the recall is reached."""
    return bool(row.figures["recall@10"] >= min(recall, EXACT))


def as_good(row: Row, exact: float) -> bool:
    """Whether mAP@10 is that of exact search, or nearly."""
    return bool(row.figures["map@10"] >= exact - ALIKE)


def by_engine(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each engine."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.figures["engine"], []).append(row)
    return found


def ratio(slow: Row, rows: Iterable[Row], like: Callable[[Row], bool]) -> float | None:
    """How many times longer a row took than the quickest of those like that, within turns of its own group."""
    same = [row for row in rows if like(row) and together(row, slow)]
    quick = max(same, key=lambda row: row.figures["qps"], default=None)
    return None if quick is None else times_slower(slow, quick)


def times_slower(slow: Row, quick: Row) -> float:
    """The median over turns of the ratio within a turn."""
    return float(median(a / b for a, b in zip(slow.figures["turns"], quick.figures["turns"], strict=True)))


def together(one: Row, other: Row) -> bool:
    """Whether two rows were measured in turns."""
    return all(one.figures[name] == other.figures[name] for name in ("run", "group"))


def family(row: Row) -> str:
    """The kind of database, whatever its size."""
    return f"{row.subject.rpartition(', ')[0]}, {row.figures['dim']} dims"


def families(rows: list[Row]) -> dict[str, list[Row]]:
    """Rows of databases that differ in their size alone, where there are three sizes or more."""
    found: dict[str, list[Row]] = {}
    for row in newest(rows):
        found.setdefault(family(row), []).append(row)
    return {name: group for name, group in found.items() if len({row.figures["count"] for row in group}) > 2}


# ── words ─────────────────────────────────────────────────────────────────────────────────────────────────────


def setting(figures: dict[str, Any]) -> str:
    """How an index was built and asked, short."""
    told = () if "plan" not in figures["ask"] else ("dim", "dtype")   # by its stages; as the vectors are
    said = {name: value for name, value in figures["build"].items() if name not in told}
    said |= {name: value for name, value in figures["ask"].items() if name != "plan"}
    words = [f"{name} {value}" for name, value in said.items()]
    if plan := figures["ask"].get("plan"):
        small = {"int8": "i"}
        stages = [f"{s['dim']}{small.get(s.get('precision'), '')}:{s['keep']}" for s in plan["stages"]]
        words += [" → ".join(stages), *(f"{name} {plan[name]}" for name in ("probe", "ef") if name in plan)]
    return ", ".join(words)


def stem(subject: str) -> str:
    """A file name.

    >>> stem("tiny-imagenet-rn18 separate, 100,000 × 512")
    'retrieval-tiny-imagenet-rn18-separate-100000-512'
    """
    return "retrieval-" + re.sub(r"[^a-z0-9]+", "-", subject.lower().replace(",", "")).strip("-")


def size(count: float) -> str:
    """Bytes, in the unit that suits them.

    >>> size(64e6), size(1500)
    ('64 MB', '1.5 kB')
    """
    unit, name = next((one for one in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if count >= one[0]), (1, "B"))
    return f"{count / unit:.3g} {name}"


def speed(count: float) -> str:
    """Queries a second.

    >>> speed(13192.7), speed(2.466)
    ('13,193', '2.5')
    """
    return f"{count:,.0f}" if count >= 10 else f"{count:.1f}"

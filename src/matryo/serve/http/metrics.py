"""Counters and histograms in the text format of Prometheus.

>>> metrics = Metrics()
>>> metrics.count("requests_total", route="/v1/models", status=200)
>>> metrics.observe("request_seconds", 0.02, route="/v1/models")
>>> print(metrics.text().splitlines()[2])
matryo_requests_total{route="/v1/models",status="200"} 1
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Metrics", "merged"]

_HELP = {
    "requests_total": "Answers by route and status.",
    "request_seconds": "Seconds from the head of a request to its answer.",
    "tokens_total": "Tokens that models have read.",
    "batch_cost": "Tokens of a forward pass, or queries of a batch of searches.",
    "batch_seconds": "Seconds of a forward pass, or of a batch of searches.",
    "rows_written_total": "Rows upserted, loaded or deleted, after their commit.",
    "queue_cost": "Tokens or queries that wait.",
    "body_bytes": "Bytes of request bodies that are held.",
    "errors_total": "Errors of the server itself.",
    "hedged_total": "Requests to a shard that another replica was sent too.",
    "shard_failures_total": "Requests to a replica that it did not answer.",
    "partial_total": "Searches that were answered without some of the shards.",
    "refused_total": "Searches that were refused because shards did not answer.",
    "shards_up": "Shards with a replica that is up.",
}
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_COSTS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0)
_Labels = tuple[tuple[str, str], ...]


class Metrics:
    """The measurements of one process."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[_Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._histograms: dict[str, dict[_Labels, list[float]]] = defaultdict(dict)
        self._gauges: dict[str, dict[_Labels, Callable[[], float]]] = defaultdict(dict)

    def count(self, name: str, by: float = 1, **labels: Any) -> None:
        """Add to a counter."""
        self._counts[name][_labels(labels)] += by

    def gauge(self, name: str, value: Callable[[], float], **labels: Any) -> None:
        """Report ``value()`` from now on."""
        self._gauges[name][_labels(labels)] = value

    def observe(self, name: str, value: float, **labels: Any) -> None:
        """Add a value to a histogram: the counts of its buckets, then the sum."""
        bounds, key = _bounds(name), _labels(labels)
        cells = self._histograms[name].get(key)
        if cells is None:
            cells = self._histograms[name][key] = [0.0] * (len(bounds) + 2)
        cells[bisect_left(bounds, value)] += 1
        cells[-1] += value

    def text(self) -> str:
        """All measurements as text."""
        lines: list[str] = []
        for name, counts in sorted(self._counts.items()):
            lines += _head(name, "counter")
            lines += [_sample(name, labels, value) for labels, value in sorted(counts.items())]
        for name, gauges in sorted(self._gauges.items()):
            lines += _head(name, "gauge")
            lines += [_sample(name, labels, value()) for labels, value in sorted(gauges.items())]
        for name, histograms in sorted(self._histograms.items()):
            lines += _head(name, "histogram")
            for labels, cells in sorted(histograms.items()):
                total = 0.0
                for bound, cell in zip([*map(str, _bounds(name)), "+Inf"], cells, strict=False):
                    total += cell
                    lines.append(_sample(f"{name}_bucket", (*labels, ("le", bound)), total))
                lines += [_sample(f"{name}_sum", labels, cells[-1]), _sample(f"{name}_count", labels, total)]
        return "\n".join(lines) + "\n"


def merged(texts: Iterable[str]) -> str:
    """The measurements of several processes as one text: samples with the same name and labels are added."""
    heads: dict[str, str] = {}
    order: list[str] = []
    sums: dict[str, float] = {}
    for text in texts:
        for line in text.splitlines():
            if line.startswith("#"):
                key = line
                heads.setdefault(line, line)
            else:
                key, _, value = line.rpartition(" ")
                sums[key] = sums.get(key, 0.0) + float(value)
            if key not in order:
                order.append(key)
    # A sample that only a later process has belongs below the head of its name.
    order.sort(key=lambda key: key.split()[2] if key.startswith("#") else _family(key, heads))
    return "\n".join(heads[key] if key in heads else f"{key} {_number(sums[key])}" for key in order) + "\n"


def _family(sample: str, heads: dict[str, str]) -> str:
    name = sample.partition("{")[0]
    known = {head.split()[2] for head in heads}
    return name if name in known else name.rpartition("_")[0]


def _bounds(name: str) -> tuple[float, ...]:
    return _SECONDS if name.endswith("_seconds") else _COSTS


def _labels(labels: dict[str, Any]) -> _Labels:
    return _as_texts(tuple(labels.items()))


@lru_cache(maxsize=4096)   # every request counts under a few labels
def _as_texts(labels: tuple[tuple[str, Any], ...]) -> _Labels:
    return tuple((name, str(value)) for name, value in labels)


def _head(name: str, kind: str) -> list[str]:
    return [f"# HELP matryo_{name} {_HELP[name]}", f"# TYPE matryo_{name} {kind}"]


def _sample(name: str, labels: _Labels, value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"matryo_{name}{{{inside}}} {_number(value)}" if inside else f"matryo_{name} {_number(value)}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

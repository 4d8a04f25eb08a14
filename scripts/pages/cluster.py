"""The page of clusters and routers, and the estimate for a billion vectors, computed from measured constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matryo.results import Row
from pages.markdown import grid, latest

MARKS = ("<!-- estimate -->", "<!-- /estimate -->")
NOTES = """*Two machines* are two nodes of a Ray cluster on one computer (`ray.cluster_utils.Cluster`), of which one is
killed while the job runs. The encoding applies a small network to random features, and writes labels too; the
evaluation searches 500 queries at 5 dims. *Files equal* counts the files of the gathered embeddings whose bytes are
those of one process. *Scaling* has the same work with one worker and with two; the evaluation of 500 queries takes
less time than its workers need to start, so it shows nothing about scaling.
*One core* has the constants of the estimate in [More than one machine](../scale.md). *Router* is a simulation in
virtual time with the code of the router: the times of answers are drawn from those measured on a real shard over HTTP,
and each replica does one request at a time and is busy for 30 % of the time. The pauses (50 ms, once in 5 seconds per
replica) and the slow replica (10 times slower, one of 128) are assumptions."""


def tables(rows: list[Row]) -> list[str]:
    """One table per measurement, and one that compares the cases of the router."""
    parts = [NOTES]
    shown = latest(rows, lambda row: row.subject)
    for row in shown:
        if not row.subject.startswith("router"):
            parts.append(f"## {row.subject}")
            parts.append(grid(["", ""], [[name, _text(value)] for name, value in row.figures.items()]))
    routers = [row for row in shown if row.subject.startswith("router")]
    if routers:
        parts.append("## A router of many shards, simulated")
        parts.append(_routers(routers))
    return parts


def finding(rows: list[Row]) -> str:
    """What a killed machine changes, how two workers scale, and what hedging does to the tail."""
    said = []
    jobs = _figures(rows, "two machines")
    if jobs:
        same = jobs["files equal"] == jobs["files"] and jobs["evaluations equal"]
        equal = "identical to" if same else "unlike"
        said.append(f"With a machine killed midway, results are {equal} those of one process")
    scaling = _figures(rows, "scaling")
    if scaling:
        said.append(f"two workers encode {scaling['encode, 2 workers / 1']:.2f} times as fast as one")
    pauses = _figures(rows, "router", "with pauses")
    if pauses:
        before, after = (pauses[f"{way} hedging, p99, ms"] for way in ("without", "with"))
        said.append(f"hedged requests change the p99 of 64 shards with pauses from {before:.1f} to {after:.1f} ms")
    return "; ".join(said) + "." if said else "Work on a cluster, and searches behind a router."


@dataclass(frozen=True)
class Assumed:
    """What the estimate assumes; everything else is measured."""

    rows: float = 1e9
    dim: int = 1024
    bytes: int = 2
    """Per number: float16."""
    nodes: int = 64
    cores: int = 32
    gpu_rows: float = 1500.0
    """Rows that one GPU encodes per second."""
    gpu_price: float = 4.0
    """Dollars per hour of a node with a GPU."""
    cpu_price: float = 1.6
    queries: int = 10_000
    """Of the evaluation."""


def estimate(rows: list[Row]) -> str:
    """The table of docs/scale.md: hours, dollars and bytes for a billion vectors on 64 nodes."""
    measured = _figures(rows, "one core")
    if not measured:
        return "No constants are measured yet."
    a, scaling = Assumed(), _figures(rows, "scaling")
    share = scaling.get("encode, 2 workers / 1", 2.0) / 2
    cores = a.nodes * a.cores * share
    shard = a.rows / a.nodes
    grown = (shard / 100_000) ** 0.5   # partitions are assigned among 4 √n means
    hours = {
        "encode (GPUs)": a.rows / (a.gpu_rows * a.nodes) / 3600,
        "write the parts": a.rows / (measured["rows written per second"] * a.nodes) / 3600,
        "fit a rotation": a.rows / (measured["rows of moments per second"] * cores) / 3600,
        f"evaluate {a.queries:,} queries at 5 dims":
            a.rows * a.queries / (measured["pairs at all dims per second"] * cores) / 3600,
        f"build {a.nodes} shards with partitions":
            a.rows / (measured["rows indexed per second"] / grown * cores) / 3600,
    }   # fmt: skip
    lines = []
    for name, took in hours.items():
        price = a.gpu_price if "GPU" in name else a.cpu_price
        lines.append([name, _hours(took), f"${took * a.nodes * price:,.0f}"])
    vectors, index = a.rows * a.dim * a.bytes, a.rows * measured["bytes per row of the index"]
    facts = [
        f"Vectors: {vectors / 1e12:.2f} TB in {a.bytes * 8}-bit floats. Index: {index / 1e12:.2f} TB, "
        f"{index / a.nodes / 1e9:.0f} GB per node.",
        f"Measured on one core, per second: {measured['rows written per second']:,} rows written, "
        f"{measured['rows of moments per second']:,} rows added to a covariance, "
        f"{measured['pairs at all dims per second'] / 1e6:,.0f} million pairs compared at 5 dims, "
        f"{measured['rows indexed per second']:,} rows indexed (at 100,000 rows).",
        f"Assumed: {a.nodes} nodes of {a.cores} cores and a GPU that encodes {a.gpu_rows:,.0f} rows per second; "
        f"${a.gpu_price:g} per hour of a node with its GPU, ${a.cpu_price:g} without; each further core does "
        f"{share:.0%} of the work of the first, as the second did here; one core per node writes; indexing slows down "
        f"by {grown:.0f} from 100,000 to {shard / 1e6:.1f} million rows per shard, as the square root.",
    ]
    return grid(["step", "time", "cost"], lines) + "\n\n" + "\n".join(f"- {fact}" for fact in facts)


def _routers(routers: list[Row]) -> str:
    lines: list[list[str]] = []
    for row in routers:
        case = row.subject.rsplit(", ", 1)[1]
        lines += [[case, way, *(f"{row.figures[f'{way}, p{q}, ms']:.1f}" for q in (50, 90, 99)),
                   f"{row.figures[f'{way}, requests per shard and search']:.3f}"]
                  for way in ("without hedging", "with hedging")]  # fmt: skip
    return grid(["case", "", "p50, ms", "p90, ms", "p99, ms", "requests per shard and search"], lines)


def _figures(rows: list[Row], start: str, end: str = "") -> dict[str, Any]:
    found = [row.figures for row in latest(rows, lambda row: row.subject)
             if row.subject.startswith(start) and row.subject.endswith(end)]  # fmt: skip
    return found[-1] if found else {}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if isinstance(value, float) else str(value)


def _hours(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min" if hours * 60 >= 1 else f"{3600 * hours:.0f} s"


MAKERS = {"cluster": tables}

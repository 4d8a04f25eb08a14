"""The page of the HTTP server: embeddings beside other servers, search beside the library, and load."""

from __future__ import annotations

from typing import Any

from matryo.results import Row
from pages.markdown import grid, latest

NOTES = """*Embeddings*: texts of 4 to 64 words, sent by clients on the same cores; "8 × 1" is 8 clients that each send
one text per request, and the next one when the answer is there. *Encode alone* is `SentenceTransformer.encode` of 256
texts at a time, without a server. They are measured in turns, and a ratio is the median of the ratios within a round.
*Search*: the server has one core and its clients another; "8 clients × 32" is 8 clients that each send 32 queries per
request. *In process* is `Index.search`, called in a loop on one core with 1 or 32 queries. *Constant answers* are the
answers of uvicorn alone and of Starlette to the same requests, without a search: the ceiling of HTTP.
*Load*: requests arrive at random times, at half of the rate that 8 clients reach, and then at 8 times that rate.
Latencies are in milliseconds."""


def tables(rows: list[Row]) -> list[str]:
    """Throughput and latency of each measurement."""
    parts = [NOTES]
    for row in latest(rows, lambda row: row.subject):
        measured = {name: value for name, value in row.figures.items() if isinstance(value, dict)}
        parts.append(f"## {row.subject}")
        if measured:
            lines = [[name, *(_cell(value, key) for key in ("per_second", "p50", "p99"))]
                     for name, value in measured.items()]  # fmt: skip
            parts.append(grid(["", "per second", "p50", "p99"], lines))
        rest = (f"{name}: {value}" for name, value in row.figures.items() if name not in measured)
        facts = [*_facts(measured), *rest]
        if facts:
            parts.append("\n".join(f"- {fact}" for fact in facts))
    return parts


def _cell(value: dict[str, Any], key: str) -> str:
    if key not in value:
        return "–"
    return f"{value[key]:,.1f}" if key == "per_second" else f"{value[key]:.2f}"


def _facts(measured: dict[str, dict[str, Any]]) -> list[str]:
    """What a measurement says beyond its speed."""
    facts = []
    for name, value in measured.items():
        rest = {key: fact for key, fact in value.items() if key not in ("per_second", "p50", "p99", "bytes")}
        if rest:
            facts.append(f"{name}: " + ", ".join(f"{key} {_words(fact)}" for key, fact in rest.items()))
    return facts


def _words(fact: Any) -> str:
    if isinstance(fact, dict):
        return "; ".join(f"{status}: {count:,}" for status, count in fact.items())
    return f"{fact:,}"


def finding(rows: list[Row]) -> str:
    """The throughput beside that of the library and of the other server."""
    shown = [row.figures for row in latest(rows, lambda row: row.subject)]
    texts = next((figures for figures in shown if "encode alone" in figures), None)
    if texts is None:
        return "An HTTP server for embeddings and search."
    loads = ("8 × 1", "32 × 1", "4 × 32")
    ours = [texts[f"matryo / encode: {load}"] for load in loads]
    said = f"Under load, the server embeds {min(ours):.2f} to {max(ours):.2f} times as many texts per second as"
    said += " `SentenceTransformer.encode` alone"
    if f"matryo / infinity: {loads[0]}" in texts:
        others = [texts[f"matryo / infinity: {load}"] for load in loads]
        said += f", and {min(others):.1f} to {max(others):.1f} times as many as infinity 0.0.78"
    return f"{said}."


MAKERS = {"serve": tables}

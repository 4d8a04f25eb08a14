"""The table of a choice as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.tables import Column, as_text, percent

if TYPE_CHECKING:
    from matryo.retrieve.compress.compression import Compression


def described(compression: Compression) -> str:
    """Return the code in one line, the table of the candidates, and why one of them was taken."""
    facts, fitted = compression.provenance, compression.fitted
    ratio = 4 * compression.dim / compression.bytes_per_vector
    first = (f"{compression.code} in {fitted.codec.dim} dims of the rotation {fitted.rotation}: "
             f"{compression.bytes_per_vector} bytes per vector instead of {4 * compression.dim}, {ratio:.1f} × smaller")
    if not compression.table:
        return f"{first}; fitted on {facts.get('rows', 0):,} vectors, nothing was measured"
    table = compression.table
    what = "recall" if facts.get("quality") == "recall" else "nDCG"
    about = (f"{what}@{facts.get('k')} in percent: {facts.get('tests'):,} held-out queries, {facts.get('database'):,} "
             f"of {facts.get('rows'):,} vectors; lower bounds hold together with {facts.get('confidence'):.0%} "
             "confidence")  # fmt: skip
    cells = {
        "code": [entry.code for entry in table], "dims": [str(entry.dim) for entry in table],
        "bytes": [str(entry.bytes) for entry in table],
        what: [percent(entry.quality) for entry in table], "lower": [percent(entry.lower) for entry in table],
        "re-ranked": [percent(entry.reranked) for entry in table],
        "lower ": [percent(entry.reranked_lower) for entry in table],
        "": ["taken" if entry.taken else "" for entry in table],
    }  # fmt: skip
    columns = [Column("", title, tuple(values)) for title, values in cells.items()]
    stub = Column("", "rotation", tuple(entry.rotation for entry in table))
    chosen = next(entry for entry in table if entry.taken)
    end = f"taken: {chosen.rotation} {chosen.code}, {compression.why}; full vectors have {percent(facts.get('full'))}"
    return "\n".join([first, about, as_text(stub, columns, 120, named=False), end])

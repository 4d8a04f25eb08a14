"""The card of an exported model: what it is, how it is loaded, and how good it is at every dim."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from matryo import __version__
from matryo.export.formats import FORMATS
from matryo.files import replacing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from matryo.results import Row
    from matryo.training.trained import TrainedModel

__all__ = ["write_card"]


def write_card(path: Path, model: TrainedModel, to: str, rows: Sequence[Row], name: str) -> None:
    """Write README.md with the front matter that hubs read."""
    about, dims, chosen = model.description, model.nesting.dims, FORMATS[to]
    lines = [
        "---",
        f"library_name: {to}",
        f"pipeline_tag: {chosen.task(model)}",
        "tags:",
        "- matryoshka",
        "- matryo",
        *(["- sentence-transformers"] if to == "sentence-transformers" else []),
        "---",
        "",
        f"# {name}",
        "",
        f"{about['name']}, encoder {_public(about['encoder'])}, seed {about['seed']}, matryo {__version__}.",
        "",
        _promise(dims),
        "",
        "```python",
        chosen.usage(model, name),
        "```",
    ]
    for row in rows:
        lines += _tables(row)
    with replacing(path) as file:
        file.write(("\n".join(lines) + "\n").encode())


def _promise(dims: Sequence[int]) -> str:
    if len(dims) == 1:
        return f"Its vectors have {dims[0]} dimensions, all of which count: they were trained for no other number."
    smaller = f"{', '.join(map(str, dims[:-1]))} or {dims[-1]}"
    return f"Its vectors may be cut to their first {smaller} dimensions; normalise them after that."


def _tables(row: Row) -> Iterator[str]:
    """What a row says of each dim, with where it was measured."""
    figures = row.figures
    columns: dict[str, Mapping[int, Any]] = {}
    dims = figures.get("dims")
    if isinstance(dims, list | tuple):
        for key, values in figures.items():
            if key != "dims" and _is_numbers(values) and len(values) == len(dims):
                columns[key] = dict(zip(dims, values, strict=True))
    for key, splits in figures.items():   # a training's own: metric, split, dim
        for split, values in splits.items() if isinstance(splits, dict) else ():
            if isinstance(values, dict) and _is_numbers(list(values.values())):
                columns[f"{key} {split}"] = {int(dim): value for dim, value in values.items()}
    if not columns:
        return
    yield from ("", f"## {row.kind}: {row.subject}", "")
    yield "| dim | " + " | ".join(columns) + " |"
    yield "|---:" * (len(columns) + 1) + "|"
    for dim in sorted({dim for values in columns.values() for dim in values}):
        yield f"| {dim} | " + " | ".join(_shown(values.get(dim)) for values in columns.values()) + " |"
    yield ""
    yield f"`{_public(row.command)}`, {row.hardware}, matryo {row.versions.get('matryo', '?')} {row.commit}"


def _public(words: str) -> str:
    """Without the folders of this machine: bert:/home/me/minilm is bert:minilm."""
    return re.sub(r"(?<=:)/\S*/(?=[^/\s])", "", words)


def _is_numbers(values: Any) -> bool:
    kinds = (list, tuple)
    return isinstance(values, kinds) and bool(values) and all(type(value) in (int, float) for value in values)


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"

"""The model card (README.md) of an exported model: front matter, usage, and its stored results per dim."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from matryo import __version__
from matryo.export.formats import FORMATS
from matryo.files import replacing
from matryo.inference.model import TrainedModel
from matryo.results import Row, is_share

_HUB = re.compile(r"(timm|open_clip):hf-hub:(?P<id>[\w.-]+/[\w.-]+)")
_DEPTH = re.compile(r"@(\d+)")


def write_card(path: Path, model: TrainedModel, to: str, rows: Sequence[Row], name: str) -> None:
    """Write the card to ``path``, with the YAML front matter that model hubs read."""
    about, chosen = model.description, FORMATS[to]
    lines = [
        "---",
        f"library_name: {to}",
        f"pipeline_tag: {chosen.task(model)}",
        *_base_models(model),
        "tags:",
        "- matryoshka",
        "- matryo",
        *(["- sentence-transformers"] if to == "sentence-transformers" else []),
        "---",
        "",
        f"# {name}",
        "",
        f"Recipe {about['name']}, encoder {_without_folders(about['encoder'])}, seed {about['seed']}. "
        f"Exported with matryo {__version__}.",
        "",
        _truncation(model.nesting.dims),
        "",
        "```python",
        chosen.usage(model, name),
        "```",
    ]
    for row in rows:
        lines += _tables(row)
    with replacing(path) as file:
        file.write(("\n".join(lines) + "\n").encode())


def _base_models(model: TrainedModel) -> list[str]:
    """The front-matter lines with the hub models from whose weights the training started.

    Plain OWNER/NAME is not listed: it may have been a local folder.
    """
    recipe, ids = model.recipe, []
    for name in (recipe.encoder.name, recipe.text.encoder):
        library, _, inside = name.partition(":")
        if hub := _HUB.fullmatch(name):
            ids.append(hub["id"])
        elif library == "timm" and recipe.encoder.pretrained and importlib.util.find_spec("timm"):
            from timm.models import get_pretrained_cfg

            config = get_pretrained_cfg(inside) if ":" not in inside else None
            ids += [config.hf_hub_id] if config and config.hf_hub_id else []
    return ["base_model:", *(f"- {hub_id}" for hub_id in ids)] if ids else []


def _truncation(dims: Sequence[int]) -> str:
    if len(dims) == 1:
        return f"The model was trained for {dims[0]} dimensions only: do not truncate its vectors."
    smaller = f"{', '.join(map(str, dims[:-1]))} or {dims[-1]}"
    return f"Vectors may be truncated to their first {smaller} dimensions. Normalise them after truncation."


def _tables(row: Row) -> Iterator[str]:
    """The metrics of a row per dim, with the command and the hardware of the measurement."""
    columns = _columns(row)
    if not columns:
        return
    yield from ("", f"## {row.kind}: {row.subject}", "")
    yield "| dim | " + " | ".join(f"{title}, %" if is_share(title) else title for title in columns) + " |"
    yield "|---:" * (len(columns) + 1) + "|"
    for dim in sorted({dim for values in columns.values() for dim in values}):
        cells = (_cell(values.get(dim), is_share(title)) for title, values in columns.items())
        yield f"| {dim} | " + " | ".join(cells) + " |"
    yield ""
    version = f"matryo {row.versions.get('matryo', '?')} {row.commit}"
    yield f"Measured with `{_without_folders(row.command)}` on {row.hardware}, {version}."


def _columns(row: Row) -> dict[str, dict[int, float]]:
    """The metrics per dim that a card shows: of metrics at several depths k, that at 10 or the largest."""
    columns = row.by_dim()
    if row.kind == "evaluate":   # its other columns are costs, which do not describe the model
        columns = {title: values for title, values in columns.items() if is_share(title)}
    depths = {int(match[1]) for title in columns if (match := _DEPTH.search(title))}
    shown = str(10 if 10 in depths else max(depths, default=0))
    return {title: values for title, values in columns.items() if _DEPTH.findall(title) in ([], [shown])}


def _without_folders(text: str) -> str:
    """Shorten absolute paths, which are private: bert:/home/me/minilm becomes bert:minilm.

    >>> _without_folders("matryo train pets --data=/home/me/pets --encoder.name timm:hf-hub:owner/name")
    'matryo train pets --data=pets --encoder.name timm:hf-hub:owner/name'
    """
    return re.sub(r"(?<![\w.~-])/\S*/(?=[^/\s])", "", text)


def _cell(value: float | None, share: bool) -> str:
    return "" if value is None else f"{100 * value:.1f}" if share else f"{value:.4g}"

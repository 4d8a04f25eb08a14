"""The card of an exported model: what it is, how it is loaded, and how good it is at every dim."""

from __future__ import annotations

import importlib.util
import re
from typing import TYPE_CHECKING, Any

from matryo import __version__
from matryo.export.formats import FORMATS
from matryo.files import replacing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from matryo.inference.model import TrainedModel
    from matryo.results import Row

__all__ = ["is_card", "write_card"]

# Figures that are shares of 1, which a card shows in percent.
_SHARE = re.compile(r"(^|[ _])(top\d+|(map|p|knn|recall|hit)@\d+|accuracy|fine|rejected|first_right|auc|oracle)$")
_HUB = re.compile(r"(timm|open_clip):hf-hub:(?P<id>[\w.-]+/[\w.-]+)")
_PAIR_METRICS = {"hit": "hit", "recall": "recall", "ndcg": "nDCG", "mrr": "MRR"}


def write_card(path: Path, model: TrainedModel, to: str, rows: Sequence[Row], name: str) -> None:
    """Write README.md with the front matter that hubs read."""
    about, dims, chosen = model.description, model.nesting.dims, FORMATS[to]
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


def is_card(path: Path) -> bool:
    """Whether :func:`write_card` wrote it, of whatever model."""
    try:
        front = path.read_text(encoding="utf-8").split("---")[1]
    except (OSError, UnicodeDecodeError, IndexError):
        return False
    return {"- matryoshka", "- matryo"} <= set(front.splitlines())


def _base_models(model: TrainedModel) -> list[str]:
    """The models of the hub whose weights this one began with, as its front matter names them.

    Only those that no folder can be called like: owner/name may have been a folder where the model was trained.
    """
    recipe, found = model.recipe, []
    for name in (recipe.encoder.name, recipe.text.encoder):
        library, _, inside = name.partition(":")
        if hub := _HUB.fullmatch(name):
            found.append(hub["id"])
        elif library == "timm" and recipe.encoder.pretrained and importlib.util.find_spec("timm"):
            from timm.models import get_pretrained_cfg

            known = get_pretrained_cfg(inside) if ":" not in inside else None
            found += [known.hf_hub_id] if known and known.hf_hub_id else []
    return ["base_model:", *(f"- {one}" for one in found)] if found else []


def _promise(dims: Sequence[int]) -> str:
    if len(dims) == 1:
        return f"Its vectors have {dims[0]} dimensions, all of which count: they were trained for no other number."
    smaller = f"{', '.join(map(str, dims[:-1]))} or {dims[-1]}"
    return f"Its vectors may be cut to their first {smaller} dimensions; normalise them after that."


def _tables(row: Row) -> Iterator[str]:
    """What a row says of each dim, with where it was measured."""
    columns = _columns(row.figures)
    if not columns:
        return
    yield from ("", f"## {row.kind}: {row.subject}", "")
    yield "| dim | " + " | ".join(columns) + " |"
    yield "|---:" * (len(columns) + 1) + "|"
    for dim in sorted({dim for values in columns.values() for dim in values}):
        shown = (_shown(values.get(dim), name.endswith("%")) for name, values in columns.items())
        yield f"| {dim} | " + " | ".join(shown) + " |"
    yield ""
    yield f"`{_public(row.command)}`, {row.hardware}, matryo {row.versions.get('matryo', '?')} {row.commit}"


def _columns(figures: Mapping[str, Any]) -> dict[str, Mapping[int, Any]]:
    """The figures of every dim by their names, from any of the four shapes that rows have."""
    dims = figures.get("dims")
    if isinstance(dims, dict):   # of evaluate: dim, metric
        names = dict.fromkeys(name for one in dims.values() for name, value in one.items() if _is_numbers([value]))
        ks = {int(name.partition("@")[2]) for name in names if "@" in name}
        kept = [name for name in names if _SHARE.search(name) and name.partition("@")[2] in ("", str(_depth(ks)))]
        return {f"{name}, %": {int(dim): one.get(name) for dim, one in dims.items()} for name in kept}   # no megaflops
    if {"dims", "sides", "ks"} <= figures.keys():   # whose other lists may be as long as the dims by chance
        return _of_pairs(figures)
    columns: dict[str, Mapping[int, Any]] = {}
    if isinstance(dims, list | tuple):   # metric, then a list by dim
        for key, values in figures.items():
            if key != "dims" and _is_numbers(values) and len(values) == len(dims):
                columns[_titled(key)] = dict(zip(dims, values, strict=True))
    for key, splits in figures.items():   # a training's own: metric, split, dim
        for split, values in splits.items() if isinstance(splits, dict) else ():
            if isinstance(values, dict) and _is_numbers(list(values.values())):
                columns[_titled(key, f" on {split}")] = {int(dim): value for dim, value in values.items()}
    return columns


def _of_pairs(figures: Mapping[str, Any]) -> dict[str, Mapping[int, Any]]:
    """Metric, direction, dim, k: there and back, at one k."""
    dims, ks, (one, other) = figures["dims"], list(figures["ks"]), figures["sides"]
    k = _depth(ks)
    return {
        f"{name}@{k} {direction}, %": {dim: at[ks.index(k)] for dim, at in zip(dims, figures[key][place], strict=True)}
        for place, direction in enumerate((f"{one} → {other}", f"{other} → {one}"))
        for key, name in _PAIR_METRICS.items()
        if key in figures
    }


def _titled(key: str, where: str = "") -> str:
    return f"{key}{where}, %" if _SHARE.search(key) else f"{key}{where}"


def _depth(ks: Collection[int]) -> int:
    """The k that a card shows of several: 10, as papers do, or the largest."""
    return 10 if 10 in ks else max(ks, default=0)


def _public(words: str) -> str:
    """Without the folders of this machine: bert:/home/me/minilm is bert:minilm."""
    return re.sub(r"(?<=:)/\S*/(?=[^/\s])", "", words)


def _is_numbers(values: Any) -> bool:
    kinds = (list, tuple)
    return isinstance(values, kinds) and bool(values) and all(type(value) in (int, float) for value in values)


def _shown(value: float | None, share: bool) -> str:
    return "" if value is None else f"{100 * value:.1f}" if share else f"{value:.4g}"

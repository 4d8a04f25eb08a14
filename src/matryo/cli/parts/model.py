"""The model of an index: recorded when vectors are added, and loaded to encode queries that are texts or images."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.cli.parts.items import open_items
from matryo.data import TextRows
from matryo.data.images.listing import is_image
from matryo.embeddings.manifest import MANIFEST
from matryo.errors import InputError, MatryoError, shown
from matryo.nesting import truncate
from matryo.retrieve.store.origin import title_of
from matryo.training.run.paths import WEIGHTS, RunFolder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Floats
    from matryo.inference import TrainedModel
    from matryo.retrieve.shards.manifest import AnyIndex
    from matryo.retrieve.sources import Source

    Model = str | Mapping[str, Any]
    """As in the manifest of embeddings, with the path of the run as "run", and from the index as "run_from_index"."""

__all__ = ["are_vectors", "common_model", "encode_queries", "record_model"]

_ABOVE = 4   # folders between a run and its embeddings: RUN/width-0.5/embeddings/test/candidates
_SAMPLE = 64   # rows whose norms are looked at


# ── recording ─────────────────────────────────────────────────────────────────────────────────────────────────────


def common_model(args: argparse.Namespace, sources: Sequence[Source]) -> Model:
    """The one model of all sources, or of --model; "" if it is not known."""
    name = f"--model {args.model}"
    common: Model = _model_of_run(args.model, args.folder) if args.model else ""
    if sources:
        _check_dim(common, sources[0].dim, args)
    for source in sources:
        model = _model_of_source(source, args.folder)
        _check_same(common, model, (name, source.name))
        name, common = (name, _joined(model, common)) if common else (source.name, model)
    return common


def record_model(args: argparse.Namespace, index: AnyIndex, model: Model) -> None:
    """Record the model in the index; a SOURCE must be by the recorded one, and --model without a SOURCE replaces it."""
    recorded = index.model
    _check_dim(model, index.nesting.dim, args)
    if args.sources:
        _check_same(recorded, model, (args.folder, ", ".join(args.sources)))
    model = _joined(recorded, model)
    if model and model != recorded and (args.model or not recorded):
        index.set_model(model)


def _check_dim(model: Model, dim: int, args: argparse.Namespace) -> None:
    own = dim if isinstance(model, str) else model.get("dim", dim)
    if own < dim:
        rule, cure = f"the model must have the {dim} dims of {args.folder}", "name the run folder that encoded them"
        raise InputError(rule, got=f"{own} in {args.model}", cure=cure)


def _joined(known: Model, model: Model) -> Model:
    """``model`` with what is ``known`` about it; a run folder does not tell the width of a slimmable network."""
    same = not isinstance(known, str) and not isinstance(model, str) and known.get("weights") == model.get("weights")
    return {**known, **model} if same else model   # type: ignore[dict-item]


def _model_of_run(run: Path, index: Path) -> dict[str, Any]:
    """Return the facts that an index at the path ``index`` records about the model of a complete run folder."""
    folder = RunFolder(run)
    dims, recipe = folder.dims, folder.recipe   # in this order: dims need a complete run
    about = {"name": f"{recipe.name} {recipe.variant}", "seed": recipe.loop.seed, "dim": dims[-1]}
    return {**about, "weights": folder.digest, **_place(run, index)}


def _model_of_source(source: Source, index: Path) -> Model:
    """The model that a source records, with the run folder around it if that holds the same weights."""
    model = source.model
    if isinstance(model, str) or not model.get("weights"):
        return model
    path = Path(source.name)
    places = _run_places(model, path) if "run" in model else [*path.absolute().parents][:_ABOVE]
    run = next((place for place in places if _holds(place, model)), None)
    return model if run is None else {**model, **_place(run, index)}


def _check_same(first: Model, second: Model, names: tuple[object, object]) -> None:
    """Raise if both models are known and differ: in their names, or else in their weights or widths."""
    if isinstance(first, str) or isinstance(second, str):
        differ = bool(first and second) and isinstance(first, str) and isinstance(second, str) and first != second
    else:
        both = first.keys() & second.keys() & {"weights", "width"}
        differ = any(first[name] != second[name] for name in both)
    if differ:
        raise InputError(
            f"all vectors of an index must be by one model; those of {names[0]} are by {_title(first)}",
            got=f"{_title(second)} in {names[1]}",
            cure="encode every row with the same model, or create another index",
        )


def _title(model: Model) -> str:
    weights = "" if isinstance(model, str) else str(model.get("weights", ""))
    return (title_of(model) or "a model") + (f" (weights {weights[:8]}…)" if weights else "")


def _holds(run: Path, model: Mapping[str, Any]) -> bool:
    """Whether the run folder holds the weights of ``model``, by its record; in older runs, by their checksum."""
    folder = RunFolder(run)
    with suppress(MatryoError):
        weights = folder.complete and (folder.files[WEIGHTS].sha256 if WEIGHTS in folder.files else folder.digest)
        return bool(weights) and model.get("weights") in (None, weights)
    return False


def _place(run: Path, index: Path) -> dict[str, str]:
    """The path of the run, absolute and from the index: the second one holds if both are moved together."""
    return {"run": str(run.absolute()), "run_from_index": os.path.relpath(run, index)}


def _run_places(model: Mapping[str, Any], index: Path) -> list[Path]:
    """The paths at which the run folder of a recorded model may be."""
    return [Path(model["run"]), Path(os.path.normpath(index.absolute() / model.get("run_from_index", "")))]


# ── encoding ──────────────────────────────────────────────────────────────────────────────────────────────────────


def are_vectors(word: str, format: str | None) -> bool:
    """Whether ``word`` names vectors (a file, a folder, standard input) rather than a text, an image or a folder of it.

    A word that is no path is a text, unless it looks like the name of a missing file.
    """
    from matryo.retrieve.sources import SUFFIXES
    from matryo.retrieve.store.sql.database import DATABASE

    path, is_name = Path(word), not any(map(str.isspace, word))
    if word == "-" or format is not None:
        return True
    exists = _exists(path)
    if exists and path.is_dir():
        patterns = (DATABASE, MANIFEST, f"*/{MANIFEST}", f"embeddings/*/{MANIFEST}")
        return any(next(path.glob(pattern), None) for pattern in patterns)
    if path.suffix.lower() in SUFFIXES:
        return exists or is_name
    return exists and not _is_item(word)


def encode_queries(words: Sequence[str], index: AnyIndex, run: Path | None) -> tuple[list[str], Floats]:
    """Encode texts, or images and files of texts, with the model of the index; ``run`` replaces its recorded path."""
    if not all(word.strip() for word in words):
        raise InputError("a query must not be empty", got=repr(words[0]), cure="pass a text, an image or vectors")
    paths = [_is_path(word) for word in words]
    if any(paths) and not all(paths):
        got = f"{shown(words[paths.index(True)])} and {shown(words[paths.index(False)])}"
        raise InputError("queries must be all texts or all files", got=got, cure="search for one kind at a time")
    items: Any = open_items(words) if all(paths) else TextRows(words)
    texts = isinstance(items, TextRows)
    as_typed = len(items) == len(words) and not (texts and all(paths))   # one query per word
    names = list(words) if as_typed else [items.name(row) for row in range(len(items))]
    model = _load(index, run, words[0])
    if not (model.tokenizer is not None if texts else model.reads_images):
        own, other = ("texts", "images") if model.tokenizer is not None else ("images", "texts")
        cure = "pass a text in quotes" if own == "texts" else "pass the path of an image"
        raise InputError(f"the model of {index.given} reads {own}, not {other}", got=shown(words[0]), cure=cure)
    vectors = np.concatenate([vectors for vectors, _ in model.embed(items)])
    return names, truncate(vectors, index.nesting.dim, _are_unit(index))


def _is_path(word: str) -> bool:
    is_name = not any(map(str.isspace, word))
    return _exists(Path(word)) or (is_name and _is_item(word))


def _exists(path: Path) -> bool:
    with suppress(OSError, ValueError):   # a long text is no path
        return path.exists()
    return False


def _is_item(word: str) -> bool:
    return is_image(word) or word.lower().endswith(".txt")


def _are_unit(index: AnyIndex) -> bool:
    """Whether the vectors of the index have norm 1, so that queries need it too."""
    _, vectors = index.sample(min(_SAMPLE, len(index)), seed=0)
    return bool(np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=0.01))


def _load(index: AnyIndex, run: Path | None, word: str) -> TrainedModel:
    """Load the model of the index, and check that it is the one that made the vectors."""
    from matryo.inference import load

    model = index.model
    facts: Mapping[str, Any] = {} if isinstance(model, str) else model
    folder = run or _recorded_run(index, model, word)
    loaded = load(folder, width=facts.get("width", 1.0))
    if facts.get("weights") not in (None, loaded.weights):
        raise InputError(
            f"{folder} holds another model than the one that made the vectors of {index.given}",
            got=f"weights {loaded.weights[:8]}…, recorded {facts['weights'][:8]}…",
            cure="pass the run folder of that model with --model RUN, or encode and index the data again",
        )
    if loaded.nesting.dim < index.nesting.dim:
        raise InputError(
            f"the model must have the {index.nesting.dim} dims of {index.given}",
            got=f"{loaded.nesting.dim} in {folder}",
            cure="pass the run folder that encoded the vectors: --model RUN",
        )
    return loaded


def _recorded_run(index: AnyIndex, model: Model, word: str) -> Path:
    if isinstance(model, str) or "run" not in model:
        known = f"recorded without its run folder: {_title(model)}" if model else "not recorded"
        raise InputError(
            f"texts and images need the model of {index.given}, which is {known}",
            got=shown(word) + ("" if _exists(Path(word)) else ", which is not a file"),
            cure=f"pass its run folder: --model RUN (matryo index {index.given} --model RUN records it), or pass "
            "vectors (.npy, .jsonl, …)",
        )
    places = _run_places(model, index.path)
    found = [place for place in places if RunFolder(place).complete]
    if found:
        return next((place for place in found if _holds(place, model)), found[0])
    raise InputError(
        f"the model of {index.given} must be in its run folder",
        got=f"{places[0]}, which holds no run",
        cure=f"restore it, or record its new place: matryo index {index.given} --model RUN",
    )

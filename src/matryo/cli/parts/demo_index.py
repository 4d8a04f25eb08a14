"""`matryo demo --serve`: an index of the drawings per model, with names and pictures, and the server of both."""

from __future__ import annotations

import argparse
import base64
import shutil
from typing import TYPE_CHECKING, Any

from matryo.embeddings.manifest import MANIFEST
from matryo.errors import MatryoError, MissingExtra
from matryo.progress import tqdm
from matryo.training.run.paths import RunFolder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matryo.retrieve import Index

__all__ = ["check_server", "index_drawings", "is_encoded", "serve_drawings"]

_SPLITS = ("flat", "twemoji", "train")   # words find the first drawing of an emoji: one that training did not see
_SHOWN = "name,style,tags,image"
_BATCH = 2000


def check_server(port: int) -> None:
    """Raise if the server could not start."""
    from matryo.serve.run import Address, listen

    with MissingExtra.unless_installed("uvicorn", "serve"):
        import uvicorn  # noqa: F401
    with MissingExtra.unless_installed("orjson", "serve"):
        import orjson  # noqa: F401
    listen(Address(port=port)).close()


def is_encoded(run: Path) -> bool:
    """Whether the run is complete, and its drawings are encoded."""
    return RunFolder(run).complete and all((run / "embeddings" / split / MANIFEST).is_file() for split in _SPLITS)


def serve_drawings(runs: Sequence[Path], out: Path, port: int, *, quiet: bool) -> None:
    """Index the drawings of each run in ``out``, and serve the runs and the indexes until a signal."""
    from matryo.cli import serve
    from matryo.data.bundled.emoji import emoji

    names = [run.name.removeprefix("demo-") for run in runs]
    for run, name in zip(runs, names, strict=True):
        index_drawings(run, out / name, quiet=quiet)
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    words = [f"{name}={run}" for run, name in zip(runs, names, strict=True)]
    words += [word for name in names for word in ("--index", f"{name}={out / name}")]
    args = parser.parse_args([*words, "--show", _SHOWN, "--group", "group", "--port", str(port), "--quiet"])
    args.credits = emoji().credits
    print("explore the drawings in a browser; Ctrl-C ends the server", flush=True)
    serve.run(args)


def index_drawings(run: Path, folder: Path, *, quiet: bool) -> None:
    """Write the index of the drawings of a run, unless it is there already."""
    from matryo.retrieve import Index

    if _is_current(run, folder):
        return
    if Index.exists(folder):
        shutil.rmtree(folder)   # of older weights
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    with Index.create(partial, _dims(run)) as index:
        _add(index, run, quiet=quiet)
        index.compact()
        index.build()
    partial.rename(folder)


def _is_current(run: Path, folder: Path) -> bool:
    from matryo.retrieve import Index

    try:
        with Index.open(folder) as index:
            model = index.model
            return not isinstance(model, str) and model.get("weights") == RunFolder(run).digest
    except MatryoError:
        return False


def _dims(run: Path) -> tuple[int, ...]:
    """The dims of the nested run, at which the fixed one is truncated."""
    dims = RunFolder(run).dims
    powers = tuple(2**power for power in range(3, dims[-1].bit_length()) if 2**power < dims[-1])
    return dims if len(dims) > 1 else (*powers, dims[-1])


def _add(index: Index, run: Path, *, quiet: bool) -> None:
    from matryo.data.bundled.emoji import emoji, emoji_names
    from matryo.embeddings import EmbeddingSet

    drawings, names = emoji(), emoji_names()
    sets = {split: EmbeddingSet.open(run / "embeddings" / split) for split in _SPLITS}
    total = sum(map(len, sets.values()))
    with tqdm(desc="index", total=total, unit="drawing", delay=2, disable=quiet) as bar:
        for split, encoded in sets.items():
            images = drawings.split(split)
            rows = {images.name(row): row for row in range(len(images))}
            for start in range(0, len(encoded), _BATCH):
                ids = [str(id) for id in encoded.ids[start : start + _BATCH]]
                payload = [_payload(images, rows[id], names[images.labels[rows[id]]]) for id in ids]
                index.add(encoded.vectors[start : start + _BATCH], ids, payload)
                bar.update(len(ids))
    index.set_model({"name": run.name, "dim": index.nesting.dim, "weights": RunFolder(run).digest,
                     "run": str(run.absolute())})  # fmt: skip


def _payload(images: Any, row: int, about: Any) -> dict[str, Any]:
    content = images.encoded(row)
    kind = "webp" if content[8:12] == b"WEBP" else "png"
    url = f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"
    return {"name": about.name, "style": images.name(row).split("/")[0], "tags": ", ".join(about.tags),
            "group": about.group, "image": url}  # fmt: skip

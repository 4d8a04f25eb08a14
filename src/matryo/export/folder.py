"""A trained model into a folder of another library's format: whole or absent, with a card that says what it is."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from matryo.errors import InputError
from matryo.export.card import write_card
from matryo.export.formats import find_format
from matryo.files import storage, swap_in
from matryo.results import Row
from matryo.training.run import read_run
from matryo.training.trained import TrainedModel, load

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["export"]


def export(
    model: TrainedModel | str | Path,
    to: str,
    out: str | Path,
    *,
    rows: Sequence[Row] = (),
    name: str = "",
    width: float = 1.0,
    overwrite: bool = False,
) -> Path:
    """Write ``model`` to the folder ``out`` as the library ``to`` reads it.

    Args:
        model: a run folder, or what :func:`matryo.load` gave.
        to: ``sentence-transformers``, ``transformers``, ``timm``, ``open_clip`` or ``onnx``.
        out: the folder; it appears when it is complete.
        rows: stored results of the model, for the tables of its card. A run folder has one of its own.
        name: what the card calls it, by default the name of the folder ``out``.
        width: which width of a slimmable network, if ``model`` is its run folder.
        overwrite: replace what is there.

    >>> export("runs/text", "sentence-transformers", "hub/text")   # doctest: +SKIP
    """
    known, out = list(rows), Path(out)
    if not isinstance(model, TrainedModel):
        run = Path(model)
        model = load(run, device="cpu", width=width)
        known.insert(0, Row(**read_run(run)["row"]))
    chosen = find_format(to, model)
    if out.exists() and not overwrite and (not out.is_dir() or any(out.iterdir())):
        raise InputError("what is there is not replaced", got=out, cure="choose another --out, or pass --overwrite")
    with storage(out):
        begun = out.parent / f".{out.name}.{secrets.token_hex(4)}.tmp"
        begun.mkdir(parents=True)
        try:
            chosen.write(model, begun)
            write_card(begun / "README.md", model, to, known, name or out.resolve().name)
            _sync(begun)
            swap_in(begun, out)
        except BaseException:
            shutil.rmtree(begun, ignore_errors=True)
            raise
    return out


def _sync(folder: Path) -> None:
    """Bring to the disk what other libraries wrote: a power cut must not leave a folder with empty files."""
    for path in folder.rglob("*"):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

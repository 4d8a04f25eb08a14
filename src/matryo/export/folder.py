"""A trained model into a folder of another library's format: whole or absent, with a card that says what it is."""

from __future__ import annotations

import glob
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from matryo.errors import InputError
from matryo.export.card import is_card, write_card
from matryo.export.formats import find_format
from matryo.files import lock, storage, swap_in
from matryo.inference.model import TrainedModel, load
from matryo.results import Row
from matryo.training.run.paths import RunFolder

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["export"]

CARD = "README.md"


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
        overwrite: replace the export that is there; what no export wrote is never replaced.

    >>> export("runs/text", "sentence-transformers", "hub/text")   # doctest: +SKIP
    """
    known, out, run = list(rows), Path(out), None
    if not isinstance(model, TrainedModel):
        run = Path(model)
        model = load(run, device="cpu", width=width)
        known.insert(0, RunFolder(run).row)
    chosen = find_format(to, model)
    place = out.resolve()
    _check_free(place, run, overwrite)
    with storage(out):
        place.parent.mkdir(parents=True, exist_ok=True)
        _sweep(place)
        begun = place.with_name(f".{place.name}.{secrets.token_hex(4)}.tmp")
        begun.mkdir()
        held = lock(begun)
        try:
            chosen.write(model, begun)
            write_card(begun / CARD, model, to, known, name or place.name)
            _sync(begun)
            _check_free(place, run, overwrite)   # writing took a while
            swap_in(begun, place)
        except BaseException:
            shutil.rmtree(begun, ignore_errors=True)
            raise
        finally:
            os.close(held)
    return out


def _check_free(place: Path, run: Path | None, overwrite: bool) -> None:
    """Nothing is there, or an export that may be replaced, with neither the run nor a history of its own in it."""
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return
    holds_run = run is not None and run.resolve().is_relative_to(place)
    if holds_run or not is_card(place / CARD) or (place / ".git").exists():
        rule = "what is there is not replaced, as it is not an export alone"
        raise InputError(rule, got=place, cure="choose another --out")
    if not overwrite:
        raise InputError("what is there is not replaced", got=place, cure="choose another --out, or pass --overwrite")


def _sweep(place: Path) -> None:
    """Remove what exports to the same place were writing when they were killed; one that lives holds a lock."""
    for stray in place.parent.glob(f".{glob.escape(place.name)}.{'[0-9a-f]' * 8}.tmp"):
        try:
            held = lock(stray)
        except OSError:
            continue
        shutil.rmtree(stray, ignore_errors=True)
        os.close(held)


def _sync(folder: Path) -> None:
    """Bring to the disk what other libraries wrote: a power cut must not leave a folder with empty files."""
    for path in folder.rglob("*"):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

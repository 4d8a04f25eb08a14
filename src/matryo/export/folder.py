"""Write a trained model to a folder in another library's format, atomically, with a model card."""

from __future__ import annotations

import glob
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from matryo.errors import InputError
from matryo.export.card import is_card, write_card
from matryo.export.formats import find_format
from matryo.files import lock, storage, swap_in, sync_folder
from matryo.inference.model import TrainedModel, load
from matryo.results import Row
from matryo.training.run.paths import RunFolder

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
        model: a run folder, or a model of :func:`matryo.load`.
        to: ``sentence-transformers``, ``transformers``, ``timm``, ``open_clip`` or ``onnx``.
        out: the folder. It appears when it is complete.
        rows: stored results of the model, for the tables of the card. The row of a run folder is always included.
        name: the name of the model in the card; by default that of the folder ``out``.
        width: the width of a slimmable network, if ``model`` is a run folder.
        overwrite: replace an earlier export. Folders that are not exports are never replaced.

    >>> export("runs/text", "sentence-transformers", "hub/text")   # doctest: +SKIP
    """
    rows, out, run = list(rows), Path(out), None
    if not isinstance(model, TrainedModel):
        run = Path(model)
        model = load(run, device="cpu", width=width)
        rows.insert(0, RunFolder(run).row)
    format_ = find_format(to, model)
    target = out.resolve()
    _check_free(target, run, overwrite)
    with storage(out):
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_strays(target)
        work = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        work.mkdir()
        handle = lock(work)
        try:
            format_.write(model, work)
            write_card(work / CARD, model, to, rows, name or target.name)
            for path in work.rglob("*"):   # other libraries do not flush: a power cut could leave empty files
                sync_folder(path)
            _check_free(target, run, overwrite)   # again, because writing takes a while
            swap_in(work, target)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        finally:
            os.close(handle)
    return out


def _check_free(target: Path, run: Path | None, overwrite: bool) -> None:
    """Raise unless ``target`` is free or an export that may be replaced. An export never contains the run or .git."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    holds_run = run is not None and run.resolve().is_relative_to(target)
    if holds_run or not is_card(target / CARD) or (target / ".git").exists():
        rule = "the folder exists and holds more than an export"
        raise InputError(rule, got=target, cure="choose another --out")
    if not overwrite:
        raise InputError("the export already exists", got=target, cure="choose another --out, or pass --force")


def _remove_strays(target: Path) -> None:
    """Remove the unfinished folders of killed exports to ``target``; running exports hold a lock on theirs."""
    for stray in target.parent.glob(f".{glob.escape(target.name)}.{'[0-9a-f]' * 8}.tmp"):
        try:
            handle = lock(stray)
        except OSError:
            continue
        shutil.rmtree(stray, ignore_errors=True)
        os.close(handle)

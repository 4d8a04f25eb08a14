"""Write a trained model to a folder in another library's format, atomically, with a model card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matryo.arguments import checked
from matryo.errors import InputError
from matryo.export.card import write_card
from matryo.export.formats import find_format
from matryo.files import resolve, storage
from matryo.folders import foreign, replacing_folder, restore, write_record
from matryo.inference.model import TrainedModel, load
from matryo.results import Row
from matryo.training.run.paths import RunFolder

CARD = "README.md"


@checked
def export(
    model: TrainedModel | str | Path,
    to: str,
    out: str | Path,
    *,
    rows: Sequence[Row] = (),
    name: str = "",
    width: float = 1.0,
    layers: int | None = None,
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
        layers: export only the first layers of a BERT or ViT, if ``model`` is a run folder; None exports all.
        overwrite: replace an earlier export. A folder is never replaced if it holds files that no export wrote, or
            that were changed since.

    >>> export("runs/text", "sentence-transformers", "hub/text")   # doctest: +SKIP
    """
    rows, out = list(rows), Path(out)
    if not isinstance(model, TrainedModel):
        run = Path(model)
        model = load(run, device="cpu", width=width, layers=layers)
        rows.insert(0, RunFolder(run).row)
    format_ = find_format(to, model)
    target = resolve(out)
    _check_free(target, overwrite)
    with replacing_folder(target) as work:
        format_.write(model, work)
        write_card(work / CARD, model, to, rows, name or target.name)
        write_record(work, "export")
        _check_free(target, overwrite)   # again, because writing takes a while
    return out


def _check_free(target: Path, overwrite: bool) -> None:
    """Raise unless ``target`` is free, or holds the files of an export that may be replaced and nothing else."""
    with storage(target):
        restore(target)
        if not target.exists() or (target.is_dir() and not any(target.iterdir())):
            return
        strange = foreign(target, "export")
    if strange:
        raise InputError(
            f"{target} must be free, or hold an export as it was written",
            got=", ".join(strange[:4]),
            cure="choose another --out, or move your files away",
        )
    if not overwrite:
        raise InputError("the export already exists", got=target, cure="choose another --out, or pass --force")

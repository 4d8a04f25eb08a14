"""The folder of a compression: compression.safetensors holds its arrays, compression.json its choice and its origin.

`matryo compress --out` writes the codes beside them: codes.npy, uint8 [rows, bytes], and ids.json if there are ids.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

import matryo
from matryo.errors import InputError
from matryo.files import new_file, parse_json, sha256, storage, write_json
from matryo.folders import foreign, replacing_folder, restore, write_record
from matryo.retrieve.compress.choosing import Candidate
from matryo.retrieve.compress.codes.codecs import Product, Scalars
from matryo.retrieve.compress.codes.fitted import Fitted

if TYPE_CHECKING:
    from matryo.retrieve.compress.compression import Compression

FORMAT = 1
"""The version of the folder; it increases when older versions of matryo cannot read the new one."""
KIND, CODES, IDS = "compression", "codes.npy", "ids.json"
_ARRAYS, _ABOUT = "compression.safetensors", "compression.json"
_ORTHONORMAL = 1e-3   # the largest entry of axesᵀ axes − 1


def check_free(path: str | Path, *, force: bool = False) -> None:
    """Raise unless a compression may be written to ``path``: it is new, or holds a compression and nothing else."""
    place = Path(path)
    restore(place)
    if place.exists() and not place.is_dir():
        raise InputError(f"{place} is a file", cure="choose the name of a folder")
    if place.is_dir() and any(place.iterdir()) and not force:
        strange = foreign(place, KIND)
        if strange:
            raise InputError(f"{place} is not a compression", got=strange[0], cure="choose another folder")


def save(compression: Compression, path: str | Path, *, force: bool = False) -> None:
    """Write the folder of ``compression``; an older one at ``path`` is replaced in one step."""
    check_free(path, force=force)
    with replacing_folder(Path(path)) as work:
        write_into(work, compression)
        write_record(work, KIND)
        check_free(path, force=force)


def write_into(work: Path, compression: Compression) -> None:
    """Write the two files of a compression into the folder ``work``."""
    with new_file(work / _ARRAYS) as file:
        file.write(save_tensors(as_tensors(compression)))
    write_json(work / _ABOUT, as_json(compression) | {"sha256": sha256(work / _ARRAYS)})


def as_tensors(compression: Compression) -> dict[str, Any]:
    """The arrays."""
    fitted = compression.fitted
    tensors: dict[str, Any] = {"axes": np.ascontiguousarray(fitted.axes, np.float32)}
    if fitted.mean is not None:
        tensors["mean"] = np.ascontiguousarray(fitted.mean, np.float32)
    return tensors | {name: np.ascontiguousarray(array) for name, array in fitted.codec.arrays().items()}


def as_json(compression: Compression) -> dict[str, Any]:
    """Everything but the arrays."""
    codec = compression.fitted.codec
    return {
        "format": FORMAT, "matryo": matryo.__version__, "metric": compression.metric, "code": codec.name,
        "bits": codec.bits if isinstance(codec, Scalars) else None, "dim": codec.dim,
        "bytes": codec.bytes_per_row, "rotation": compression.fitted.rotation, "why": compression.why,
        "table": [vars(entry) for entry in compression.table], "provenance": dict(compression.provenance),
    }  # fmt: skip


def load(path: str | Path) -> Compression:
    """Read the folder that :func:`save` wrote."""
    place = Path(path)
    restore(place)
    if not (place / _ABOUT).is_file() or not (place / _ARRAYS).is_file():
        cure = "write one: matryo compress SOURCE --out FOLDER"
        raise InputError("there is no compression in this folder", got=place, cure=cure)
    try:
        with storage(place, "read"):
            about, tensors = parse_json((place / _ABOUT).read_bytes()), (place / _ARRAYS).read_bytes()
        if sha256(place / _ARRAYS) != about["sha256"]:
            raise ValueError("other bytes than were written")
        return rebuilt(about, load_tensors(tensors))
    except (KeyError, TypeError, ValueError, AttributeError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        cure = "restore it from a copy, or fit the compression again"
        raise InputError(f"{place} is damaged", got=error, cure=cure) from error


def rebuilt(about: dict[str, Any], tensors: dict[str, Any]) -> Compression:
    """Return the compression of :func:`as_json` and :func:`as_tensors`."""
    from matryo.retrieve.compress.compression import Compression

    if about["format"] > FORMAT:
        rule = "this compression was written by a newer version of matryo"
        raise InputError(rule, got=f"format {about['format']}", cure="pip install --upgrade matryo")
    metric = about["metric"]
    codec: Product | Scalars | None = None
    if metric not in ("cosine", "ip", "l2"):
        raise ValueError(f"the metric {metric}")
    if about["code"] == "product":
        codec = Product.of_arrays(tensors["centroids"], tensors["widths"])
    elif about["bits"] in (1, 4, 8, 16):
        codec = Scalars(int(about["dim"]), about["bits"], metric != "cosine")
    axes, mean = tensors["axes"], tensors.get("mean")
    if codec is None or codec.bytes_per_row != about["bytes"] or axes.ndim != 2 or axes.shape[1] != codec.dim:
        raise ValueError("arrays that do not fit the code")
    if not np.isfinite(axes).all() or np.abs(axes.T @ axes - np.eye(codec.dim)).max() > _ORTHONORMAL:
        raise ValueError("axes that are not orthonormal")
    if mean is not None and (mean.shape != (len(axes),) or not np.isfinite(mean).all()):
        raise ValueError("a mean of another shape")
    table = tuple(Candidate(**entry) for entry in about["table"])
    fitted = Fitted(about["rotation"], axes, mean, codec)
    return Compression(fitted, metric, table, about["why"], about["provenance"])

"""The folder of a map: retrofit.safetensors holds its matrices, retrofit.json its choice, its table and its origin."""

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
from matryo.folders import foreign, replacing_folder, write_record
from matryo.nesting import Nesting
from matryo.retrofit.choice import Taken
from matryo.retrofit.held_out import Rung
from matryo.retrofit.moments import Moments

if TYPE_CHECKING:
    from matryo.retrofit.retrofit import Retrofit

FORMAT = 1
"""The version of the folder; it increases when older versions of matryo cannot read the new one."""
_KIND, _ARRAYS, _ABOUT = "retrofit", "retrofit.safetensors", "retrofit.json"
_ORTHOGONAL = 1e-3   # the largest entry of axesᵀ axes − 1 that a map from outside may have


def check_free(path: str | Path, *, force: bool = False) -> None:
    """Raise unless a map may be written to ``path``: it is new, or holds a map and nothing else."""
    place = Path(path)
    if place.is_file():
        raise InputError(f"{place} is a file", cure="choose the name of a folder")
    if place.is_dir() and any(place.iterdir()) and not force:
        strange = foreign(place, _KIND)
        if strange:
            raise InputError(f"{place} is not a map of retrofit", got=strange[0], cure="choose another folder")


def save(retrofit: Retrofit, path: str | Path, *, force: bool = False) -> None:
    """Write the folder of ``retrofit``; an older map at ``path`` is replaced in one step."""
    check_free(path, force=force)
    with replacing_folder(Path(path)) as work:
        with new_file(work / _ARRAYS) as file:
            file.write(save_tensors(as_tensors(retrofit)))
        write_json(work / _ABOUT, as_json(retrofit) | {"sha256": sha256(work / _ARRAYS)})
        write_record(work, _KIND)
        check_free(path, force=force)


def load(path: str | Path) -> Retrofit:
    """Read the folder that :func:`save` wrote."""
    place = Path(path)
    if not (place / _ABOUT).is_file() or not (place / _ARRAYS).is_file():
        cure = "write one: matryo retrofit SOURCE --out MAP"
        raise InputError("there is no map in this folder", got=place, cure=cure)
    try:
        with storage(place, "read"):
            about, tensors = parse_json((place / _ABOUT).read_bytes()), (place / _ARRAYS).read_bytes()
        if sha256(place / _ARRAYS) != about["sha256"]:
            raise ValueError("other bytes than were written")
        return rebuilt(about, load_tensors(tensors))
    except (KeyError, TypeError, ValueError, AttributeError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        cure = "restore it from a copy, or fit the map again"
        raise InputError(f"{place} is damaged", got=error, cure=cure) from error


def as_tensors(retrofit: Retrofit, *, moments: bool = True) -> dict[str, Any]:
    """The matrices of a map by name."""
    tensors: dict[str, Any] = {}
    for name, rung in retrofit.rungs.items():
        tensors[f"{name}.axes"] = np.ascontiguousarray(rung.axes, np.float32)
        if rung.mean is not None:
            tensors[f"{name}.mean"] = np.ascontiguousarray(rung.mean, np.float32)
    if moments and retrofit.moments is not None:
        arrays = retrofit.moments.arrays()
        tensors |= {f"moments.{name}": np.ascontiguousarray(array) for name, array in arrays.items()}
    return tensors


def as_json(retrofit: Retrofit) -> dict[str, Any]:
    """Everything but the matrices."""
    table = [vars(entry) | {"quality": dict(entry.quality)} for entry in retrofit.table]
    energy = {str(dim): share for dim, share in retrofit.energy.items()}
    return {
        "format": FORMAT, "matryo": matryo.__version__, "rung": retrofit.rung, "metric": retrofit.metric,
        "nesting": {"dims": list(retrofit.nesting.dims), "weights": list(retrofit.nesting.weights)},
        "provenance": dict(retrofit.provenance) | {"energy": energy}, "table": table,
    }  # fmt: skip


def rebuilt(about: dict[str, Any], tensors: dict[str, Any]) -> Retrofit:
    """The map of :func:`as_json` and :func:`as_tensors`; raise for matrices that are no rotation."""
    from matryo.retrofit.retrofit import Retrofit

    if about["format"] > FORMAT:
        rule = "this map was written by a newer version of matryo"
        raise InputError(rule, got=f"format {about['format']}", cure="pip install --upgrade matryo")
    nesting = Nesting(about["nesting"]["dims"], about["nesting"]["weights"])
    rungs = {}
    for key in tensors:
        name, _, part = key.rpartition(".")
        if part == "axes" and name != "moments":
            rungs[name] = Rung(name, check_orthogonal(tensors[key], nesting.dim), tensors.get(f"{name}.mean"))
    moments = {name.removeprefix("moments."): array for name, array in tensors.items() if name.startswith("moments.")}
    table = tuple(Taken(**entry) for entry in about["table"])
    if about["rung"] not in rungs or not {entry.rung for entry in table} <= set(rungs):
        raise ValueError("a rung without its matrix")
    return Retrofit(
        rungs, about["rung"], table, nesting, about["metric"], about["provenance"],
        Moments.of_arrays(moments) if moments else None,
    )  # fmt: skip


def check_orthogonal(axes: Any, dim: int) -> Any:
    """Return ``axes`` if it is an orthogonal matrix of ``dim`` columns, or raise."""
    if axes.shape != (dim, dim) or not np.isfinite(axes).all():
        raise ValueError(f"a matrix {axes.shape} instead of {(dim, dim)}")
    wide = axes.astype(np.float32)
    if np.abs(wide.T @ wide - np.eye(dim, dtype=np.float32)).max() > _ORTHOGONAL:
        raise ValueError("a matrix that is not orthogonal")
    return axes

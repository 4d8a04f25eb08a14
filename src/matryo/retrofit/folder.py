"""The folder of a map: KIND.safetensors holds its matrices, KIND.json its choice, its table and its origin.

There are two kinds, ``retrofit`` and ``migration``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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
from matryo.retrofit.correction import Correction
from matryo.retrofit.held_out import Rung
from matryo.retrofit.moments import Moments

if TYPE_CHECKING:
    from collections.abc import Callable

    from matryo.retrofit.retrofit import Retrofit

Made = TypeVar("Made")
FORMAT = 2
"""The version of the folder; it increases when older versions of matryo cannot read the new one.

Format 2 is written for maps with an adaptor only."""
_KIND = "retrofit"
_TITLES = {"retrofit": "map", "migration": "migration"}
_VERBS = {"retrofit": "matryo retrofit SOURCE --map MAP", "migration": "matryo retrofit OLD --migrate NEW --map MAP"}
_ORTHOGONAL = 1e-3   # the largest entry of axesᵀ axes − 1 that a map from outside may have


def check_free(path: str | Path, *, force: bool = False, kind: str = _KIND) -> None:
    """Raise unless a map may be written to ``path``: it is new, or holds a map of this ``kind`` and nothing else."""
    place = Path(path)
    if place.is_file():
        raise InputError(f"{place} is a file", cure="choose the name of a folder")
    if place.is_dir() and any(place.iterdir()) and not force:
        strange = foreign(place, kind)
        if strange:
            raise InputError(f"{place} is not a map of {kind}", got=strange[0], cure="choose another folder")


def save(retrofit: Retrofit, path: str | Path, *, force: bool = False) -> None:
    """Write the folder of ``retrofit``; an older map at ``path`` is replaced in one step."""
    write_folder(path, _KIND, as_tensors(retrofit), as_json(retrofit), force=force)


def load(path: str | Path) -> Retrofit:
    """Read the folder that :func:`save` wrote."""
    return read_folder(path, _KIND, rebuilt)


def write_folder(
    path: str | Path, kind: str, tensors: dict[str, Any], about: dict[str, Any], *, force: bool = False
) -> None:
    """Write the folder of a map; an older one at ``path`` is replaced in one step."""
    check_free(path, force=force, kind=kind)
    with replacing_folder(Path(path)) as work:
        arrays = work / f"{kind}.safetensors"
        with new_file(arrays) as file:
            file.write(save_tensors(tensors))
        write_json(work / f"{kind}.json", about | {"matryo": matryo.__version__, "sha256": sha256(arrays)})
        write_record(work, kind)
        check_free(path, force=force, kind=kind)


def read_folder(
    path: str | Path, kind: str, rebuild: Callable[[dict[str, Any], dict[str, Any]], Made]
) -> Made:
    """Read the folder that :func:`write_folder` wrote, and ``rebuild`` the map from its JSON and its matrices."""
    place = Path(path)
    arrays, facts = place / f"{kind}.safetensors", place / f"{kind}.json"
    if not facts.is_file() or not arrays.is_file():
        other = next((name for name in _VERBS if (place / f"{name}.json").is_file()), None)
        got = place if other is None else f"a {other} in {place}"
        raise InputError(f"there is no {_TITLES[kind]} in this folder", got=got, cure=f"write one: {_VERBS[kind]}")
    try:
        with storage(place, "read"):
            about, tensors = parse_json(facts.read_bytes()), arrays.read_bytes()
        if sha256(arrays) != about["sha256"]:
            raise ValueError("other bytes than were written")
        return rebuild(about, load_tensors(tensors))
    except (KeyError, TypeError, ValueError, AttributeError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        cure = "restore it from a copy, or fit the map again"
        raise InputError(f"{place} is damaged", got=error, cure=cure) from error


def check_format(about: dict[str, Any], newest: int) -> None:
    """Raise if the JSON of a map has a format that this version does not know."""
    if about["format"] > newest:
        rule = "this map was written by a newer version of matryo"
        raise InputError(rule, got=f"format {about['format']}", cure="pip install --upgrade matryo")


def as_tensors(retrofit: Retrofit, *, moments: bool = True) -> dict[str, Any]:
    """The matrices of a map by name."""
    tensors: dict[str, Any] = {}
    for name, rung in retrofit.rungs.items():
        tensors[f"{name}.axes"] = np.ascontiguousarray(rung.axes, np.float32)
        if rung.mean is not None:
            tensors[f"{name}.mean"] = np.ascontiguousarray(rung.mean, np.float32)
        if rung.correction is not None:
            tensors |= rung.correction.tensors(f"{name}.")
    if moments and retrofit.moments is not None:
        arrays = retrofit.moments.arrays()
        tensors |= {f"moments.{name}": np.ascontiguousarray(array) for name, array in arrays.items()}
    return tensors


def as_json(retrofit: Retrofit) -> dict[str, Any]:
    """Everything but the matrices."""
    table = [vars(entry) | {"quality": dict(entry.quality)} for entry in retrofit.table]
    energy = {str(dim): share for dim, share in retrofit.energy.items()}
    adapts = any(rung.correction is not None for rung in retrofit.rungs.values())
    return {
        "format": FORMAT if adapts else 1, "rung": retrofit.rung, "metric": retrofit.metric,
        "nesting": {"dims": list(retrofit.nesting.dims), "weights": list(retrofit.nesting.weights)},
        "provenance": dict(retrofit.provenance) | {"energy": energy}, "table": table,
    }  # fmt: skip


def rebuilt(about: dict[str, Any], tensors: dict[str, Any]) -> Retrofit:
    """The map of :func:`as_json` and :func:`as_tensors`; raise for matrices that are no rotation."""
    from matryo.retrofit.retrofit import Retrofit

    check_format(about, FORMAT)
    nesting = Nesting(about["nesting"]["dims"], about["nesting"]["weights"])
    rungs = {}
    for key in tensors:
        name, _, part = key.rpartition(".")
        if part == "axes" and name != "moments":
            axes = check_orthogonal(tensors[key], nesting.dim)
            correction = Correction.of_tensors(tensors, f"{name}.", nesting.dim, nesting.dim)
            rungs[name] = Rung(name, axes, tensors.get(f"{name}.mean"), correction)
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

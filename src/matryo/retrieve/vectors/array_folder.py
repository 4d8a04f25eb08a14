"""A folder of arrays that appears complete or not at all: one ``.npy`` per array, and a header with checksums.

Opening maps the arrays without reading them; it checks the header, sizes and shapes. :func:`verify_arrays` reads every
byte. Errors name the damaged file.

>>> import tempfile
>>> folder = Path(tempfile.mkdtemp()) / "arrays"
>>> write_arrays(folder, "things.json", 1, {"dim": 2}, {"ones": np.ones((3, 2), "f4")})
>>> about, arrays = open_arrays(folder, "things.json", 1)
>>> about, arrays["ones"].shape
({'dim': 2}, (3, 2))
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import EmbeddingsError
from matryo.files import is_plain_name, new_file, parse_json, sha256, storage, sync_folder
from matryo.mapped import map_npy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matryo.retrieve.vectors.types import Array

_FOREIGN = "a header of something else"   # with the right checksum, which anyone can compute
_RECORD = {"size", "sha256", "dtype", "shape"}


def write_arrays(
    folder: str | Path, header: str, format: int, about: Mapping[str, Any], arrays: Mapping[str, Array]
) -> None:
    """Write a new ``folder``: each of ``arrays`` as ``NAME.npy``, and ``about``, of JSON values, in the ``header``.

    The parent of the folder must exist. The ``format`` is the version of the layout. It grows when an older matryo can
    no longer read the layout.
    """
    target = Path(folder)
    if target.exists():
        raise EmbeddingsError("arrays must be written to a new folder", got=target, cure="choose another name")
    work = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
    try:
        with storage(target):
            work.mkdir()   # without parents: a folder that was moved away meanwhile must not come back
            files = {f"{name}.npy": _write(work / f"{name}.npy", array) for name, array in arrays.items()}
            written = {"format": format, **about, "files": files}
            with new_file(work / header) as file:
                file.write(json.dumps({**written, "sha256": _digest(written)}, indent=2).encode())
            sync_folder(work)
            work.rename(target)
            sync_folder(target.parent)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def open_arrays(
    folder: str | Path, header: str, format: int, *, oldest: int = 1, verify_bytes: float = 0
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the ``about`` that was written, and the arrays by name, mapped.

    The checksums of the smallest arrays are compared, as many as have ``verify_bytes`` together.
    """
    root = Path(folder)
    about = _read(root, header)
    layout = about.pop("format")
    if layout > format:
        raise EmbeddingsError(
            f"{root} has a newer layout than this matryo can read",
            got=f"format {layout}, supported up to {format}",
            cure="pip install --upgrade matryo",
        )
    if layout < oldest:
        got = f"format {layout}, supported from {oldest}"
        raise EmbeddingsError(f"{root} has the layout of an older matryo", got=got, cure="build it again")
    files = _take_files(about, root / header)
    arrays = {name.removesuffix(".npy"): _map(root / name, **record) for name, record in files.items()}
    smallest = sorted(files, key=lambda name: files[name]["size"])
    ends = accumulate(files[name]["size"] for name in smallest)
    _verify(root, {name: files[name] for name, end in zip(smallest, ends, strict=True) if end <= verify_bytes})
    return about, arrays


def verify_arrays(folder: str | Path, header: str) -> None:
    """Read every byte of a folder and raise, naming the file, if a checksum differs."""
    root = Path(folder)
    _verify(root, _take_files(_read(root, header), root / header))


def _verify(root: Path, files: Mapping[str, Any]) -> None:
    for name, record in files.items():
        if not (root / name).is_file() or sha256(root / name) != record["sha256"]:
            raise _damaged(root / name, "other bytes than were written")


def write_array(path: Path, array: Array) -> None:
    """Write a new .npy file durably. numpy's writer hides why a write failed."""
    with new_file(path) as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _write(path: Path, array: Array) -> dict[str, Any]:
    write_array(path, array)
    about = {"dtype": str(array.dtype), "shape": list(array.shape)}
    return {"size": path.stat().st_size, "sha256": sha256(path), **about}


def _digest(header: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()


def _read(root: Path, header: str) -> dict[str, Any]:
    path = root / header
    try:
        about: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
        digest = about.pop("sha256")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise EmbeddingsError(f"the folder must have a {header}", got=root, cure="check the path") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(path, f"no header: {error}") from error
    if digest != _digest(about):
        raise _damaged(path, "other bytes than were written")
    if type(about.get("format")) is not int:
        raise _damaged(path, _FOREIGN)
    return about


def _take_files(about: dict[str, Any], path: Path) -> dict[str, dict[str, Any]]:
    """Remove the files from a header: arrays in its own folder, with what :func:`_write` records of each."""
    files = about.pop("files", None)
    if not isinstance(files, dict) or not all(
        is_plain_name(name) and isinstance(record, dict) and record.keys() == _RECORD
        for name, record in files.items()
    ):
        raise _damaged(path, _FOREIGN)
    return files


def _map(path: Path, *, size: int, dtype: str, shape: list[int], sha256: str) -> Array:  # noqa: ARG001
    stored = path.stat().st_size if path.is_file() else None
    if stored != size:
        raise _damaged(path, "no such file" if stored is None else f"{stored} bytes instead of {size}")
    try:
        array = map_npy(path)
    except OSError:   # too many open files, for example: the file may be intact
        raise
    except Exception as error:   # numpy raises errors of every kind for a damaged header
        raise _damaged(path, str(error)) from error
    actual = (str(array.dtype), list(array.shape))
    if actual != (dtype, shape) or not array.flags.c_contiguous:
        raise _damaged(path, f"{array.dtype} {array.shape} instead of {dtype} {shape}")
    return array


def _damaged(path: Path, problem: str) -> EmbeddingsError:
    return EmbeddingsError(f"{path} is damaged", got=problem, cure="restore it from a copy, or write the vectors again")

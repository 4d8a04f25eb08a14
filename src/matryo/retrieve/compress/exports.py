"""Codes as databases take them: lines for PostgreSQL with pgvector, and numpy arrays.

===========  ====================  ===============================================================================
``to``       code                  file
===========  ====================  ===============================================================================
``halfvec``  float16               halfvec.tsv: the id, a tab, ``[0.5,-0.25,…]``, for columns of pgvector's halfvec
``bit``      bit                   bit.tsv: the id, a tab, ``0110…``, for columns of PostgreSQL's bit
``int8``     int8                  int8.npy: int8 [rows, dims], in units that differ from row to row: use cosine
``numpy``    any                   numpy.npy: the decoded vectors, float32 [rows, columns]
===========  ====================  ===============================================================================

A query is mapped with :meth:`Compression.transform` first; for ``bit``, its bits are those of the positive numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from matryo.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matryo.arrays import Array
    from matryo.retrieve.compress.compression import Compression

FILES = {"halfvec": "halfvec.tsv", "bit": "bit.tsv", "int8": "int8.npy", "numpy": "numpy.npy"}
NEEDS = {"halfvec": "float16", "bit": "bit", "int8": "int8"}
"""The code that an export needs."""


def check_export(compression: Compression, to: str) -> None:
    """Raise unless the codes can be written so."""
    need = NEEDS.get(to, compression.code)
    if need != compression.code:
        raise InputError(f"{to} needs codes of {need}", got=compression.code, cure=f"choose with kinds=({need!r},)")


def write_header(file: BinaryIO, compression: Compression, to: str, count: int) -> None:
    """Write what comes before the rows."""
    if FILES[to].endswith(".npy"):
        dim = compression.dim if to == "numpy" else compression.fitted.codec.dim
        kind = "<f4" if to == "numpy" else "|i1"
        np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": (count, dim)})


def write_rows(file: BinaryIO, compression: Compression, to: str, codes: Array, ids: Sequence[Any]) -> None:
    """Write some rows."""
    if to == "numpy":
        file.write(np.ascontiguousarray(compression.decode(codes), "<f4").tobytes())
    elif to == "int8":
        file.write((codes ^ 0x80).view(np.int8).tobytes())   # code − 128
    else:
        values = as_strings(compression, codes)
        file.writelines(f"{_escaped(each)}\t{value}\n".encode() for each, value in zip(ids, values, strict=True))


def as_strings(compression: Compression, codes: Array) -> list[str]:
    """Return the text of each row in PostgreSQL: ``[0.5,-0.25]`` for halfvec, ``0110`` for bit."""
    dim = compression.fitted.codec.dim
    if compression.code == "bit":
        bits = np.unpackbits(codes, axis=1)[:, :dim] + ord("0")
        return [row.tobytes().decode() for row in bits]
    check_export(compression, "halfvec")
    values = np.ascontiguousarray(codes).view("<f2")
    return ["[" + ",".join(map(str, row.tolist())) + "]" for row in values]


def _escaped(value: Any) -> str:
    """An id in the text format of COPY."""
    text = str(value)
    for char, escape in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(char, escape)
    return text

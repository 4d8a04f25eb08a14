"""Small files that expand to much are refused before they do; the process may not take much more memory than they."""

import gzip
import io
import resource
import struct
import subprocess
import sys
import zipfile
import zlib

import numpy as np
import pytest

from matryo.data import limits
from matryo.data.images.decode import decode, image_shape
from matryo.data.images.npz import read_npz
from matryo.data.texts.tables import lines_of, read_rows
from matryo.errors import DataError, ImageError

TRUST = "set MATRYO_UNLIMITED=1"


def png(width, height):
    """A PNG of one colour that is valid, and tiny, whatever its size."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compressobj()
    body = b"".join(rows.compress(bytes(1 + (width + 7) // 8)) for _ in range(height)) + rows.flush()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def test_a_large_image_is_refused_by_its_header():
    small = png(64, 48)
    assert decode(small, "small").shape == (48, 64, 3)
    for width, height in ((8001, 8000), (13_000, 13_000), (30_000, 30_000)):
        data = png(64, 48)[:16] + struct.pack(">II", width, height) + png(64, 48)[24:29]
        data += struct.pack(">I", zlib.crc32(data[12:29])) + small[33:]
        for read in (decode, image_shape):
            with pytest.raises(ImageError, match="image bomb must have"):
                read(data, "bomb")


def test_a_trusted_image_is_decoded(monkeypatch):
    monkeypatch.setattr(limits, "PIXELS", 64 * 48 - 1)
    with pytest.raises(ImageError, match=rf"at most 3,071 pixels \(got 64 × 48\): .*{TRUST}"):
        decode(png(64, 48), "mine")
    monkeypatch.setenv("MATRYO_UNLIMITED", "1")
    assert decode(png(64, 48), "mine").shape == (48, 64, 3)


def zipped(path, name, content, claimed=None):
    """An .npz with one array of zeros, compressed, whose header may claim another shape."""
    buffer = io.BytesIO()
    shape = claimed or (content,)
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open(f"{name}.npy", "w") as member:
        member.write(buffer.getvalue())
        for _ in range(0, content, 1 << 20):
            member.write(bytes(min(content, 1 << 20)))
    return path


def test_a_packed_file_is_refused_by_its_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "EXPANDED", 1 << 20)
    path = zipped(tmp_path / "train.npz", "labels", 8 << 20)
    assert path.stat().st_size < 10_000
    with pytest.raises(DataError, match=rf"train\.npz, labels must expand .*{TRUST}"):
        read_npz(path, ["labels"], "images")
    monkeypatch.setenv("MATRYO_UNLIMITED", "1")
    assert read_npz(path, ["labels"], "images")["labels"].nbytes == 8 << 20


@pytest.mark.parametrize("shape", [(1 << 40,), (1 << 33, 1 << 33), (-5,)])
def test_an_array_larger_than_its_file_is_not_allocated(shape, tmp_path):
    path = zipped(tmp_path / "train.npz", "labels", 100, claimed=shape)
    with pytest.raises(DataError, match=r"train\.npz cannot be read as a packed file"):
        read_npz(path, ["labels"], "images")


def test_an_array_that_compresses_well_is_read(tmp_path):
    path = zipped(tmp_path / "train.npz", "labels", 4 << 20)
    assert not read_npz(path, ["labels"], "images")["labels"].any()


@pytest.mark.parametrize("line", [b"x" * (1 << 20), b"x" * 1023 + b"\n"])
@pytest.mark.parametrize("ending", ["txt.gz", "jsonl.gz", "csv.gz", "tsv.gz"])
def test_compressed_texts_are_read_up_to_a_limit(line, ending, tmp_path, monkeypatch):
    """One line without end, and many short ones."""
    monkeypatch.setattr(limits, "EXPANDED", 1 << 20)
    monkeypatch.setattr(limits, "LINE", 1 << 21)
    path = tmp_path / f"train.{ending}"
    with gzip.open(path, "wb") as file:
        file.write(b'{"text": "' + b"x" * 20 + b'"}\n' if ending == "jsonl.gz" else b"text\n")
        for _ in range((8 << 20) // len(line)):
            file.write(line)
    rows = lines_of if ending == "txt.gz" else read_rows
    with pytest.raises(DataError, match=f"train|{TRUST}") as error:
        list(rows(path))
    if ending in ("txt.gz", "tsv.gz"):
        assert TRUST in str(error.value)


def test_a_line_is_never_held_whole_if_it_is_too_long(tmp_path):
    """1 MB of gzip that is 1 GB of one line, in a process that may not have 1 GB."""
    path = tmp_path / "train.jsonl.gz"
    squeezed, zeros = zlib.compressobj(9, wbits=31), bytes(1 << 20)
    with path.open("wb") as file:
        for _ in range(300):
            file.write(squeezed.compress(zeros))
        file.write(squeezed.flush())
    code = (
        "import sys\nfrom pathlib import Path\nfrom matryo.data.texts.tables import read_rows\n"
        "from matryo.data import limits\nlimits.LINE = 1 << 24\n"
        "try: list(read_rows(Path(sys.argv[1])))\nexcept ValueError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (200 << 20, 200 << 20)),
    )  # fmt: skip
    assert done.stdout.startswith("train.jsonl.gz: a line must have at most")

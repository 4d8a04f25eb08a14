"""Blocks hold the very vectors, their copies in int8 err by half a step, and a damaged folder is found out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.errors import EmbeddingsError, InputError, NestingError, StorageError
from matryo.mapped import is_mapped
from matryo.nesting import Nesting, truncate
from matryo.retrieve.vectors import array_folder as folder
from matryo.retrieve.vectors import blocks as module
from matryo.retrieve.vectors.blocks import HEADER, Blocks, Int8Block

if TYPE_CHECKING:
    from pathlib import Path

NESTING = Nesting([2, 3, 8], weights=[3, 2, 1])


def make(count: int = 50, *, dtype: str = "float32", int8_up_to: int = 3, seed: int = 0) -> tuple[np.ndarray, Blocks]:
    vectors = np.random.default_rng(seed).standard_normal((count, 8)).astype(np.float32)
    return vectors, Blocks.of(vectors, NESTING, dtype=dtype, int8_up_to=int8_up_to)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("tile", [1, 24, 1 << 20])
def test_blocks_hold_the_vectors(monkeypatch: pytest.MonkeyPatch, dtype: str, tile: int) -> None:
    monkeypatch.setattr(module, "_TILE", tile)
    vectors, blocks = make(dtype=dtype)
    assert (blocks.count, len(blocks), blocks.dtype) == (50, 50, dtype)
    assert [block.shape for block in blocks.full] == [(50, 2), (50, 1), (50, 5)]
    assert all(block.flags.c_contiguous and block.dtype == dtype for block in blocks.full)
    stored = vectors.astype(dtype)
    np.testing.assert_array_equal(np.concatenate(blocks.full, axis=1), stored)
    for level, dim in enumerate(NESTING.dims):
        np.testing.assert_array_equal(blocks.rows(np.array([4, 0, 4]), dim), stored[[4, 0, 4], :dim])
        np.testing.assert_array_equal(blocks.rows(slice(3, 9), dim), stored[3:9, :dim])
        for row in range(50):   # the norms of what is stored, so that a row has cosine 1 with itself
            exact = np.sqrt(sum(float(value) ** 2 for value in stored[row, :dim]))
            assert blocks.norms[row, level] == np.float32(exact)
        unit = truncate(stored.astype(np.float32), dim)
        np.testing.assert_allclose(blocks.rows(slice(None), dim) / blocks.norms[:, level, None], unit, rtol=1e-6)


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 30), power=st.integers(-30, 30), tile=st.integers(1, 40))
def test_int8_errs_by_half_a_step(seed: int, count: int, power: int, tile: int) -> None:
    block = (np.random.default_rng(seed).standard_normal((count, 5)) * 2.0**power).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_TILE", tile)
        made = Int8Block.of(block)
    assert made.codes.dtype == np.int8
    assert made.scale.dtype == np.float32
    largest = float(np.abs(block).max())
    assert float(made.scale) == pytest.approx(largest / 127, rel=2.0**-23)
    assert np.abs(made.codes).max() == 127   # the largest magnitude uses the whole range, and −128 is never used
    errors = np.abs(made.codes.astype(np.float64) * float(made.scale) - block)
    # Half a step; the step itself is rounded, which moves the largest code by 127 · 2⁻²⁴ steps.
    assert errors.max() <= float(made.scale) * (0.5 + 127 * 2.0**-24)


def test_int8_of_zeros_and_of_nothing() -> None:
    for count in (0, 3):
        made = Int8Block.of(np.zeros((count, 2), np.float32))
        assert made.codes.shape == (count, 2)
        assert not made.codes.any()
        assert made.scale > 0


def test_int8_copies_reach_up_to_a_dim() -> None:
    assert sorted(make(int8_up_to=0)[1].int8) == []
    assert sorted(make(int8_up_to=2)[1].int8) == [0]
    assert sorted(make(int8_up_to=8)[1].int8) == [0, 1, 2]
    vectors, blocks = make(int8_up_to=3)
    steps = np.repeat([blocks.int8[0].scale, blocks.int8[1].scale], [2, 1])
    coarse = blocks.rows(slice(None), 3, "int8")
    assert coarse.dtype == np.float32
    assert (np.abs(coarse - vectors[:, :3]) <= 0.5001 * steps).all()


def test_the_callers_array_is_copied_and_blocks_cannot_be_written() -> None:
    for nesting in (NESTING, Nesting([8])):
        vectors = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
        vectors.flags.writeable = False
        before = vectors.tobytes()
        blocks = Blocks.of(vectors, nesting, int8_up_to=8)
        assert vectors.tobytes() == before
        assert not any(np.shares_memory(block, vectors) for block in blocks.full)
        for array in (*blocks.full, blocks.norms, blocks.int8[0].codes):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0


def test_lists_and_integers_will_do() -> None:
    blocks = Blocks.of([[3, 4, 12]], Nesting([2, 3]))
    assert blocks.norms.tolist() == [[5, 13]]
    assert repr(blocks) == "Blocks(1 × 2 3, float32)"
    assert repr(make()[1]) == "Blocks(50 × 2 3 8, float32, 2 in int8)"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("count", [0, 1, 50])
def test_a_folder_gives_back_what_was_written(tmp_path: Path, dtype: str, count: int) -> None:
    _, blocks = make(count, dtype=dtype)
    (tmp_path / "deep").mkdir()
    blocks.write(tmp_path / "deep" / "here")
    Blocks.verify(tmp_path / "deep" / "here")
    again = Blocks.open(tmp_path / "deep" / "here")
    assert again.nesting == NESTING
    assert again.dtype == dtype
    pairs = [*zip(blocks.full, again.full, strict=True), (blocks.norms, again.norms)]
    pairs += [(blocks.int8[number].codes, again.int8[number].codes) for number in (0, 1)]
    for wrote, read in pairs:
        assert read.dtype == wrote.dtype
        np.testing.assert_array_equal(read, wrote)
        assert count == 0 or (not read.flags.writeable and is_mapped(read))
    assert [again.int8[number].scale for number in (0, 1)] == [blocks.int8[number].scale for number in (0, 1)]
    assert sorted(path.name for path in (tmp_path / "deep" / "here").iterdir()) == [
        "block-00.npy", "block-01.npy", "block-02.npy", HEADER, "int8-00.npy", "int8-01.npy", "norms.npy",
    ]  # fmt: skip
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["here"]


def test_a_mapped_folder_can_be_written_again(tmp_path: Path) -> None:
    make()[1].write(tmp_path / "one")
    Blocks.open(tmp_path / "one").write(tmp_path / "two")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    _, blocks = make()
    blocks.write(tmp_path / "here")
    with pytest.raises(EmbeddingsError, match=r"written to a new folder \(got .*here\): choose another name"):
        blocks.write(tmp_path / "here")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="is a file"):
        blocks.write(tmp_path / "file" / "here")


def test_a_refused_write_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import resource, signal, sys, numpy as np\n"
        "from matryo.nesting import Nesting\nfrom matryo.retrieve.vectors.blocks import Blocks\n"
        "blocks = Blocks.of(np.ones((1000, 8)), Nesting([2, 8]))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"   # the first block fits, the second does not
        "blocks.write(sys.argv[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "here")], capture_output=True, text=True)
    assert done.returncode == 1
    assert "StorageError: cannot write" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_each_flipped_byte_is_found_and_named(tmp_path: Path) -> None:
    make()[1].write(tmp_path / "here")
    for path in sorted((tmp_path / "here").iterdir()):
        good = path.read_bytes()
        for place in {0, 20, len(good) // 2, len(good) - 2}:
            path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
            with pytest.raises(EmbeddingsError, match=f"{re.escape(path.name)} is damaged"):
                Blocks.verify(tmp_path / "here")
        path.write_bytes(good)
    Blocks.verify(tmp_path / "here")


def test_every_byte_of_the_header_counts(tmp_path: Path) -> None:
    make(3)[1].write(tmp_path / "here")
    path = tmp_path / "here" / HEADER
    good = path.read_bytes()
    for place in range(0, len(good), 7):
        if chr(good[place]).isspace():
            continue   # layout, not content
        path.write_bytes(good[:place] + bytes([good[place] ^ 2]) + good[place + 1 :])
        with pytest.raises(EmbeddingsError, match=r"blocks\.json is damaged"):
            Blocks.open(tmp_path / "here")


def test_a_torn_missing_or_foreign_file_is_named_at_once(tmp_path: Path) -> None:
    make()[1].write(tmp_path / "here")
    for path in sorted((tmp_path / "here").glob("*.npy")):
        good = path.read_bytes()
        path.write_bytes(good[:-1])
        with pytest.raises(EmbeddingsError, match=rf"{path.name} is damaged \(got {len(good) - 1} bytes instead of"):
            Blocks.open(tmp_path / "here")
        path.unlink()
        with pytest.raises(EmbeddingsError, match=rf"{path.name} is damaged \(got no such file\): restore it"):
            Blocks.open(tmp_path / "here")
        with pytest.raises(EmbeddingsError, match=rf"{path.name} is damaged"):
            Blocks.verify(tmp_path / "here")
        path.write_bytes(b"?" * len(good))
        with pytest.raises(EmbeddingsError, match=rf"{path.name} is damaged"):
            Blocks.open(tmp_path / "here")
        path.write_bytes(good)
    other = (tmp_path / "here" / "norms.npy").read_bytes()
    (tmp_path / "here" / "norms.npy").write_bytes(other.replace(b"<f4", b"<i4"))
    with pytest.raises(EmbeddingsError, match=r"norms.npy is damaged \(got int32 \(50, 3\) instead of float32"):
        Blocks.open(tmp_path / "here")


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(EmbeddingsError, match=r"must have a blocks.json \(got .*nowhere\): check the path"):
        Blocks.open(tmp_path / "nowhere")
    (tmp_path / HEADER).write_text("[]")
    with pytest.raises(EmbeddingsError, match=r"blocks\.json is damaged"):
        Blocks.open(tmp_path)
    header = {"format": 2}
    (tmp_path / HEADER).write_text(json.dumps({**header, "sha256": folder._digest(header)}))
    with pytest.raises(EmbeddingsError, match=r"newer layout .* \(got format 2, supported up to 1\)"):
        Blocks.open(tmp_path)


@pytest.mark.parametrize(
    ("vectors", "options", "message"),
    [
        (np.zeros(8), {}, r"real numbers with 8 columns, the last dim of the nesting \(got shape \(8,"),
        (np.zeros((2, 7)), {}, r"with 8 columns, the last dim of the nesting \(got shape \(2, 7\), float64\)"),
        (np.zeros((2, 8), complex), {}, "real numbers"),
        ([["a"] * 8], {}, "real numbers"),
        (np.zeros((2, 8)), {"dtype": "float64"}, r"dtype must be float32 or float16 \(got 'float64'\)"),
        (np.full((2, 8), 1e5), {"dtype": "float16"}, "finite in float16.*2 bad rows, the first is row 0"),
        (np.full((2, 8), 1e300), {}, "vectors must be finite in float32"),
        (np.full((2, 8), 2.0**61), {}, "with a norm of at most 2⁶²"),
    ],
)  # fmt: skip
def test_rules(vectors: object, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Blocks.of(vectors, NESTING, **options)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_row_is_named_whichever_tile_it_is_in(monkeypatch: pytest.MonkeyPatch, bad: float) -> None:
    monkeypatch.setattr(module, "_TILE", 16)
    vectors = np.zeros((50, 8))
    vectors[37, 5] = bad
    with pytest.raises(EmbeddingsError, match=r"1 bad rows, the first is row 37\): drop those rows"):
        Blocks.of(vectors, NESTING)


def test_dims_must_be_of_the_nesting_and_int8_must_be_there() -> None:
    _, blocks = make(int8_up_to=2)
    with pytest.raises(NestingError, match=r"in the nesting, 2, 3, 8 \(got 5\): use one"):
        blocks.level(5)
    with pytest.raises(NestingError, match="in the nesting"):
        make(int8_up_to=5)
    with pytest.raises(InputError, match=r"up to that dim \(got copies of 1 blocks\): store the vectors with"):
        blocks.rows(slice(None), 3, "int8")

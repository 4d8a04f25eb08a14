"""Images in Parquet tables, in the form in which Hugging Face publishes datasets."""

import json

import numpy as np
import pytest

pytest.importorskip("PIL")
pytest.importorskip("pyarrow")
import pyarrow
import pyarrow.parquet as parquet

from matryo.data import decode_all, pack_dataset, packed_dataset
from matryo.data.images.tables import table_dataset

NAMES = ["cat", "dog", "fish"]


@pytest.fixture
def root(tmp_path, pixels, encode):
    """Twelve images in two files of two groups of rows each."""
    features = {"info": {"features": {"label": {"names": NAMES, "_type": "ClassLabel"}}}}
    (tmp_path / "data").mkdir()
    for number in range(2):
        rows = range(6 * number, 6 * number + 6)
        image = [{"bytes": encode(pixels[row]), "path": f"{row}.png"} for row in rows]
        table = pyarrow.table({"image": image, "label": [row % 3 for row in rows]})
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
        parquet.write_table(table, tmp_path / "data" / f"train-0000{number}-of-00002.parquet", row_group_size=4)
    return tmp_path


def test_rows_are_images_in_order(root, pixels):
    dataset = table_dataset(root)
    split = dataset.split("train")
    assert dataset.classes == tuple(NAMES)
    assert split.labels.tolist() == [0, 1, 2] * 4
    assert all(np.array_equal(split.image(row), pixels[row]) for row in (11, 0, 5, 6, 3, 4))
    first, second = ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet")
    assert [split.name(row) for row in (0, 5, 6)] == [f"{first}#0", f"{first}#5", f"{second}#0"]


def test_tables_can_be_packed_by_threads(root, pixels):
    pack_dataset(table_dataset(root), root / "packed", lossless=True, threads=3, images_per_file=5, progress=False)
    packed = packed_dataset(root / "packed")
    assert packed.classes == tuple(NAMES)
    assert np.array_equal(decode_all(packed.split("train")), pixels)


def test_mistakes_are_named(root, refuses):
    with refuses("must be a folder with .parquet files", "none, which does not exist"):
        table_dataset(root / "data" / "none")
    parquet.write_table(pyarrow.table({"picture": [b"x"], "label": [0]}), root / "val-0.parquet")
    with refuses("val-0.parquet must have a column image", "picture, label"):
        table_dataset(root)
    parquet.write_table(pyarrow.table({"image": [None], "label": [0]}), root / "val-0.parquet")
    with refuses("image val-0.parquet#0 must be stored in the table", "NoneType"):
        table_dataset(root).split("val").encoded(0)
    (root / "val-0.parquet").write_bytes(b"PAR1 and nothing else")
    with refuses("val-0.parquet cannot be read as a Parquet table"):
        table_dataset(root)

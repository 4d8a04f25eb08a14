"""The recipe for Spark in docs/scale.md, run in Spark's local mode."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from matryo import Retrofit
from matryo.retrieve import Index

pytest.importorskip("pyspark")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java", allow_module_level=True)
PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


def test_the_recipe_writes_what_an_index_reads(tmp_path, monkeypatch):
    import pandas
    from pyspark.sql import SparkSession

    from matryo.cli import main

    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", __import__("sys").executable)
    vectors = np.random.default_rng(0).normal(size=(600, 128)) * np.linspace(2, 0.1, 128)
    retrofit = Retrofit.fit(vectors, progress=False)
    retrofit.save(tmp_path / "rotation")
    (tmp_path / "vectors").mkdir()
    for part in (0, 1):
        rows = range(300 * part, 300 * part + 300)
        frame = pandas.DataFrame({"id": list(rows), "vector": list(vectors[list(rows)])})
        frame.to_parquet(tmp_path / "vectors" / f"{part}.parquet")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    code = next(block for block in blocks if "mapInPandas" in block)
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        exec(compile(code.replace("/shared", str(tmp_path)), str(PAGE), "exec"), {"__name__": "recipe"})
    finally:
        spark.stop()
    files = sorted(map(str, (tmp_path / "nested").glob("*.parquet")))
    main(["index", str(tmp_path / "idx"), *files, "--id-column", "id", "--vector-column", "vector", "--quiet"])
    with Index.open(tmp_path / "idx") as index:
        assert len(index) == 600
        np.testing.assert_allclose(index.get([7, 450])[0], retrofit.transform(vectors[[7, 450]], dim=64), atol=1e-6)

"""The demo end to end, shortened: two runs, their embeddings, one table, stored rows."""

from matryo import EmbeddingSet
from matryo.cli import main
from matryo.results import read_rows


def test_the_demo_runs_to_its_table(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path), "--epochs", "1", "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert "1-NN" in shown
    assert "demo-fixed" in shown
    for name, dims in (("demo-nested", (8, 16, 32, 64, 128, 256)), ("demo-fixed", (256,))):
        stored = EmbeddingSet.open(tmp_path / name / "embeddings" / "flat")
        assert stored.nesting.dims == dims
        assert len(stored) == 1594
    rows = read_rows(tmp_path / "demo.jsonl")
    assert [row.kind for row in rows] == ["train"] * 2 + ["evaluate"] * 6
    assert all(set(row.figures["dims"]) >= {"8", "12", "16", "256"} for row in rows[2:])
    weights = tmp_path / "demo-nested" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert main(["demo", "--out", str(tmp_path), "--epochs", "1", "--quiet"]) == 0
    assert weights.stat().st_mtime_ns == before   # nothing is trained twice
    assert len(read_rows(tmp_path / "demo.jsonl")) == 8

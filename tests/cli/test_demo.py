"""The demo end to end, shortened: two runs, their embeddings, one table, stored rows."""

import dataclasses
from collections import Counter

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from matryo import EmbeddingSet, Index, data
from matryo.cli import main, serve
from matryo.data.bundled import emoji as bundled
from matryo.results import read_rows


@pytest.fixture
def drawings(monkeypatch):
    """Every eighth emoji, in every style."""
    every = data.emoji()
    part = {name: split.subset(split.labels % 8 == 0) for name, split in every.splits.items()}
    some = dataclasses.replace(every, splits=part)
    monkeypatch.setattr(data, "open_dataset", lambda *_args, **_options: some)
    return some


def test_the_demo_runs_to_its_table(drawings, tmp_path, monkeypatch, capsys):
    assert main(["demo", "--out", str(tmp_path), "--epochs", "1", "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert "1-NN" in shown
    assert "demo-fixed" in shown
    for name, dims in (("demo-nested", (8, 16, 32, 64, 128, 256)), ("demo-fixed", (256,))):
        stored = EmbeddingSet.open(tmp_path / name / "embeddings" / "flat")
        assert stored.nesting.dims == dims
        assert len(stored) == len(drawings.split("flat"))
    rows = read_rows(tmp_path / "demo.jsonl")
    kinds = Counter(row.kind for row in rows)
    assert kinds["train"] == 2
    assert kinds["evaluate"] == 4 * 3   # two models and two baselines on three splits
    assert set(kinds) > {"few-shot", "robustness", "superclass", "trends", "disagreement", "similarity", "cascade"}
    evaluated = [row.figures for row in rows if row.kind == "evaluate"]
    assert all(set(figures["dims"]) >= {"8", "12", "16", "256"} for figures in evaluated)
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "Graphics by Twemoji" in page
    assert shown.endswith(f"open the report in a browser: {tmp_path / 'report' / 'index.html'}\n")

    check_explorer(drawings, tmp_path, monkeypatch)
    assert "1-NN" not in capsys.readouterr().out   # runs that are complete are not measured again


def check_explorer(drawings, folder, monkeypatch):
    """With --serve, the demo ends on a server of both models and of their drawings."""
    pytest.importorskip("orjson")
    served = []
    monkeypatch.setattr(serve, "run", served.append)
    monkeypatch.setattr(bundled, "emoji", data.open_dataset)
    assert main(["demo", "--out", str(folder), "--quiet", "--serve", "--port", "0"]) == 0
    (args,) = served
    assert args.models == [f"{name}={folder / f'demo-{name}'}" for name in ("nested", "fixed")]
    assert args.index == [f"{name}={folder / 'explorer' / name}" for name in ("nested", "fixed")]
    assert args.host == "127.0.0.1"
    assert any("Twemoji" in line for line in args.credits)
    for name in ("nested", "fixed"):
        stored = EmbeddingSet.open(folder / f"demo-{name}" / "embeddings" / "twemoji")
        with Index.open(folder / "explorer" / name) as index:
            assert len(index) == sum(len(drawings.split(split)) for split in ("flat", "twemoji", "train"))
            assert index.nesting.dims == (8, 16, 32, 64, 128, 256)
            entry = index[str(stored.ids[0])]
            assert entry.vector.tolist() == stored.vectors[0].tolist()
            assert entry.payload["name"] == drawings.classes[stored.labels[0]]
            assert entry.payload["image"].startswith("data:image/webp;base64,")

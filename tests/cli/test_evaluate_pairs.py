"""`matryo evaluate` and `matryo report` on pairs: one folder, one a split, or three things named by themselves."""

import json
import re
import shutil

import numpy as np
import pytest

from matryo import EmbeddingSet, Nesting
from matryo.cli import main
from matryo.evaluation import Relevance, pairs, sts, zero_shot
from matryo.results import read_rows


def write(folder, *, seed=0, name="mine", dim=16):
    """Twenty questions and forty answers, two of each, as `matryo encode` writes them."""
    rng = np.random.default_rng(seed)
    asked = rng.normal(size=(20, dim))
    known = np.repeat(asked, 2, axis=0) + 0.7 * rng.normal(size=(40, dim))
    about = {"nesting": Nesting.halving(dim, 4), "model": {"name": name, "seed": seed}, "dataset": "toy"}
    EmbeddingSet.write(folder / "queries", asked, ids=[f"q{i}" for i in range(20)], **about)
    EmbeddingSet.write(folder / "candidates", known, ids=[f"d{i}" for i in range(40)], **about)
    lines = [f"q{i // 2}\td{i}\t1" for i in range(40)]
    (folder / "relevance.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return folder


def expected(folder):
    queries, candidates = (EmbeddingSet.open(folder / side) for side in ("queries", "candidates"))
    relevance = Relevance.open(folder / "relevance.tsv", queries, candidates)
    return pairs(queries, candidates, relevance, progress=False)


def evaluate(*words):
    return main(["evaluate", *map(str, words), "--quiet"])


def test_a_folder_of_pairs_is_told_as_such(tmp_path, capsys):
    folder, out = write(tmp_path / "mine"), tmp_path / "rows.jsonl"
    assert evaluate(folder, "--json", out) == 0
    printed = capsys.readouterr().out
    assert "queries → candidates, 20 in 40, 40 relevant pairs" in printed
    assert "candidates → queries, 40 in 20, 40 relevant pairs" in printed
    mine, pca = read_rows(out)
    assert (mine.kind, mine.seed, mine.figures["model"], pca.figures["model"]) == ("pairs", 0, "mine", "mine + PCA")
    found = expected(folder)
    assert [tuple(map(tuple, way)) for way in mine.figures["ndcg"]] == list(found.ndcg)
    assert mine.figures["dims"] == [4, 8, 16]


def test_the_parts_may_lie_anywhere(tmp_path, capsys):
    folder = write(tmp_path / "mine", name="encoder")
    parts = ["--candidates", folder / "candidates", "--relevance", folder / "relevance.tsv"]
    out = tmp_path / "rows.jsonl"
    assert evaluate(folder / "queries", *parts, "--dims", "4,12", "--baselines", "none", "--json", out) == 0
    (row,) = read_rows(out)
    assert (row.figures["model"], row.figures["dims"]) == ("encoder", [4, 12])
    capsys.readouterr()
    assert evaluate(folder / "queries", *parts[:2]) == 1
    assert "give both --candidates DIR and --relevance FILE" in capsys.readouterr().err


def test_cosines_are_put_beside_grades(tmp_path, capsys):
    folder, out = write(tmp_path / "mine"), tmp_path / "rows.jsonl"
    assert evaluate(folder, "--protocols", "sts") == 1
    assert "must have different grades" in capsys.readouterr().err
    lines = [f"q{i // 2}\td{i}\t{i % 5}" for i in range(40)]
    (folder / "relevance.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    assert evaluate(folder, "--protocols", "sts,pairs", "--json", out) == 0
    printed = capsys.readouterr().out
    assert "toy: 40 graded pairs" in printed and "Spearman" in printed
    told = [(row.kind, row.figures["model"]) for row in read_rows(out)]
    assert told == [("sts", "mine"), ("pairs", "mine"), ("pairs", "mine + PCA"), ("sts", "mine + PCA")]
    queries, candidates = (EmbeddingSet.open(folder / side) for side in ("queries", "candidates"))
    found = sts(queries, candidates, Relevance.open(folder / "relevance.tsv", queries, candidates))
    assert tuple(read_rows(out)[0].figures["spearman"]) == found.spearman
    pytest.importorskip("matplotlib")
    page = tmp_path / "page"
    assert main(["report", str(folder), "--out", str(page), "--quiet"]) == 0
    assert "Graded pairs" in next(page.glob("*.html")).read_text()


def test_a_run_holds_pairs_of_several_splits(tmp_path, capsys):
    for split, seed in (("dev", 0), ("test", 1)):
        write(tmp_path / "run" / "embeddings" / split, seed=seed)
    out = tmp_path / "rows.jsonl"
    assert evaluate(tmp_path / "run", "--baselines", "none", "--json", out) == 0
    assert [(row.figures["model"], row.figures["split"]) for row in read_rows(out)] == [("run", "dev"), ("run", "test")]
    capsys.readouterr()
    assert evaluate(tmp_path / "run", "--queries", "test", "--show", "MRR@10", "--baselines", "none") == 0
    assert "toy / test" in (printed := capsys.readouterr().out)
    assert "toy / dev" not in printed
    assert "MRR@10" in printed
    for sides, told in ((["texts", "texts"], "queries → candidates"), (["images", "texts"], "texts → images")):
        (tmp_path / "run" / "run.json").write_text(json.dumps({"sides": sides}))
        assert evaluate(tmp_path / "run", "--queries", "test", "--baselines", "none") == 0
        assert told in capsys.readouterr().out
    assert evaluate(tmp_path / "run", "--queries", "train") == 1
    assert "must hold pairs of these splits (got train): choose from dev, test" in capsys.readouterr().err


def test_what_a_run_was_trained_on_is_measured_only_if_asked_for(tmp_path, capsys):
    run = tmp_path / "run"
    for split in ("both", "test", "titles", "train"):
        write(run / "embeddings" / split)

    def splits(*words):
        out = tmp_path / "rows.jsonl"
        out.unlink(missing_ok=True)
        assert evaluate(run, "--baselines", "none", "--json", out, *words) == 0
        return [row.figures["split"] for row in read_rows(out)]

    assert splits() == ["both", "test", "titles"]   # vectors from elsewhere: by the usual name
    assert "skipped train of run: it was trained on (use --queries train)" in capsys.readouterr().err
    (run / "run.json").write_text(json.dumps({"recipe": {"data": {"train": "titles", "test": ["test", "both"]}}}))
    assert splits() == ["test", "both", "train"]   # in the order of its recipe
    assert splits("--queries", "titles") == ["titles"]
    for split in ("both", "test", "train"):
        shutil.rmtree(run / "embeddings" / split)
    capsys.readouterr()
    assert splits() == ["titles"]   # there is nothing else
    assert "skipped" not in capsys.readouterr().err


def test_zero_shot_has_a_table_of_its_own(tmp_path, capsys):
    folder = write(tmp_path / "mine")
    labels = np.arange(20) % 4
    asked = EmbeddingSet.open(folder / "queries")
    about = {"nesting": asked.nesting, "classes": list("abcd"), "ids": list(asked.ids), "dataset": "toy"}
    EmbeddingSet.write(folder / "queries", asked.vectors, labels=labels, split="test", overwrite=True, **about)
    texts = EmbeddingSet.write(tmp_path / "texts", np.eye(4, 16), labels=range(4), classes=list("abcd"))
    assert evaluate(folder, "--protocols", "zero-shot", "--texts", tmp_path / "texts") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mine, toy / test: zero-shot with 4 texts"
    found = zero_shot(texts, EmbeddingSet.open(folder / "queries"))
    wanted = [[str(dim), *(f"{100 * value:.1f}" for value in values)]
              for dim, *values in zip(found.dims, found.top1, found.top5, strict=True)]  # fmt: skip
    assert [line.split() for line in lines[1:]] == [["dim", "top-1", "top-5"], *wanted]   # and no baseline of pairs


def test_models_stand_side_by_side_at_the_dims_of_the_first(tmp_path, capsys):
    both = [write(tmp_path / "a"), write(tmp_path / "b", seed=1)]
    assert evaluate(*both, "--show", "hit@1", "--baselines", "none") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:3]] == [["a", "b"], ["dim", "hit@1", "hit@1"]]
    assert lines[3].split() == ["4", *(f"{100 * expected(folder).at('hit', 1)[0]:.1f}" for folder in both)]


def test_other_protocols_measure_what_pairs_allow(tmp_path, capsys):
    folder, out = write(tmp_path / "mine"), tmp_path / "rows.jsonl"
    assert evaluate(folder, "--protocols", "all", "--baselines", "none", "--json", out) == 0
    assert {row.kind for row in read_rows(out)} == {"pairs", "similarity"}
    assert "skipped few-shot of mine" in capsys.readouterr().err


def test_a_report_draws_them(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    folder = write(tmp_path / "mine")
    assert main(["report", str(folder), "--out", str(tmp_path / "page"), "--baselines", "pca", "--quiet"]) == 0
    text = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert 'id="pairs"' in text
    assert 'id="similarity"' in text
    assert len(list((tmp_path / "page" / "figures").glob("pairs-*.svg"))) == 4   # one per metric and direction
    section = re.search(r'<section id="pairs".*?</section>', text, re.DOTALL)[0]
    titles = [f"toy: {metric}, {way},\u00a0%" for way in ("queries → candidates", "candidates → queries")
              for metric in ("nDCG@10", "hit@1")]  # fmt: skip
    assert re.findall("<caption>(.*?)</caption>", section) == titles
    metrics = {line.split(",")[2].strip('"') for line in (tmp_path / "page/tables/pairs.csv").read_text().splitlines()}
    assert {"MRR@5", "recall@100"} <= metrics   # the file has all of them
    capsys.readouterr()

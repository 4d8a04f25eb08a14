"""The command line without torch: help, usage, errors in one line, evaluate on vectors from anywhere."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from matryo import EmbeddingSet, Nesting
from matryo.cli import VERBS, build_parser, main
from matryo.evaluation import zero_shot
from matryo.results import read_rows


def apart(*words):
    """The command in a process of its own."""
    command = [sys.executable, "-m", "matryo", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def matryo(capfd):
    """The command in this process, which is quicker."""

    def run(*words):
        capfd.readouterr()
        code = main([str(word) for word in words])
        said = capfd.readouterr()
        return SimpleNamespace(returncode=code, stdout=said.out, stderr=said.err)

    return run


@pytest.fixture
def refused(matryo):
    return lambda *words: refusal(matryo(*words))


def refusal(done):
    """The one line on stderr of a command that must fail."""
    assert done.returncode == 1, done
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("matryo: error: ")
    return lines[0]


def vectors(folder, *, classes=5, dim=32, seed=0, labels=True):
    """Class means with noise: a database split and one that asks."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(classes, dim))
    for name, count in (("train", 60), ("test", 20)):
        y = np.arange(count) % classes
        z = means[y] + 0.5 * rng.normal(size=(count, dim))
        EmbeddingSet.write(folder / name, z, labels=y if labels else None, nesting=Nesting.halving(dim), model="mine")
    return folder


def test_every_verb_has_help_and_a_word_for_each_option(capsys):
    for verb in VERBS:
        with pytest.raises(SystemExit) as stop:
            main([verb, "--help"])
        assert stop.value.code == 0
        assert verb in capsys.readouterr().out
    for action in build_parser()._subparsers._group_actions[0].choices.values():
        assert all(option.help for option in action._actions)


def test_bad_usage_exits_2():
    assert apart("fly").returncode == 2
    for words in (["train"], ["train", "demo", "--optim.lrr", "3"]):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 2


def test_evaluate_prints_a_table_and_stores_rows(tmp_path):
    folder = vectors(tmp_path / "mine")
    done = apart("evaluate", folder, "--json", tmp_path / "rows.jsonl", "--quiet")
    assert done.returncode == 0, done.stderr
    assert "1-NN" in done.stdout
    row, pca = read_rows(tmp_path / "rows.jsonl")
    assert (row.kind, row.subject.split()[0], pca.figures["model"]) == ("evaluate", "mine", "mine + PCA")
    assert set(row.figures["dims"]) == {"8", "12", "16", "24", "32"}
    assert row.figures["dims"]["32"]["top1"] > 0.9
    assert str(tmp_path) not in json.dumps(row.command)
    printed = apart("evaluate", folder, "--json", "-", "--dims", "4,32", "--baselines", "none")
    assert set(json.loads(printed.stdout)["figures"]["dims"]) == {"4", "32"}


def test_folders_stand_side_by_side(matryo, tmp_path):
    both = [vectors(tmp_path / "a"), vectors(tmp_path / "b", seed=1)]
    done = matryo("evaluate", *both, "--show", "1-NN,mAP@10", "--baselines", "none", "--quiet")
    assert done.returncode == 0, done.stderr
    names, titles = done.stdout.splitlines()[1:3]
    assert names.split() == ["a", "b"]
    assert titles.split() == ["dim", "1-NN", "mAP@10", "1-NN", "mAP@10"]
    assert matryo("evaluate", both[0], "--show", "all", "--quiet").stdout.count(" P@50") == 2


def test_baselines_and_protocols_are_named_and_misspelt_ones_refused(matryo, refused, tmp_path):
    folder = vectors(tmp_path / "mine")
    out = tmp_path / "rows.jsonl"
    done = matryo("evaluate", folder, "--baselines", "random,jl", "--protocols", "few-shot,evaluate", "--json", out)
    assert done.returncode == 0, done.stderr
    told = [(row.kind, row.figures["model"]) for row in read_rows(out)]
    assert told == [
        ("few-shot", "mine"),
        ("evaluate", "mine"),
        ("evaluate", "mine + random features"),
        ("evaluate", "mine + random projection"),
    ]
    assert "4 rows in" in done.stdout
    assert "(got 'few-shots'): did you mean few-shot?" in refused("evaluate", folder, "--protocols", "few-shots")
    assert "choose from truncate, random, pca" in refused("evaluate", folder, "--baselines", "pcaa")
    assert "choose from evaluate, probe" in refused("evaluate", folder, "--protocols", "fewshot", "--json", out)
    assert "must have superclasses" in refused("evaluate", folder, "--protocols", "superclass", "--json", out)
    everything = matryo("evaluate", folder, "--protocols", "all", "--baselines", "all", "--json", out, "--quiet")
    assert everything.returncode == 0, everything.stderr
    assert "skipped superclass of mine: the embeddings must have superclasses" in everything.stderr


def test_splits_without_a_name_are_called_like_their_folders(matryo, refused, tmp_path):
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    clean = 4 * np.eye(3, 8)[labels] + rng.normal(size=(60, 8))
    for split, noise in (("train", 0), ("val", 0), ("wild", 30)):
        EmbeddingSet.write(tmp_path / "mine" / split, clean + noise * rng.normal(size=(60, 8)), labels=labels)
    out = tmp_path / "rows.jsonl"
    done = matryo("evaluate", tmp_path / "mine", "--baselines", "pca", "--dims", "4,8", "--json", out)
    assert done.returncode == 0, done.stderr
    rows = {(row.figures["model"], row.figures["split"]): row.figures["dims"]["8"]["top1"] for row in read_rows(out)}
    assert set(rows) == {(model, split) for model in ("mine", "mine + PCA") for split in ("val", "wild")}
    assert rows["mine + PCA", "val"] > 0.9 > 0.6 > rows["mine + PCA", "wild"]
    assert "must not exceed the 8 dimensions" in refused("evaluate", tmp_path / "mine", "--dims", "4,64")


def test_a_split_of_other_classes_is_left_out_unless_asked_for(matryo, refused, tmp_path):
    folder = vectors(tmp_path / "mine")
    EmbeddingSet.write(folder / "unseen", np.eye(4, 32), labels=[90, 91, 92, 93])
    done = matryo("evaluate", folder, "--quiet")
    assert done.returncode == 0, done.stderr
    assert "skipped unseen" in done.stderr
    assert "of a class that the database holds" in refused("evaluate", folder, "--queries", "unseen")


def test_zero_shot_needs_no_database(matryo, refused, tmp_path):
    rng = np.random.default_rng(0)
    labels = np.arange(12) % 3
    images = 4 * np.eye(3, 8)[labels] + rng.normal(size=(12, 8))
    asked = EmbeddingSet.write(tmp_path / "mine" / "val", images, labels=labels, classes=list("abc"))
    texts = EmbeddingSet.write(tmp_path / "texts", np.eye(3, 8), labels=range(3), classes=list("abc"))
    wanted = zero_shot(texts, asked).top1
    words = ["evaluate", tmp_path / "mine", "--texts", tmp_path / "texts"]
    for queries in (["--queries", "val"], []):
        rows = tmp_path / f"rows{len(queries)}.jsonl"
        done = matryo(*words, *queries, "--protocols", "zero-shot,similarity", "--json", rows)
        assert done.returncode == 0, done.stderr
        found, span = read_rows(rows)
        assert (span.kind, found.figures["split"], found.figures["top1"]) == ("similarity", "val", list(wanted))
    assert "split train" in refused(*words, "--queries", "val", "--protocols", "zero-shot,evaluate")
    assert "split nope" in refused(*words, "--queries", "nope", "--protocols", "zero-shot")
    (tmp_path / "bare").mkdir()
    bare = ["evaluate", tmp_path / "bare", "--texts", tmp_path / "texts", "--protocols", "zero-shot"]
    assert "must hold embeddings (got none): give a folder with" in refused(*bare)


def test_a_run_whose_database_has_another_name_is_told_how_to_say_so(refused, tmp_path):
    folder = vectors(tmp_path / "run" / "embeddings").parent
    (folder / "embeddings" / "train").rename(folder / "embeddings" / "learn")
    (folder / "run.json").write_text(json.dumps({"recipe": {"data": {"train": "learn", "source": "texts"}}}))
    assert "split train (got learn, test): use --database learn" in refused("evaluate", folder)
    assert f"matryo encode {folder} --data DIR --split nope" in refused("evaluate", folder, "--database", "nope")


def test_bad_folders_are_named_with_their_cure(refused, tmp_path):
    for refuse in (refused, lambda *words: refusal(apart(*words))):
        assert "is not a folder" in refuse("evaluate", tmp_path / "nothing")
    folder = vectors(tmp_path / "mine")
    assert "split nope" in refused("evaluate", folder, "--queries", "nope")
    assert "--dims must list dims" in refused("evaluate", folder, "--dims", "8,x")
    assert "must have labels" in refused("evaluate", vectors(tmp_path / "bare", labels=False))
    damaged = vectors(tmp_path / "damaged") / "test" / "vectors.npy"
    damaged.write_bytes(damaged.read_bytes()[:-40])
    assert "vectors.npy" in refused("evaluate", tmp_path / "damaged")


@pytest.mark.parametrize(
    ("words", "raised", "told"),
    [
        (["encode", "run"], KeyboardInterrupt(), "matryo: interrupted; run the same command again to resume\n"),
        (["recipes"], KeyboardInterrupt(), "matryo: interrupted\n"),
        (["encode", "run"], KeyboardInterrupt("saved at step 3"), "matryo: interrupted; saved at step 3\n"),
    ],
)
def test_an_interruption_is_one_line(matryo, monkeypatch, words, raised, told):
    def stop(_args):
        raise raised

    monkeypatch.setattr(f"matryo.cli.{words[0]}.run", stop)
    done = matryo(*words)
    assert (done.returncode, done.stderr) == (130, told)

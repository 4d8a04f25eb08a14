"""An exported folder is whole or absent, replaces nothing unasked, and says what it is."""

import dataclasses
import json
import os
import re

import numpy as np
import pytest
from export_models import image_model, text_model

from matryo import EmbeddingSet, Nesting, train
from matryo import export as room
from matryo.cli.export import FORMATS as TYPED
from matryo.data import array_dataset
from matryo.errors import InputError, MissingExtra
from matryo.evaluation import Relevance, evaluate, pairs
from matryo.export import FORMATS, export
from matryo.export.card import write_card
from matryo.files import lock
from matryo.results import stamp
from matryo.training import load_recipe
from matryo.training.recipe.fields import Encoder

FILES = {"README.md", "config.json", "matryo.json", "model.safetensors"}


def front_matter(folder):
    text = (folder / "README.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^(\w+): (.+)$", text.split("---")[1], re.MULTILINE)), text


@pytest.mark.parametrize(
    ("to", "make", "task"),
    [
        ("sentence-transformers", text_model, "sentence-similarity"),
        ("transformers", text_model, "feature-extraction"),
        ("transformers", lambda: text_model(kind="masked"), "fill-mask"),
        ("timm", image_model, "image-feature-extraction"),
    ],
)
def test_the_card_is_read_by_hubs(to, make, task, tmp_path):
    facts, text = front_matter(export(make(), to, tmp_path / "my-model"))
    assert (facts["library_name"], facts["pipeline_tag"]) == (to, task)
    assert "- matryoshka" in text
    assert "my-model" in text
    assert re.search(r"truncated to their first 8,? .* dimensions", text)
    assert str(tmp_path) not in text
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    compile(code, "card", "exec")


@pytest.mark.parametrize(
    ("encoder", "wanted"),
    [
        ({"name": "timm:hf-hub:owner/vit.v2-1", "pretrained": True}, ["owner/vit.v2-1"]),
        ({"name": "open_clip:hf-hub:owner/clip"}, ["owner/clip"]),
        ({"name": "timm:local-dir:owner/vit", "pretrained": True}, []),
        ({"name": "transformers:owner/bert"}, []),   # may have been a folder
        ({"name": "bert:owner/minilm"}, []),
        ({"name": "vit-s4"}, []),
    ],
)
def test_the_card_names_what_the_model_was_made_from(encoder, wanted, tmp_path):
    assert base_models(tmp_path, **encoder) == wanted


def test_the_card_names_a_model_of_timm_as_its_hub_does(tmp_path):
    pytest.importorskip("timm", exc_type=ImportError)
    name = "timm:vit_base_patch16_clip_quickgelu_224.openai"   # which is called otherwise there
    assert base_models(tmp_path, name=name, pretrained=True) == ["timm/vit_base_patch16_clip_224.openai"]
    assert base_models(tmp_path, name=name) == []   # its weights were not read
    assert base_models(tmp_path, name="timm:gcvit_tiny.in1k", pretrained=True) == []   # which is on no hub


def base_models(folder, **encoder):
    model = text_model()
    recipe = dataclasses.replace(model.recipe, encoder=Encoder(**encoder))
    write_card(folder / "README.md", dataclasses.replace(model, recipe=recipe), "transformers", [], "mine")
    front = (folder / "README.md").read_text(encoding="utf-8").split("---")[1]
    assert "tags:\n- matryoshka" in front
    found = re.search(r"^base_model:\n((?:- .*\n)+)tags:", front, re.MULTILINE)
    return [] if found is None else re.findall("- (.*)", found[1])


def test_the_card_has_a_table_of_every_dim(tmp_path):
    rows = [
        stamp("train", "texts tied", {"top1": {"test": {"8": 0.25, "128": 0.75}}, "seconds": 3.0}, seed=0),
        stamp("similarity", "texts", {"dims": [8, 32], "positive_mean": [0.5, 0.625], "auc": [0.625, 0.75], "name": "x",
                                      "k": [1]}, seed=0),
        stamp("cost", "texts", {"seconds": 3.0}, seed=0),
    ]
    _, text = front_matter(export(text_model(), "transformers", tmp_path / "out", rows=rows))
    tables = re.findall(r"## (\w+): .*\n\n((?:\|.*\n)+)", text)
    assert dict(tables) == {
        "train": "| dim | top1 on test, % |\n|---:|---:|\n| 8 | 25.0 |\n| 128 | 75.0 |\n",
        "similarity": "| dim | positive_mean | auc, % |\n|---:|---:|---:|\n| 8 | 0.5 | 62.5 |\n| 32 | 0.625 | 75.0 |\n",
    }
    assert rows[0].commit in text


@pytest.mark.parametrize(
    ("figure", "shown"),
    [
        ("hit@1", ["hit@1 on test, %", "25.0"]),
        ("reverse hit@10", ["reverse hit@10 on test, %", "25.0"]),
        ("masked_top1", ["masked_top1 on test, %", "25.0"]),
        ("masked_loss", ["masked_loss on test", "0.25"]),
        ("distil_loss", ["distil_loss on test", "0.25"]),
    ],
)
def test_shares_are_percent_and_losses_are_not(figure, shown, tmp_path):
    row = stamp("train", "x", {figure: {"test": {"8": 0.25}}}, seed=0)
    assert tables_of([row], tmp_path / "out")["train"] == {("8", shown[0]): shown[1]}


def tables_of(rows, folder):
    """Each table of a card as {(dim, column): what its cell says}."""
    _, text = front_matter(export(text_model(), "transformers", folder, rows=rows))
    found = {}
    for kind, table in re.findall(r"## (\w+): .*\n\n((?:\|.*\n)+)", text):
        head, _, *lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        found[kind] = {(line[0], name): cell for line in lines for name, cell in zip(head[1:], line[1:], strict=True)}
    return found


def test_the_card_shows_what_was_evaluated_at_every_dim(tmp_path):
    """Every dim of one set is measured for real; what the card says is compared with the result itself."""
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 4
    vectors = rng.normal(size=(40, 16)) + 2 * np.eye(4, 16)[labels]
    some = EmbeddingSet.of(vectors, labels=labels, nesting=Nesting([8, 16]))
    known = evaluate(some.select(range(20)), some.select(range(20, 40)), dims=[4, 8, 16], progress=False)
    shown = tables_of([stamp("evaluate", "x", known.to_figures(), seed=0)], tmp_path / "out")["evaluate"]
    assert {dim for dim, _ in shown} == {"4", "8", "16"}
    for dim in (4, 8, 16):
        assert shown[str(dim), "top1, %"] == f"{100 * known.at(dim).top1:.1f}"
        assert shown[str(dim), "map@10, %"] == f"{100 * known.at(dim).map_at[10]:.1f}"
    assert not {name for _, name in shown if "mflops" in name or "trained" in name or "@100" in name}


@pytest.mark.parametrize(("ks", "k"), [((1, 10), 10), ((1, 5), 5)])
def test_the_card_shows_pairs_in_both_directions(ks, k, tmp_path):
    rng = np.random.default_rng(1)
    images = rng.normal(size=(30, 16))
    a, b = (EmbeddingSet.of(one, nesting=Nesting([8, 16])) for one in (images, images + rng.normal(size=(30, 16))))
    known = pairs(a, b, Relevance.of([[i, i] for i in range(30)]), ks=ks, sides=("images", "texts"), progress=False)
    row = stamp("pairs", "x", json.loads(json.dumps(known.to_figures())), seed=0)
    wanted = {
        (str(dim), f"{metric}@{k} {words}, %"): f"{100 * value:.1f}"
        for place, words in enumerate(("images → texts", "texts → images"))
        for metric in ("hit", "recall", "nDCG", "MRR")
        for dim, value in zip((8, 16), known.at(metric, k, place), strict=True)
    }
    assert tables_of([row], tmp_path / "out")["pairs"] == wanted


def test_a_model_of_one_dim_promises_no_other(tmp_path):
    _, text = front_matter(export(image_model(dims=(64,)), "timm", tmp_path / "out"))
    assert "trained for 64 dimensions only" in text


def test_nothing_is_replaced_unasked(tmp_path):
    model, out = image_model(), tmp_path / "deep" / "out"
    export(model, "timm", out)
    before = (out / "model.safetensors").read_bytes()
    other = image_model(dims=(8, 16))
    with pytest.raises(InputError, match=r"the export already exists .*choose another --out, or pass --force"):
        export(other, "timm", out)
    assert (out / "model.safetensors").read_bytes() == before
    export(other, "timm", out, overwrite=True)
    assert {path.name for path in out.iterdir()} == FILES
    assert [path.name for path in out.parent.iterdir()] == ["out"], "no half folder is left"
    (tmp_path / "empty").mkdir()
    export(model, "timm", tmp_path / "empty")


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("what", ["a file", "a folder of files", "a folder with a card of somebody's"])
def test_what_no_export_wrote_is_never_replaced(what, overwrite, tmp_path):
    out = tmp_path / "out"
    inside = out if what == "a file" else out / ("README.md" if "card" in what else "photo.png")
    inside.parent.mkdir(exist_ok=True)
    inside.write_text("---\ntags:\n- theirs\n---\n")
    rule = rf"{out} must be free, or hold an export as it was written \(got no matryo.json\): choose another --out"
    with pytest.raises(InputError, match=rule):
        export(image_model(), "timm", out, overwrite=overwrite)
    assert inside.read_text() == "---\ntags:\n- theirs\n---\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_clone_of_a_hub_keeps_its_history(tmp_path):
    out = export(image_model(), "timm", tmp_path / "out")
    (out / ".git").mkdir()
    (out / ".git" / "HEAD").touch()
    with pytest.raises(InputError, match=r"as it was written \(got \.git/HEAD\)"):
        export(image_model(), "timm", out, overwrite=True)
    assert (out / ".git" / "HEAD").exists()


@pytest.mark.parametrize("name", [".precious.tmp", "notes/mine.txt", "README.md", "config.json"])
def test_an_export_with_something_of_the_users_is_never_replaced(name, tmp_path):
    out = export(image_model(), "timm", tmp_path / "out")
    (out / name).parent.mkdir(exist_ok=True)
    with (out / name).open("a") as file:
        file.write(" ")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=rf"as it was written \(got .*{name.split('/')[0]}.*move your files away"):
        export(image_model(), "timm", out, overwrite=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_run_is_not_replaced_by_its_export(tmp_path):
    """Nor is what it lies in, even where the card of an export is beside it."""
    pixels = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8)
    small = {"encoder.name": "resnet18", "encoder.dim": "0", "head.dims": "8,64", "data.test": "", "loop.epochs": "1",
             "loop.batch": "2"}  # fmt: skip
    images = array_dataset({"train": (pixels, [0, 0, 1, 1])})
    run = train(load_recipe("demo", small), images, tmp_path / "hub" / "run", progress=False)
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    inside = export(run, "timm", run / "export" / "timm")
    assert export(run, "timm", inside, overwrite=True) == inside, "in a run an export may lie"
    for out in (run, run / "export" / "..", run.parent):
        for name in ("README.md", "matryo.json"):
            (out / name).write_bytes((inside / name).read_bytes())
        with pytest.raises(InputError, match="must be free, or hold an export as it was written"):
            export(run, "timm", out, overwrite=True)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("how", ["here", "by a link"])
def test_an_export_is_replaced_however_it_is_named(how, tmp_path, monkeypatch):
    real = export(image_model(), "timm", tmp_path / "real")
    (real / "config.json").unlink()   # a part of an export may be missing
    monkeypatch.chdir(real)
    if how == "by a link":
        (tmp_path / "link").symlink_to(real)
    export(image_model(), "timm", "." if how == "here" else "../link", overwrite=True)
    assert {path.name for path in real.iterdir()} == FILES
    assert sorted(path.name for path in tmp_path.iterdir()) == (["real"] if how == "here" else ["link", "real"])
    assert "# real" in (real / "README.md").read_text()


def test_what_a_killed_export_left_is_swept(tmp_path):
    names = [".out.0123abcd.tmp", ".out.89abcdef.tmp", ".out.mine.tmp", ".other.0123abcd.tmp", ".out.fedcba98.tmp"]
    for name in names:
        (tmp_path / name / "new").mkdir(parents=True)
        (tmp_path / name / "new" / "half").write_text("x")
    (tmp_path / names[4] / "mine").write_text("in a folder with such a name no export writes this")
    writing = lock(tmp_path / names[1])   # as an export that lives does
    export(image_model(), "timm", tmp_path / "out")
    os.close(writing)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names[1:], "out"])
    export(image_model(), "timm", tmp_path / "out", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names[2:], "out"])


def test_an_export_under_way_is_left_alone(tmp_path, monkeypatch):
    """Another begins while the first writes: neither takes the other's folder away."""
    write = room.to_timm.write_weights

    def begin_another(path, weights):
        monkeypatch.setattr(room.to_timm, "write_weights", write)
        export(image_model(), "timm", tmp_path / "out")
        write(path, weights)

    monkeypatch.setattr(room.to_timm, "write_weights", begin_another)
    export(image_model(), "timm", tmp_path / "out", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise MissingExtra("something", "extra")

    monkeypatch.setattr(room.to_timm, "write_weights", fail)
    with pytest.raises(MissingExtra):
        export(image_model(), "timm", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_formats_are_named(tmp_path):
    assert tuple(FORMATS) == TYPED
    with pytest.raises(InputError, match=r"unknown format \(got 'sentence_transformers'\): did you mean sentence-tran"):
        export(text_model(), "sentence_transformers", tmp_path / "out")
    with pytest.raises(InputError, match=r"unknown format \(got 'keras'\): choose one of sentence-transformers,"):
        export(text_model(), "keras", tmp_path / "out")

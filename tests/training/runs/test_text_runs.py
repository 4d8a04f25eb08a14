"""Whole runs on texts, pairs and images with captions: they learn, survive an interruption bit for bit, and load."""

import json
import math
import shutil
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("tokenizers")

import texts_made as made
from texts_made import figures, recipe

from matryo import EmbeddingSet, truncate
from matryo.data import text_dataset
from matryo.encoders import Bert, Tokens, build_encoder
from matryo.errors import DataError, InputError, RecipeError, RunError
from matryo.inference import encode_pairs, encode_split, load
from matryo.training import loop, train
from matryo.training.model import start_from
from matryo.training.run.checkpoint import load_weights

RUNS = {
    "texts": (made.labelled, {}),
    "masked": (made.corpus, {"objective__kind": "masked", "head__kind": "tied"}),
    "pairs": (lambda: made.pairs(negatives=1), {"objective__kind": "pairs", "objective__learn_temperature": "yes"}),
    "captions": (made.captions, {"objective__kind": "pairs", "encoder__name": "convnet", "encoder__dim": 128,
                                 "text__encoder": "bert-tiny", "encoder__pooling": "mean"}),
}  # fmt: skip


class Interrupted(loop.Log):
    """Ctrl-C at the fifth step, which is in the middle of an epoch or in the second."""

    def line(self, step, kind, **found):
        super().line(step, kind, **found)
        if step == 5 and kind == "train":
            signal.raise_signal(signal.SIGINT)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One finished run of each kind."""
    root = tmp_path_factory.mktemp("runs")
    return {name: train(recipe(loop__epochs=3, **changes), data(), root / name, progress=False)
            for name, (data, changes) in RUNS.items()}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_interrupted_it_ends_with_the_same_bits(runs, tmp_path, monkeypatch, name):
    data, changes = RUNS[name]
    with monkeypatch.context() as patched:
        patched.setattr(loop, "Log", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(recipe(loop__epochs=3, **changes), data(), tmp_path / "run", progress=False)
    torch.manual_seed(99)   # whatever happens between, dropout goes on as it would have
    train(recipe(loop__epochs=3, **changes), data(), tmp_path / "run", progress=False)
    wanted, got = (load_weights(run / "model.safetensors") for run in (runs[name], tmp_path / "run"))
    assert wanted.keys() == got.keys()
    assert all(torch.equal(wanted[key], got[key]) for key in wanted)


def test_training_leaves_the_callers_chance_alone(tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    train(recipe(loop__epochs=1), made.labelled(), tmp_path / "run", progress=False)
    assert torch.equal(torch.get_rng_state(), before)
    (tmp_path / "run" / "run.json").unlink()   # as if it had been killed before the end
    train(recipe(loop__epochs=1), made.labelled(), tmp_path / "run", progress=False)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_of_no_epochs_is_the_encoder_as_it_came(tmp_path):
    made.tokenizer().save(tmp_path / "theirs" / "tokenizer.json")
    theirs = Bert(build_encoder("bert-tiny", vocabulary=made.tokenizer().vocabulary, length=16).config).eval()
    theirs.save(tmp_path / "theirs")
    kept = {"encoder__name": f"bert:{tmp_path / 'theirs'}", "objective__kind": "pairs", "head__kind": "fixed",
            "head__dims": "", "loop__epochs": 0, "loop__batch": 512}  # fmt: skip
    run = train(recipe(**kept), made.pairs(), tmp_path / "run", progress=False)
    stored = load_weights(run / "model.safetensors")
    for name, weight in theirs.state_dict().items():
        assert torch.equal(stored[f"encoder.{name}"], weight)
    model, texts = load(run, device="cpu"), made.sentences(5)
    ids, mask = model.tokenizer.encode(texts, 16)
    with torch.no_grad():
        vectors = theirs(Tokens(torch.from_numpy(ids).long(), torch.from_numpy(mask)))
    torch.testing.assert_close(torch.from_numpy(model.encode(texts, normalize=False)), vectors)
    assert (model.nesting.dims, figures(run)["hit@10"]["test"].keys()) == ((128,), {"128"})
    assert (run / "recipe.toml").is_file() and not (run / "checkpoint.safetensors").exists()
    train(recipe(**kept), made.pairs(), run, progress=False)   # which is complete
    unlabelled = text_dataset({"train": texts, "test": texts})
    assert len(load(train(recipe(**kept, data__test=""), unlabelled, tmp_path / "texts", progress=False)).encode(texts))


@pytest.mark.parametrize(
    "changes",
    [{"encoder__name": "bert-tiny"}, {"objective__kind": "classify"}, {"objective__kind": "masked"},
     {"head__kind": "tied", "head__dims": "8,128"}, {"encoder__dim": 64}, {"text__encoder": "bert-tiny"}],
)  # fmt: skip
def test_what_nobody_trained_is_not_kept(changes):
    kept = {"encoder__name": "bert:theirs", "objective__kind": "pairs", "head__kind": "fixed", "head__dims": ""}
    with pytest.raises(RecipeError, match=r"loop\.epochs 0 needs a model whose weights are all pretrained"):
        recipe(**{**kept, **changes}, loop__epochs=0)
    assert recipe(**{**kept, **changes}, loop__epochs=0, loop__steps=3).loop.steps == 3


def test_smaller_dims_join_when_they_are_told_to(tmp_path):
    plain = {"objective__kind": "masked", "loop__steps": 6, "loop__precision": "fp32", "optim__name": "sgd"}

    def weights(name, **changes):
        run = train(recipe(**plain, **changes), made.corpus(), tmp_path / name, progress=False)
        return load_weights(run / "model.safetensors")

    def same(one, other):
        return all(torch.allclose(one[key], other[key], atol=1e-6) for key in one)

    fixed = weights("fixed", head__kind="fixed", head__dims=128)
    assert same(fixed, weights("never", head__kind="tied", head__join=0.99))   # after 5.94 of 6 steps: at none
    halfway = weights("halfway", head__kind="tied", head__join=0.5)
    assert not same(halfway, fixed)
    assert not same(halfway, weights("at once", head__kind="tied"))


def test_joining_survives_an_interruption(tmp_path, monkeypatch):
    changes = {"objective__kind": "masked", "head__kind": "tied", "head__join": 0.5, "loop__steps": 10}
    whole = train(recipe(**changes), made.corpus(), tmp_path / "whole", progress=False)
    with monkeypatch.context() as patched:
        patched.setattr(loop, "Log", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(recipe(**changes), made.corpus(), tmp_path / "cut", progress=False)
    cut = train(recipe(**changes), made.corpus(), tmp_path / "cut", progress=False)
    wanted, got = (load_weights(run / "model.safetensors") for run in (whole, cut))
    assert all(torch.equal(wanted[key], got[key]) for key in wanted)


def test_they_learn(tmp_path):
    run = train(recipe(loop__epochs=6), made.labelled(), tmp_path / "texts", progress=False)
    assert min(figures(run)["top1"]["test"].values()) > 0.8
    run = train(recipe(objective__kind="pairs", loop__epochs=5), made.pairs(), tmp_path / "pairs", progress=False)
    assert min(figures(run)["hit@10"]["test"].values()) == 1.0
    assert figures(run)["hit@1"]["test"]["128"] >= 0.8


def test_a_run_says_what_it_counted(runs):
    found = {name: figures(run) for name, run in runs.items()}
    speeds = {name: [key for key in one if key.endswith("_per_second")] for name, one in found.items()}
    assert speeds == {"texts": ["texts_per_second"], "masked": ["windows_per_second"], "pairs": ["pairs_per_second"],
                      "captions": ["pairs_per_second"]}  # fmt: skip
    assert set(found["masked"]) >= {"masked_top1", "masked_loss"}
    assert set(found["pairs"]) >= {"hit@1", "hit@10", "reverse hit@1", "reverse hit@10"}
    rows = {name: json.loads((run / "run.json").read_text())["row"]["subject"] for name, run in runs.items()}
    assert rows["masked"] == "small tied"
    assert rows["pairs"] == "small nested"


@pytest.mark.parametrize("name", RUNS)
def test_a_loaded_model_encodes_at_any_dim(runs, name):
    model = load(runs[name], device="cpu")
    texts = ["cat purr", "the dog barks in the night"]
    whole = model.encode(texts)
    assert whole.shape == (2, 128)
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(model.encode(texts, dim=20), truncate(whole, 20), atol=1e-6)
    # A text alone has no padding, and the same vector.
    np.testing.assert_allclose(model.encode(texts[0]), whole[:1], atol=1e-5)
    assert model.encode([]).shape == (0, 128)
    np.testing.assert_allclose(load(runs[name], device="cpu", precision="bf16").encode(texts), whole, atol=2e-2)
    with pytest.raises(InputError, match=r"unknown precision.*'fp16'.*choose one of fp32, bf16"):
        load(runs[name], device="cpu", precision="fp16")


def test_images_and_texts_are_told_apart(runs, tmp_path):
    model, data = load(runs["captions"], device="cpu"), made.captions()
    assert model.sides == ("images", "texts")
    image = data.split("train").queries.image(0)
    from PIL import Image

    Image.fromarray(image).save(tmp_path / "one.png")
    wanted = model.encode(image[None])
    for same in ([image], [tmp_path / "one.png"], [Image.fromarray(image)]):
        np.testing.assert_array_equal(model.encode(same), wanted)
    np.testing.assert_array_equal(model.encode([str(tmp_path / "one.png")], side="queries"), wanted)
    assert not np.allclose(model.encode([str(tmp_path / "one.png")]), wanted)   # a text, unless the side says images
    with pytest.raises(InputError, match=r"side must be queries or candidates.*'left'"):
        model.encode(["cat"], side="left")
    with pytest.raises(InputError, match=r"side must be.*trained on no pairs"):
        load(runs["texts"], device="cpu").encode(["cat"], side="queries")
    with pytest.raises(InputError, match=r"this model reads texts.*got ndarray"):
        load(runs["texts"], device="cpu").encode(image[None])
    with pytest.raises(InputError, match=r"this model reads texts.*got int"):
        load(runs["pairs"], device="cpu").encode([1, 2])


def test_pairs_are_encoded_as_two_folders_and_their_relevance(runs, tmp_path):
    model, data = load(runs["pairs"], device="cpu"), made.pairs()
    queries, candidates = encode_pairs(model, data, "test", tmp_path / "e", progress=False)
    split = data.split("test")
    assert (len(queries), len(candidates)) == (10, 10)
    texts = [split.queries.text(i) for i in range(10)]
    np.testing.assert_allclose(truncate(np.array(queries.vectors), 128), model.encode(texts), atol=1e-6)
    lines = (tmp_path / "e" / "relevance.tsv").read_text().splitlines()
    assert lines[0].split("\t") == ["query-id", "corpus-id", "score"]
    place = {key: i for i, key in enumerate(EmbeddingSet.open(tmp_path / "e" / "candidates").ids)}
    asked = {key: i for i, key in enumerate(EmbeddingSet.open(tmp_path / "e" / "queries").ids)}
    found = [(asked[query], place[candidate], float(score)) for query, candidate, score in map(str.split, lines[1:])]
    assert found == [(q, c, 1.0) for q, c in split.pairs.tolist()]
    again = encode_pairs(model, data, "test", tmp_path / "e", progress=False)
    assert np.array_equal(again[0].vectors, queries.vectors)
    with pytest.raises(InputError, match=r"items, not pairs.*encode_pairs"):
        encode_split(model, data, "test", tmp_path / "f")


def test_texts_are_encoded_with_their_head(runs, tmp_path):
    model, data = load(runs["texts"], device="cpu"), made.labelled()
    stored = encode_split(model, data, "test", tmp_path / "e", progress=False)
    right = (stored.head.logits(np.array(stored.vectors), 128).argmax(1) == stored.labels).mean()
    assert right == pytest.approx(figures(runs["texts"])["top1"]["test"]["128"])
    bare = encode_split(load(runs["masked"], device="cpu"), made.corpus(), "test", tmp_path / "m", progress=False)
    assert bare.head is None


# --- starting from given weights ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A BERT with its tokenizer, as a Hugging Face folder holds them."""
    path = tmp_path_factory.mktemp("bert")
    words = made.tokenizer()
    torch.manual_seed(0)
    build_encoder("bert-tiny", vocabulary=words.vocabulary, length=32).save(path)
    words.save(path)
    return path


def test_a_folder_gives_weights_and_tokenizer_and_is_not_needed_afterwards(folder, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(folder, source)
    changes = {"encoder__name": f"bert:{source}", "finetune__unfreeze": "encoder.layer.1", "objective__kind": "pairs"}
    run = train(recipe(**changes), made.pairs(), tmp_path / "run", progress=False)
    before, after = load_weights(folder / "model.safetensors"), load_weights(run / "model.safetensors")
    assert (run / "tokenizer.json").read_text() == (folder / "tokenizer.json").read_text()
    kept = {name: after[f"encoder.{name}"] for name in before if f"encoder.{name}" in after}   # no pooler
    changed = {name for name, value in kept.items() if not torch.equal(before[name], value)}
    assert changed
    assert all(name.startswith("encoder.layer.1.") for name in changed)
    vectors = load(run, device="cpu").encode(["cat purr"])
    shutil.rmtree(source)
    np.testing.assert_array_equal(load(run, device="cpu").encode(["cat purr"]), vectors)


def test_a_run_goes_on_from_another_with_its_tokenizer(runs, tmp_path):
    run = train(recipe(finetune__start=runs["masked"], text__vocabulary=30), made.labelled(), tmp_path / "run",
                progress=False)  # fmt: skip
    assert (run / "tokenizer.json").read_text() == (runs["masked"] / "tokenizer.json").read_text()


def test_a_tokenizer_left_by_a_run_that_failed_is_made_anew(tmp_path):
    with pytest.raises(InputError, match="unknown encoder"):
        wrong = recipe(encoder__name="bert-tinny", text__vocabulary=60)
        train(wrong, made.labelled(), tmp_path / "run", progress=False)
    assert (tmp_path / "run" / "tokenizer.json").exists()
    train(recipe(loop__epochs=1), made.labelled(), tmp_path / "run", progress=False)
    assert load(tmp_path / "run", device="cpu").tokenizer.vocabulary > 60


def test_a_student_learns_from_a_run_and_from_a_folder(runs, folder, tmp_path):
    taught = recipe(objective__kind="distil", objective__teacher=runs["texts"], loop__epochs=4, head__dims="16,128")
    student = train(taught, made.labelled(), tmp_path / "a", progress=False)
    lines = [json.loads(line) for line in (student / "metrics.jsonl").read_text().splitlines()]
    training = [line["loss"] for line in lines if line["kind"] == "train"]
    assert all(training[-1][dim] < 0.7 * training[0][dim] for dim in ("16", "128"))
    assert "top1" not in lines[0]
    assert set(figures(student)["distil_loss"]["test"]) == {"16", "128"}
    both = recipe(objective__kind="pairs", objective__distil=1, objective__teacher=f"bert:{folder}", loop__epochs=1)
    run = train(both, made.pairs(), tmp_path / "b", progress=False)
    assert (run / "tokenizer.json").read_text() == (folder / "tokenizer.json").read_text()


def test_what_does_not_fit_together_is_named(folder, tmp_path):
    made.tokenizer(60).save(tmp_path / "other.json")
    cases = [
        (made.pairs, {"objective__kind": "distil", "objective__teacher": f"bert:{folder}",
                      "text__tokenizer": tmp_path / "other.json"}, "must use the same tokenizer"),
        (made.pairs, {"encoder__name": "transformers:nobody/nothing", "objective__kind": "pairs"}, "own tokenizer"),
        (made.labelled, {"finetune__unfreeze": "encoder.layer.1"}, "unfreeze needs pretrained weights"),
        (made.pairs, {"objective__kind": "pairs", "objective__teacher": f"bert:{folder}"},
         r"no loss uses it .*distil 0"),
        (made.labelled, {"objective__teacher": f"bert:{folder}", "objective__distil": 1}, "no loss uses it"),
        (made.labelled, {"objective__kind": "distil", "objective__teacher": "runs/nowhere"},
         r"folder of a complete run, or an encoder \(got runs/nowhere, which does not exist"),
        (made.pairs, {"objective__kind": "pairs", "objective__temperature": 0.001}, "temperature must be 0.01 or more"),
        (made.pairs, {"objective__kind": "pairs", "loop__batch": 1}, "compares the items of a batch"),
        (made.captions, {"objective__kind": "masked", "head__kind": "tied"}, "needs items, not pairs"),
        (made.pairs, {"objective__kind": "pairs", "encoder__name": f"bert:{folder}", "finetune__unfreeze": "none"},
         r"the model has no parameters to train \(got objective.kind pairs"),
    ]  # fmt: skip
    for number, (data, changes, message) in enumerate(cases):
        with pytest.raises(RecipeError, match=message):
            train(recipe(**changes), data(), tmp_path / f"run{number}", progress=False)


def test_an_encoder_that_cannot_read_the_data_is_named_at_the_start(tmp_path):
    both, pairs = {"objective__kind": "pairs", "encoder__dim": 128}, {"objective__kind": "pairs"}
    cases = [
        (made.labelled, {"encoder__name": "convnet"},
         r"encoder.name must read texts \(got convnet, which reads images\): .*--encoder.name bert-small"),
        (made.pairs, {**pairs, "encoder__name": "timm:resnet18"}, r"encoder.name must read texts \(got timm:resnet18"),
        (made.pictures, {}, r"encoder.name must read images \(got bert-tiny, which .* --encoder.name resnet18"),
        (made.captions, {**both, "encoder__name": "convnet"},
         r"images and texts need .*\(got encoder.name convnet and no text.encoder\): use --text.encoder bert-small$"),
        (made.captions, both, r"an encoder of each .*use --text.encoder bert-tiny --encoder.name resnet18"),
        (made.captions, {**both, "text__encoder": "bert-tiny"}, r"encoder.name must read images \(got bert-tiny"),
        (made.captions, {**both, "encoder__name": "convnet", "text__encoder": "vit-s4"},
         r"text.encoder must read texts \(got vit-s4, which reads images\)"),
        (made.pairs, {**pairs, "text__encoder": "bert-mini"},
         r'and texts \(got bert-mini, and a split of texts only\): .*--text.encoder "" --encoder.name bert-mini'),
        (made.pictures, {"encoder__name": "convnet", "text__encoder": "bert-mini"}, r'images only\).*encoder ""$'),
        (made.pairs, {"objective__kind": "distil", "objective__teacher": "timm:resnet18"},
         r"must read the same inputs as the student \(got timm:resnet18, which reads images, and texts\): choose"),
    ]  # fmt: skip
    for number, (data, changes, message) in enumerate(cases):
        out = tmp_path / f"run{number}"
        with pytest.raises(RecipeError, match=message):
            train(recipe(**changes), data(), out, progress=False)
        assert not (out / "tokenizer.json").exists(), "nothing was made for a run that cannot begin"


def test_a_run_that_reads_something_else_is_no_teacher(tmp_path):
    train(recipe(encoder__name="convnet"), made.pictures(), tmp_path / "images", progress=False)
    changes = {"objective__kind": "distil", "objective__teacher": str(tmp_path / "images")}
    with pytest.raises(RecipeError, match=r"\(got .*images, which reads images, and texts\): choose another"):
        train(recipe(**changes), made.pairs(), tmp_path / "texts", progress=False)
    assert not (tmp_path / "texts" / "tokenizer.json").exists()


def test_classes_that_nobody_knows_are_named_at_the_start(tmp_path):
    with pytest.raises(RecipeError, match=r"classify needs labels \(got a training split of 40 texts without labels\): "
                                          r".*--objective.kind masked \(with --head.kind tied\) or pairs"):  # fmt: skip
        train(recipe(), made.corpus(), tmp_path / "texts", progress=False)
    with pytest.raises(RecipeError, match=r"split of 24 images without labels.*--objective.kind pairs"):
        train(recipe(encoder__name="convnet"), made.pictures(known=False), tmp_path / "images", progress=False)


def test_a_berts_own_weights_are_a_start(folder, tmp_path):
    """The folder, its file, and that file as a model with a head has it; the oracle is the folder opened as a BERT."""
    stored = load_weights(folder / "model.safetensors")
    save_file({f"bert.{name}": value for name, value in stored.items()}, tmp_path / "headed.safetensors")
    wanted = Bert.open(folder).state_dict()
    for place in (folder, folder / "model.safetensors", tmp_path / "headed.safetensors"):
        encoder = build_encoder("bert-tiny", vocabulary=made.tokenizer().vocabulary, length=32)
        assert not torch.equal(encoder.words, wanted["embeddings.word_embeddings.weight"])
        start_from(encoder, place)
        assert all(torch.equal(value, wanted[name]) for name, value in encoder.state_dict().items())
    changes = {"finetune__start": folder, "text__length": 32, "finetune__unfreeze": "none"}
    run = train(recipe(**changes), made.labelled(), tmp_path / "run", progress=False)
    after = load_weights(run / "model.safetensors")
    assert all(torch.equal(after[f"encoder.{name}"], value) for name, value in wanted.items())


def test_texts_longer_than_an_encoder_are_named_at_the_start(runs, folder, tmp_path):
    long = {"text__length": 40, "objective__kind": "pairs"}
    cases = [
        ({"encoder__name": f"bert:{folder}"}, RecipeError, r"32 positions of bert:.*got 40\): use --text.length 32"),
        ({"objective__distil": 1, "objective__teacher": f"bert:{folder}"}, RecipeError, r"32 positions of the teacher"),
        ({"objective__distil": 1, "objective__teacher": runs["pairs"]}, RecipeError, r"16 positions of the teacher"),
        ({"finetune__start": runs["pairs"]}, RunError, r"0 missing and 1 of another shape.*use .*--text.length 16"),
        ({"finetune__start": folder}, RunError, r"0 missing and 1 of another shape.*use .*--text.length 32"),
        ({"finetune__start": folder, "encoder__name": "bert-mini"}, RunError, r"missing and .*name bert:FOLDER"),
    ]  # fmt: skip
    for number, (changes, error, message) in enumerate(cases):
        with pytest.raises(error, match=message):
            train(recipe(**long, **changes), made.pairs(), tmp_path / f"run{number}", progress=False)


def test_a_corpus_too_short_to_be_tested_on_is_told_before_training(tmp_path):
    short = text_dataset({"train": made.sentences(40, 30), "test": ["cat"]})
    _, changes = RUNS["masked"]
    with pytest.raises(DataError, match=r"the texts must fill one window \(got 2 tokens, windows of 16"):
        train(recipe(**changes), short, tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_texts_without_an_ordinary_word_ask_for_nothing(tmp_path):
    """All that a vocabulary does not know is one special token; whole batches may consist of it."""
    texts = ["cat dog " * 20] * 8 + ["§ ¶ " * 40] * 24
    made.tokenizer().save(tmp_path / "words.json")
    data = text_dataset({"train": texts, "test": texts[:8]})
    _, changes = RUNS["masked"]
    run = train(recipe(**changes, loop__parts=4, text__tokenizer=tmp_path / "words.json"), data, tmp_path / "run",
                progress=False)  # fmt: skip
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(math.isfinite(value) for line in lines if line["kind"] == "train" for value in line["loss"].values())


def test_other_negatives_or_texts_are_another_run(tmp_path):
    pairs = {"objective__kind": "pairs", "loop__steps": 1}
    train(recipe(**pairs), made.pairs(negatives=1), tmp_path / "run", progress=False)
    with pytest.raises(RunError, match=r"holds another run .*dataset labels"):
        train(recipe(**pairs), made.pairs(negatives=2), tmp_path / "run", progress=False)


def test_another_corpus_of_as_many_texts_is_another_run(runs):
    _, changes = RUNS["masked"]
    other = text_dataset({name: [text[::-1] for text in split] for name, split in made.corpus().splits.items()})
    with pytest.raises(RunError, match=r"holds another run .*dataset content"):
        train(recipe(loop__epochs=3, **changes), other, runs["masked"], progress=False)

"""A damaged test image is found before training; found only after it, it is excluded and counted."""

import json

import pytest

pytest.importorskip("torch")

import numpy as np
from PIL import Image

from matryo.data import Pairs, TextRows, image_folder
from matryo.errors import DataError
from matryo.training import held_out, train
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import override
from matryo.training.unreadable import readable


def recipe(**changes):
    fields = {"data.source": "folder", "data.test": "val", "data.size": "8", "encoder.dim": "8", "loop.batch": "4",
              "loop.steps": "1", "loop.device": "cpu", "augment.pad": "1", "data.workers": "0"}  # fmt: skip
    return override(Recipe(name="small"), {**fields, **{k.replace("__", "."): str(v) for k, v in changes.items()}})


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in ("a", "b"):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for number in range(4):
                image = Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8))
                image.save(tmp_path / "data" / split / name / f"{number}.png")
    return tmp_path / "data"


def damage(folder, *names):
    for name in names:
        path = folder / "val" / name
        path.write_bytes(path.read_bytes()[:40])


def test_it_stops_before_training_with_the_cure(folder, tmp_path):
    damage(folder, "a/1.png", "b/3.png")
    with pytest.raises(DataError, match=r"'val' must be readable \(got 2 images .*a/1.png.*--data.damaged gray"):
        train(recipe(), image_folder(folder), tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_gray_excludes_it_from_the_figure(folder, tmp_path):
    damage(folder, "a/1.png")
    seen = []
    with pytest.MonkeyPatch.context() as patched, pytest.warns(UserWarning, match=r"1 image of the test split 'val'"):
        real = held_out.measure

        def watched(measured, split):
            seen.append(len(split))
            return real(measured, split)

        patched.setattr(held_out, "measure", watched)
        run = train(recipe(data__damaged="gray"), image_folder(folder), tmp_path / "run", progress=False)
    assert seen == [7]
    assert json.loads((run / "run.json").read_text())["unreadable"] == {"val": 1}


def test_damage_during_training_does_not_end_the_run(folder, tmp_path):
    data = image_folder(folder)
    with pytest.MonkeyPatch.context() as patched, pytest.warns(UserWarning, match="do not count in its figures"):
        real = held_out.HeldOut.measure

        def later(self, run, log):
            damage(folder, "b/0.png")
            return real(self, run, log)

        patched.setattr(held_out.HeldOut, "measure", later)
        run = train(recipe(), data, tmp_path / "run", progress=False)
    facts = json.loads((run / "run.json").read_text())
    assert facts["unreadable"] == {"val": 1}
    assert all(round(value * 7, 6) % 1 == 0 for value in facts["row"]["figures"]["top1"]["val"].values())


def test_pairs_lose_the_pairs_of_a_damaged_image(folder):
    damage(folder, "a/1.png")
    images = image_folder(folder).split("val")
    texts = TextRows([f"text {i}" for i in range(8)])
    pairs = Pairs(images, texts, [(i, 7 - i) for i in range(8)])
    kept, errors = readable(pairs, "val", sample=True, progress=False)
    assert len(errors) == 1
    rows = [(kept.queries.name(q), kept.candidates.text(c)) for q, c in kept.pairs]
    assert rows == [(images.name(i), f"text {7 - i}") for i in range(8) if i != 1]

"""Names inside recipes and data files never lead out of the folder that they belong to."""

import json

import numpy as np
import pytest
from PIL import Image

from matryo.data import open_dataset
from matryo.data.dataset import Dataset
from matryo.encoders.bert.folder import BertFolder
from matryo.errors import DataError, InputError, RecipeError
from matryo.training.recipe.load import load_recipe
from matryo.training.run.paths import RunFolder

OUTSIDE = ["/abs", "../../x", "..", ".", "", "a/b", "a\\b", "a\nb", "a\0b", "x" * 256]


@pytest.mark.parametrize("name", OUTSIDE)
def test_the_name_of_a_recipe_is_a_plain_file_name(tmp_path, name):
    path = tmp_path / "recipe.toml"
    path.write_text(f"name = {json.dumps(name)}\n", encoding="utf-8")
    with pytest.raises(RecipeError, match="plain file name"):
        load_recipe(path)


def test_ordinary_names_are_kept(tmp_path):
    for name in ("demo", "my run", "größer.v2", "…"):
        (tmp_path / "recipe.toml").write_text(f'name = "{name}"\n', encoding="utf-8")
        assert load_recipe(tmp_path / "recipe.toml").name == name


def test_an_older_run_named_like_a_path_still_loads(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"recipe": {"name": "../sweep/one"}}))
    assert RunFolder(tmp_path).recipe.name == "one"


def image(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)


@pytest.mark.parametrize("line", ["../secret/a.png", "train/../../secret/a.png", "{root}/secret/a.png"])
def test_a_list_file_stays_in_the_image_folder(tmp_path, line):
    image(tmp_path / "secret" / "a.png")
    image(tmp_path / "data" / "train" / "cat" / "a.png")
    (tmp_path / "data" / "test.txt").write_text(line.format(root=tmp_path) + "\tcat\n")
    with pytest.raises(DataError, match=r"below the image folder.*link the images"):
        open_dataset("folder", tmp_path / "data")


def test_a_list_file_follows_links(tmp_path):
    image(tmp_path / "elsewhere" / "a.png")
    image(tmp_path / "data" / "train" / "cat" / "a.png")
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "test.txt").write_text("linked/a.png\tcat\n")
    assert open_dataset("folder", tmp_path / "data").split("test").image(0).shape == (8, 8, 3)


@pytest.mark.parametrize("name", OUTSIDE)
def test_the_name_of_a_split_is_a_plain_file_name(name):
    with pytest.raises(DataError, match="plain file name"):
        Dataset("mine", (), {name: []})


def test_the_splits_of_captions_do_not_lead_out_of_a_run(tmp_path):
    image(tmp_path / "images" / "a.png")
    content = {"keys": ["a.png"], "split": ["../../../x"], "captions": [["a cat"]]}
    (tmp_path / "captions.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="plain file name"):
        open_dataset("captions", tmp_path)


def test_the_modules_of_a_bert_lie_in_its_folder(tmp_path):
    modules = [{"type": "sentence_transformers.models.Transformer", "path": "../other"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match="must lie in its folder"):
        BertFolder.open(tmp_path)

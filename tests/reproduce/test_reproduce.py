"""`matryo reproduce` from training to the page, at a tiny scale; and what it refuses before the work."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from matryo.cli import main
from matryo.errors import InputError, StorageError
from matryo.reproduce import SCALES, TABLES, chosen_tables, reproduce
from matryo.reproduce.models import boosted, fixed, from_dim, nested
from matryo.reproduce.run import ROWS
from matryo.reproduce.runs import Workshop
from matryo.reproduce.write import write_page

TINY = dataclasses.replace(
    SCALES["small"],
    name="tiny",
    changes={"data.source": "folder", "encoder.dim": "32", "loop.epochs": "1", "loop.batch": "8", "optim.peak": "0.5",
             "data.test": "", "augment.crop": "resized", "data.workers": "0"},
    dims=(8, 16, 32),
    query="val",
    folders=("imagenet/train", "imagenet/val"),
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for split, count in (("train", 6), ("val", 4)):
        for name in "abcd":
            folder = root / "imagenet" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def two_tables(data, tmp_path_factory):
    pytest.importorskip("torch")
    runs, said = tmp_path_factory.mktemp("runs"), []
    tables = [TABLES["weights"], TABLES["spacing"]]
    rows = reproduce(tables, TINY, runs, data=data, seeds=2, progress=False, say=said.append)
    return runs, rows, said


def test_two_tables_share_their_trainings(two_tables):
    _, rows, said = two_tables
    assert [row.figures["table"] for row in rows] == ["weights", "spacing"]
    # MRL, two boosts and uniform spacing; MRL serves both tables.
    assert sum(line.startswith("training") for line in said) == 8
    assert "s each" in said[1]   # the time that is left
    weights = rows[0].figures["cells"]
    assert {*weights} == {"MRL", "MRL-8boost", "MRL-8+16boost"}
    assert {*weights["MRL"]} == {"8", "16", "32"} and all(len(values) == 2 for values in weights["MRL"].values())
    assert len(rows[0].figures["claims"]) == len(TABLES["weights"].claims)


def test_the_numbers_are_those_of_the_runs(two_tables, data):
    """The stored accuracy is that of the model itself, asked for its predictions."""
    from matryo.data import image_folder
    from matryo.inference import load

    runs, rows, _ = two_tables
    shop = Workshop(TINY, runs, data)
    val = image_folder(data / "imagenet").split("val")
    images = [val.image(number) for number in range(len(val))]
    classes = image_folder(data / "imagenet").classes
    model = load(shop.folder(nested(shop), 1))
    said = model.predict(images, dim=16)
    right = np.mean([name == classes[label] for name, label in zip(said.labels, val.labels, strict=True)])
    assert rows[0].figures["cells"]["MRL"]["16"][1] == pytest.approx(100 * right, abs=0.01)


def test_a_second_call_trains_nothing_and_keeps_other_tables(two_tables, data):
    runs, rows, _ = two_tables
    said = []
    again = reproduce([TABLES["spacing"]], TINY, runs, data=data, seeds=2, progress=False, say=said.append)
    assert not any(line.startswith("training") for line in said)
    assert {row.figures["table"]: row.figures["cells"] for row in again} == {
        row.figures["table"]: row.figures["cells"] for row in rows
    }


def test_the_page_holds_the_tables_beside_the_papers_numbers(two_tables):
    runs, rows, _ = two_tables
    text = write_page(rows, runs, "tiny").read_text(encoding="utf-8")
    assert "| 8 |" in text and "(66.63)" not in text and "(66.6)" in text   # rounded as the table is
    assert "(figures/weights.svg)" in text and (runs / "figures" / "weights.svg").read_text().startswith("<?xml")
    for claim in rows[0].figures["claims"]:
        assert claim["claim"] in text


def test_equal_trainings_have_equal_digests(tmp_path):
    shop = Workshop(SCALES["small"], tmp_path)
    assert from_dim(shop, 8).digest == nested(shop).digest == boosted(shop, "MRL").digest
    digests = {model.digest for model in (nested(shop), boosted(shop, "MRL-8boost"), from_dim(shop, 4), fixed(shop, 8))}
    assert len(digests) == 4
    assert nested(shop).resolved(0) != nested(shop).resolved(1)


def test_refusals_come_before_the_work(data, tmp_path):
    with pytest.raises(InputError, match="needs a folder"):
        reproduce([TABLES["weights"]], TINY, tmp_path)
    with pytest.raises(InputError, match="shifted/v2"):
        reproduce([TABLES["few-shot"]], TINY, tmp_path, data=data)
    with pytest.raises(InputError, match="bundled data"):
        reproduce([TABLES["weights"]], SCALES["small"], tmp_path, data=data)
    with pytest.raises(InputError, match="did you mean weights"):
        chosen_tables(["weight"], TINY)
    with pytest.raises(InputError, match="cannot be measured at the scale small"):
        chosen_tables(["masked-words"], SCALES["small"])
    with pytest.raises(StorageError, match="GB of disk"):
        reproduce([TABLES["weights"]], dataclasses.replace(TINY, run_gigabytes=1e9), tmp_path, data=data)
    (tmp_path / ROWS).write_text("mine")
    with pytest.raises(InputError, match="exists"):
        reproduce([TABLES["weights"]], TINY, tmp_path, data=data)
    assert [path.name for path in tmp_path.iterdir()] == [ROWS]


def test_the_verb_lists_every_table(capsys, tmp_path):
    assert main(["reproduce"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{table.name}: {table.title}" in listed and table.label in listed for table in TABLES.values())
    assert main(["reproduce", "nonsense", "--runs", str(tmp_path)]) == 1
    assert "no such table" in capsys.readouterr().err
    (tmp_path / "paper.md").write_text("mine")
    assert main(["reproduce", "weights", "--runs", str(tmp_path)]) == 1
    assert "exists" in capsys.readouterr().err
    assert (tmp_path / "paper.md").read_text() == "mine"

"""`matryo pack`, as a user runs it: from class folders and tar shards to packed files that train."""

import io
import tarfile

import numpy as np
import pytest

pytest.importorskip("PIL")
from PIL import Image

from matryo.cli import main
from matryo.data import packed_dataset


def jpeg(seed, width=60, height=40):
    small = np.random.default_rng(seed).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize((width, height)).save(file, "JPEG", quality=95)
    return file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    for row in range(8):
        path = root / ("val" if row > 5 else "train") / ("cat", "dog")[row % 2] / f"{row}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(row))
    return root


def run(capsys, *words):
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_folders_become_numbered_files_and_running_again_changes_nothing(folder, tmp_path, capsys):
    words = ["pack", "--data", folder, "--out", tmp_path / "p", "--side", 32, "--images-per-file", 4]
    code, out, err = run(capsys, *words)
    assert code == 0, err
    assert "train: 6 images, 2 files, " in out and "val: 2 images, 1 file, " in out
    assert f"next: matryo train RECIPE --data.source packed --data {tmp_path / 'p'}" in out
    dataset = packed_dataset(tmp_path / "p")
    assert dataset.classes == ("cat", "dog")
    assert [dataset.split("train").image(row).shape for row in range(6)] == [(21, 32, 3)] * 6
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "p").glob("*.npz")}
    assert run(capsys, *words)[0] == 0
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "p").glob("*.npz")} == before
    code, _, err = run(capsys, *words, "--quality", 50)
    assert code == 1 and "holds other images, or images in another form" in err and "--force" in err
    assert run(capsys, *words, "--quality", 50, "--force")[0] == 0
    assert run(capsys, "verify", tmp_path / "p")[1].endswith("all checksums match\n")


def test_machines_share_the_work(folder, tmp_path, capsys):
    words = ["pack", "--data", folder, "--out", tmp_path / "p", "--split", "train", "--images-per-file", 3, "--machine"]
    assert run(capsys, *words, "1/2")[0] == 0
    assert [path.name for path in (tmp_path / "p").glob("*.npz")] == ["train_0001-of-0002.npz"]
    code, _, err = run(capsys, "pack", "--source", "packed", "--data", tmp_path / "p", "--out", tmp_path / "q")
    assert code == 1 and "every file of split 'train' must be there (got 1 of 2)" in err
    assert run(capsys, *words, "2/2")[0] == 0
    packed = packed_dataset(tmp_path / "p").split("train")
    assert [packed.encoded(row) for row in range(6)] == [
        (folder / packed.name(row)).read_bytes() for row in range(6)
    ]   # no larger than 500 pixels: the files themselves


def test_shards_can_be_packed(tmp_path, capsys):
    with tarfile.open(tmp_path / "train-0000.tar", "w") as tar:
        for row in range(3):
            for name, data in ((f"{row}.jpg", jpeg(row)), (f"{row}.cls", str(row).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    code, out, err = run(capsys, "pack", "--source", "shards", "--data", tmp_path, "--out", tmp_path / "p",
                         "--side", 30, "--format", "webp", "--raw", 0.4)  # fmt: skip
    assert code == 0 and "train: 3 images, 1 file" in out, err
    packed = packed_dataset(tmp_path / "p").split("train")
    assert packed.labels.tolist() == [0, 1, 2]
    assert [packed.encoded(row)[:4] for row in range(3)] == [b"RIFF", b"RIFF", b"P6\n3"]


@pytest.mark.parametrize(("words", "message"), [
    (["--machine", "3/2"], "--machine must be I/N with I in 1 … N (got 3/2)"),
    (["--side", "0"], "side must be a number of pixels"),
    (["--split", "trian"], "no such split"),
    (["--format", "webp", "--quality", "101"], "quality must lie in 0 … 100"),
])  # fmt: skip
def test_mistakes_are_refused_before_anything_is_written(folder, tmp_path, capsys, words, message):
    code, _, err = run(capsys, "pack", "--data", folder, "--out", tmp_path / "p", *words)
    assert code == 1 and message in err
    assert not (tmp_path / "p").exists()


def test_the_data_is_not_its_own_output(folder, capsys):
    code, _, err = run(capsys, "pack", "--data", folder, "--out", folder)
    assert code == 1 and "--out must be another folder than --data" in err

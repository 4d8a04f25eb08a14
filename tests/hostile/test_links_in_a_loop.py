"""A path whose links form a loop is an error of ours, wherever it is read, written or only resolved.

`Path.resolve` raises a RuntimeError for such paths before Python 3.13, and returns them since.
"""

import numpy as np
import pytest
import texts_made as made

from matryo import EmbeddingSet, Index
from matryo.cli import main
from matryo.errors import StorageError
from matryo.export import export
from matryo.files import resolve
from matryo.training import train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(made.recipe(), made.labelled(), tmp_path_factory.mktemp("runs") / "run", progress=False)


@pytest.fixture(params=["loop", "loop/x", "there/loop"])
def loop(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "loop").symlink_to("there/loop")
    (tmp_path / "there" / "loop").symlink_to("../loop")
    (tmp_path / "texts.txt").write_text("a cat\n")
    return request.param


def test_commands_end_with_one_line_of_error(loop, run, capfd):
    for words in (
        f"encode {run} {loop} --out new",
        f"encode {run} texts.txt --out {loop}",
        f"encode {run} --data {loop} --source texts",
        f"export {loop} --to onnx",
        f"export {run} --to transformers --out {loop}",
        f"verify {loop}",
    ):
        assert main(words.split()) == 1, words
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith("matryo: error: "), words


def test_writers_say_what_is_wrong(loop, run):
    with Index.create("index", [2, 4]) as index:
        for write in (
            resolve,
            lambda path: EmbeddingSet.write(path, np.eye(4)),
            lambda path: export(run, "transformers", path),
            lambda path: Index.create(path, [2, 4]),
            lambda path: index.backup(f"{path}/copy"),
        ):
            with pytest.raises(StorageError, match="choose another path: the links of this one form a loop"):
                write(loop)


def test_other_links_are_followed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("there")
    assert resolve("link") == tmp_path / "there", "which does not exist yet"
    (tmp_path / "there" / "deep").mkdir(parents=True)
    assert resolve("link/deep/..") == resolve("there") == tmp_path / "there"
    assert resolve("link/../new/x") == tmp_path / "new" / "x"

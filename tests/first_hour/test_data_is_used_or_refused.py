"""--data is used, or refused where the data source is bundled; it is never ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from matryo.cli import main
from matryo.cli.train import check_data_is_used
from matryo.data.open import BUNDLED, SOURCES
from matryo.errors import InputError


@pytest.mark.parametrize("exists", [True, False])
def test_train_refuses_a_folder_for_a_bundled_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], exists: bool
) -> None:
    data, run = tmp_path / "shapes", tmp_path / "run"
    if exists:
        data.mkdir()
    assert main(["train", "demo", "--data", str(data), "--out", str(run)]) == 1
    message = capsys.readouterr().err
    state = "" if exists else ", which does not exist"
    assert f"the data source emoji is bundled and reads no folder (got --data {data}{state}): " in message
    assert "add --data.source folder (or packed, shards, texts" in message
    assert not run.exists()


def test_only_bundled_sources_are_refused(tmp_path: Path) -> None:
    for source in SOURCES:
        check_data_is_used(source, None, "--source")
        if source in BUNDLED:
            with pytest.raises(InputError, match="add --source folder"):
                check_data_is_used(source, tmp_path, "--source")
        else:
            check_data_is_used(source, tmp_path, "--source")


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    gone = tmp_path / "gone"
    for recipe in ("tiny-imagenet-rn18", "clinc-text", "minilm-pairs"):
        assert main(["train", recipe, "--data", str(gone), "--out", str(tmp_path / "run")]) == 1
        assert str(gone) in capsys.readouterr().err

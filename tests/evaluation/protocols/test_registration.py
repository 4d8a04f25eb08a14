"""The cost of a new protocol: one file and one name; its table, its row and its section of the report follow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from matryo import EmbeddingSet, Nesting
from matryo.cli import main
from matryo.evaluation import PROTOCOLS, Subject, measure, protocols
from matryo.results import read_rows

TOY = '''
"""Norms: the mean norm of the prefixes."""
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
from matryo.evaluation.protocol import Protocol
from matryo.results import Result

@dataclass(frozen=True)
class Norms(Result):
    kind: ClassVar[str] = "mean-norm"
    titles: ClassVar[dict[str, str]] = {"norm": "norm"}
    model: str
    dataset: str
    split: str
    dims: tuple[int, ...]
    norm: tuple[float, ...]

def measure(subject):
    for split, queries in subject.queries.items():
        norms = [float(np.linalg.norm(queries.vectors[:, :dim], axis=1).mean()) for dim in subject.dims]
        yield Norms("", "", split, tuple(subject.dims), tuple(norms))

PROTOCOL = Protocol("mean-norm", measure)
'''
FIGURE = '''
"""The section of the toy protocol."""
def sections(material):
    yield from (row.subject for row in material.rows if row.kind == "mean-norm")
'''


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the file beside the others, and the name into the list."""
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "mean_norm.py").write_text(TOY)
    monkeypatch.setattr(protocols, "__path__", [*protocols.__path__, str(tmp_path / "toy")])
    monkeypatch.setattr(protocols, "MODULES", (*protocols.MODULES, "mean_norm"))
    monkeypatch.setitem(PROTOCOLS, "mean-norm", PROTOCOLS["evaluate"])   # so that it is removed again
    protocols.register("mean_norm")


def test_the_list_of_modules_is_the_folder() -> None:
    folder = Path(protocols.__file__).parent
    assert {path.stem for path in folder.glob("[!_]*.py")} == {*protocols.MODULES}
    assert [name.replace("-", "_") for name in PROTOCOLS] == list(protocols.MODULES)


@pytest.mark.usefixtures("registered")
def test_one_file_and_one_name_make_a_protocol(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = np.random.default_rng(0).normal(size=(20, 8))
    for split in ("train", "test"):
        EmbeddingSet.write(tmp_path / "mine" / split, vectors, labels=np.arange(20) % 2, nesting=Nesting([4, 8]))
    expected = [float(np.linalg.norm(vectors[:, :dim], axis=1).mean()) for dim in (4, 8)]
    queries = EmbeddingSet.open(tmp_path / "mine" / "test")
    (result,) = measure(Subject("mine", 0, queries, {"test": queries}), "mean-norm")
    assert (result.model, result.norm) == ("mine", pytest.approx(expected))
    rows = tmp_path / "rows.jsonl"
    words = ["evaluate", str(tmp_path / "mine"), "--protocols", "mean-norm", "--quiet", "--json", str(rows)]
    assert main(words) == 0
    heading, titles, *lines, _ = capsys.readouterr().out.splitlines()
    assert heading == "mine, test: mean-norm"
    assert [line.split() for line in (titles, *lines)] == [
        ["dim", "norm"], *([str(dim), f"{100 * norm:.1f}"] for dim, norm in zip((4, 8), expected, strict=True)),
    ]  # fmt: skip
    (row,) = read_rows(rows)
    assert (row.kind, row.role) == ("mean-norm", "nested")
    assert row.by_dim()["norm"] == pytest.approx(dict(zip((4, 8), expected, strict=True)))


@pytest.mark.usefixtures("registered")
def test_a_figure_with_the_name_of_the_protocol_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from matryo.report import figures
    from matryo.report.material import Material
    from matryo.results import stamp

    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "mean_norm.py").write_text(FIGURE)
    monkeypatch.setattr(figures, "__path__", [*figures.__path__, str(tmp_path / "figures")])
    monkeypatch.setattr(figures, "MODULES", protocols.MODULES)
    row = stamp("mean-norm", "mine test", {}, seed=0)
    assert list(figures.every_section(Material.of([row]))) == ["mine test"]

"""The cache of plans: a choice comes back for the same index, queries and target, and for nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matryo import Index, Plan
from matryo.retrieve.plan import cache
from matryo.retrieve.plan.cache import load_choice, plan_key, store_choice
from matryo.retrieve.plan.choice import Choice, Point

RANDOM = np.random.default_rng(0)
VECTORS = RANDOM.normal(size=(60, 8)).astype(np.float32)


def chosen(k: int = 5, met: bool = True) -> Choice:
    plans = (Plan.single(8), Plan.of([(4, 20, "int8"), (8, k)]))
    points = tuple(Point(plan, 1 / 3, 0.1, True, None, plan.bytes(60), 0.7) for plan in plans)
    return Choice(plans[1] if met else None, points, target=0.9, k=k, tuned_on=30, tested_on=90, unit="bytes", budget=7)


def test_a_choice_comes_back_as_it_was(tmp_path: Path) -> None:
    choices = {"a" * 64: chosen(), "b" * 64: chosen(met=False), "c" * 64: chosen(3)}
    for key, choice in choices.items():
        assert load_choice(tmp_path, key) is None
        store_choice(tmp_path, key, choice)
    assert all(load_choice(tmp_path, key) == choice for key, choice in choices.items())
    store_choice(tmp_path, "a" * 64, chosen(4))
    assert load_choice(tmp_path, "a" * 64) == chosen(4)


def test_everything_that_determines_a_choice_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys() -> list[str]:
        queries: list[Any] = [None, VECTORS, VECTORS[:-1], VECTORS.astype(float), VECTORS.reshape(30, 16), VECTORS + 1]
        settings: list[dict[str, Any]] = [{"recall": 0.9, "k": 5}, {"recall": 0.99, "k": 5}, {"recall": 0.9, "k": 6}]
        return [
            plan_key(state, rows, **setting)
            for state in ("one", "other") for rows in queries for setting in settings
        ]  # fmt: skip

    assert keys() == keys()
    assert len({*keys()}) == 2 * 6 * 3
    assert plan_key("one", VECTORS.tolist()) == plan_key("one", VECTORS.astype(float))
    before = {*keys()}
    monkeypatch.setattr(cache, "isa", lambda: "other")
    assert not before & {*keys()}


def test_the_state_changes_with_every_change_of_rows_and_guides(tmp_path: Path) -> None:
    with Index.create(tmp_path / "idx", nesting=[4, 8]) as index, Index.open(tmp_path / "idx") as reader:
        changes = [
            lambda: index.add(VECTORS[:40], payload=[{"n": row} for row in range(40)]),
            lambda: index.upsert(VECTORS[1:2], [0], [{"n": 0}]),
            lambda: index.delete([3]),
            lambda: index.compact(),
            lambda: index.build(sketch=True),
            lambda: index.build(partition=4),
            lambda: index.add(VECTORS[:1]),
            lambda: index.upsert(VECTORS[:1], [0], [{"n": 1}]),
        ]
        seen = {index.state}
        for change in changes:
            change()
            assert index.state == index.state == reader.state
            assert index.state not in seen
            seen.add(index.state)
        index.set_model("mine")   # changes no plan
        index.add_source("digest", {"path": "a", "size": 1, "rows": 1})
        assert index.state in seen
        state = index.state
    with Index.open(tmp_path / "idx", writable=True) as index:
        assert index.state == state


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"{}", b'{"choice": {}, "sha256": "x"}', b"[" * 100_000, b"\xff"])
def test_a_damaged_file_is_no_choice(tmp_path: Path, damage: bytes) -> None:
    store_choice(tmp_path, "a" * 64, chosen())
    [file] = (tmp_path / "plans").iterdir()
    file.write_bytes(damage)
    assert load_choice(tmp_path, "a" * 64) is None
    store_choice(tmp_path, "a" * 64, chosen())
    assert load_choice(tmp_path, "a" * 64) == chosen()


def test_a_changed_figure_is_noticed(tmp_path: Path) -> None:
    store_choice(tmp_path, "a" * 64, chosen())
    [file] = (tmp_path / "plans").iterdir()
    stored = json.loads(file.read_text())
    for name, value in (("target", 0.5), ("k", 7), ("plan", None)):
        file.write_text(json.dumps(stored | {"choice": stored["choice"] | {name: value}}))
        assert load_choice(tmp_path, "a" * 64) is None
    file.write_text(json.dumps(stored))
    assert load_choice(tmp_path, "a" * 64) == chosen()


def test_only_the_latest_are_kept(tmp_path: Path) -> None:
    keys = [f"{number:064}"[::-1] for number in range(cache.MOST + 5)]
    for age, key in enumerate(keys):
        store_choice(tmp_path, key, chosen())
        os.utime(tmp_path / "plans" / f"{key[:32]}.json", ns=(age, age))
    store_choice(tmp_path, "f" * 64, chosen())
    kept = [key for key in keys if load_choice(tmp_path, key) is not None]
    assert kept == keys[6:]
    assert len(list((tmp_path / "plans").iterdir())) == cache.MOST


def test_where_nothing_can_be_written_nothing_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plans").write_text("not a folder")
    store_choice(tmp_path, "a" * 64, chosen())
    assert load_choice(tmp_path, "a" * 64) is None
    store_choice(tmp_path / "none", "a" * 64, chosen())

    def full(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", full)
    store_choice(tmp_path, "a" * 64, chosen())

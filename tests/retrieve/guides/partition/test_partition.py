"""Partitions: their layouts, where rows lie in them, and their folders."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from needs_core import needs_core
from partition_oracle import coordinates, decoded_bytes, decoded_tiles, places_of, visited, whole

from matryo.errors import EmbeddingsError, InputError, NestingError
from matryo.nesting import Nesting
from matryo.retrieve.guides.partition import HEADER, Partition, PartitionSearch
from matryo.retrieve.guides.partition.build import NOBODY
from matryo.retrieve.plan.plan import Plan, Stage
from matryo.retrieve.vectors.array_folder import verify_arrays, write_arrays
from matryo.retrieve.vectors.blocks import Blocks
from matryo.retrieve.vectors.metric import METRICS, Metric

if TYPE_CHECKING:
    from pathlib import Path

NESTING = Nesting([3, 8, 20, 90, 160])


def normal(rng: np.random.Generator, count: int, dim: int = 160) -> np.ndarray:
    """Rows in a few clouds, with a spectrum that falls."""
    centres = rng.standard_normal((7, dim))
    rows = centres[rng.integers(7, size=count)] + 0.7 * rng.standard_normal((count, dim))
    return (rows * np.arange(1, dim + 1) ** -0.4).astype(np.float32)


# ── where rows lie ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize(("count", "dim", "long"), [(1, 3, 3), (15, 5, 8), (16, 8, 160), (17, 20, 90), (400, 90, 160)])
def test_each_row_has_a_slot_and_a_place_per_copy(
    metric: Metric, rotated: bool, copies: int, count: int, dim: int, long: int
) -> None:
    blocks = Blocks.of(normal(np.random.default_rng(count), count), NESTING)
    lists = min(count, 9)
    partition = Partition.of(blocks, metric, dim=dim, rotated=rotated, copies=copies, long=long, lists=lists)
    assert (partition.dim, partition.long, len(partition.lists)) == (dim, long, lists)
    assert len(partition.axes) == (160 if rotated and count > 1 else 0)
    copies = copies if lists > 1 else 1
    slots, rows, places = partition.slots.ravel(), partition.rows, places_of(partition)
    assert sorted(rows) == list(range(count))
    used = np.concatenate(places)
    assert sorted(np.flatnonzero(slots != NOBODY)) == sorted(used) and len(used) == copies * count
    assert (np.bincount(slots[used]) == copies).all()
    assert (slots[-16:] == NOBODY).all()   # the empty tile after the last partition
    homes = np.full(count, -1)
    for number, inside in enumerate(places):
        assert len(set(slots[inside])) == len(inside)   # never twice in one partition
        homes[slots[inside][~np.isin(slots[inside], np.flatnonzero(homes >= 0))]] = number
    if copies == 1:
        assert len(partition.homes) == 0
        assert (np.diff(homes) >= 0).all()   # slots are in the order of partitions
    else:
        assert (np.diff(partition.homes.astype(int)) >= 0).all()
        for slot, home in enumerate(partition.homes):
            assert slot in slots[places[home]]
    # 4-bit codes: half a step from the coordinate, or clipped at the end of the range.
    tiles = decoded_tiles(partition, partition.tiles)
    true, (step, low) = coordinates(partition, whole(blocks, metric)), partition.tile_columns.astype(float)
    near = np.clip(true, low, low + 15 * step)[rows[slots[used]]]
    assert (np.abs(tiles[used] - near) <= 0.51 * step + 1e-5 * np.abs(low) + 1e-6).all()
    adjust = partition.adjust.ravel()
    assert np.isnan(adjust[slots == NOBODY]).all()
    squares = np.square(tiles[used]).sum(1)
    lengths = np.linalg.norm(coordinates(partition, blocks.rows(rows[slots[used]], blocks.nesting.dim)), axis=1)
    expected = {"ip": lengths / np.sqrt(squares), "l2": -squares, "cosine": 1 / np.sqrt(squares)}[metric]
    np.testing.assert_allclose(adjust[used], expected, rtol=1e-4)
    # 8-bit codes: by slot, half a step from the column.
    held = decoded_bytes(partition)
    assert (np.abs(held - whole(blocks, metric)[rows, :long]) <= 0.51 * partition.columns[0] + 1e-6).all()
    apart = np.linalg.norm(held - whole(blocks, metric)[rows, :long], axis=1)
    assert (partition.errors >= apart).all()


@pytest.mark.parametrize("copies", [1, 2])
def test_known_clusters_are_partitions(copies: int) -> None:
    rng = np.random.default_rng(0)
    number = rng.integers(4, size=600)
    rows = np.eye(4, 160, dtype=np.float32)[number] + rng.standard_normal((600, 160)).astype("f4") * 0.001
    partition = Partition.of(Blocks.of(rows, NESTING), dim=8, rotated=False, copies=copies, lists=12)
    slots = partition.slots.ravel()
    for home, inside in enumerate(places_of(partition)):
        some = slots[inside]
        own = some[partition.homes[some] == home] if copies > 1 else some
        assert len(set(number[partition.rows[own]])) <= 1


def test_defaults_fit_the_rows() -> None:
    rows = np.random.default_rng(0).standard_normal((900, 160)).astype("f4")
    partition = Partition.of(Blocks.of(rows, NESTING))
    assert (partition.long, len(partition.lists)) == (160, 4 * 30)
    assert len(Partition.of(Blocks.of(rows[:2], NESTING)).lists) == 2
    assert partition.nbytes == sum(array.nbytes for array in partition.arrays().values())
    assert all(not array.flags.writeable for array in partition.arrays().values())
    partition.check_fits(Blocks.of(rows, NESTING))


@needs_core
@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("metric", METRICS)
def test_queries_like_the_rows_visit_the_share_on_average(metric: Metric, copies: int) -> None:
    rows = normal(np.random.default_rng(0), 3000)
    blocks = Blocks.of(rows, NESTING)
    partition = Partition.of(blocks, metric, dim=20, rotated=False, copies=copies, lists=100)
    scores = PartitionSearch(blocks, partition, Plan.single(160), 1).score_lists(rows[:500])
    for probe in (0.05, 0.2, 0.6):
        of = [partition.lists[visited(partition, some, partition.budget(probe), 1), 1].sum() for some in scores]
        assert np.mean(of) / (copies * 3000) == pytest.approx(probe, rel=0.15)
    assert partition.budget(None) == partition.budget(1.0) == -1
    assert (np.diff(partition.budgets) >= 0).all() and (partition.wider[1] >= 1).all()
    assert partition.wider_for(1.0) == 1 <= partition.wider_for(0.1) <= partition.wider_for(0.001)


def test_the_same_seed_gives_the_same_partitions() -> None:
    blocks = Blocks.of(normal(np.random.default_rng(0), 500), NESTING)
    one, same, other = (Partition.of(blocks, dim=8, seed=seed) for seed in (1, 1, 2))
    for field in fields(one):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(same, field.name))
    assert not np.array_equal(one.rows, other.rows)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dim": 0}, r"dim must be an integer of at least 1 \(got 0\)"),
        ({"dim": 161}, r"dim must be at most 160, the columns of a row or of a tile \(got 161\): omit it"),
        ({"copies": 3}, r"copies must be 1 or 2 \(got 3\): omit it"),
        ({"long": 10}, "dim must be in the nesting"),
        ({"lists": 0}, r"lists must be an integer in 1 … 30, the number of rows \(got 0\)"),
        ({"lists": 31}, "lists must be an integer"),
        ({"lists": 2.5}, "lists must be an integer"),
        ({"metric": "dot"}, "metric must be cosine, ip or l2"),
    ],
)
def test_partitions_that_cannot_be_are_refused(options: dict, said: str) -> None:
    with pytest.raises((InputError, NestingError), match=said):
        Partition.of(Blocks.of(normal(np.random.default_rng(0), 30), NESTING), **options)


def test_an_index_may_be_given_the_dim() -> None:
    assert Partition.options(NESTING, True) == {}
    assert Partition.options(NESTING, 96) == {"dim": 96}   # need not be a dim of the nesting
    with pytest.raises(InputError, match="partition must be at most 160"):
        Partition.options(NESTING, 161)
    with pytest.raises(InputError, match=r"partition must be at most 8192.*partition=True chooses a dim"):
        Partition.options(Nesting([10_000]), 9_000)
    with pytest.raises(InputError, match="partition must be an integer of at least 1"):
        Partition.options(NESTING, 0)


# ── folders ───────────────────────────────────────────────────────────────────────────────────────────────────


@needs_core
@pytest.mark.parametrize("options", [{}, {"rotated": True, "copies": 2}, {"rotated": False, "copies": 1}])
@pytest.mark.parametrize("count", [0, 300])
def test_a_folder_is_searched_like_what_was_written(tmp_path: Path, count: int, options: dict) -> None:
    rng = np.random.default_rng(0)
    blocks, queries = Blocks.of(normal(rng, count), NESTING), normal(rng, 8)
    made = Partition.of(blocks, "l2", dim=20, **options)
    made.write(tmp_path / "here")
    opened = Partition.open(tmp_path / "here")
    for field in fields(made):
        np.testing.assert_array_equal(getattr(made, field.name), getattr(opened, field.name))
    plan = Plan((Stage(20, 50, "int8"), Stage(160, 20, "int8"), Stage(160, 5)), probe=0.3)
    before, after = (PartitionSearch(blocks, one, plan, 5)(queries) for one in (made, opened))
    np.testing.assert_array_equal(before[0], after[0])
    np.testing.assert_array_equal(before[1], after[1])
    with pytest.raises(EmbeddingsError, match="written to a new folder"):
        made.write(tmp_path / "here")


def test_each_flipped_byte_is_found_and_named(tmp_path: Path) -> None:
    blocks = Blocks.of(normal(np.random.default_rng(0), 60), NESTING)
    Partition.of(blocks, dim=20).write(tmp_path / "here")
    verify_arrays(tmp_path / "here", HEADER)
    for path in sorted((tmp_path / "here").iterdir()):
        held = path.read_bytes()
        path.write_bytes(held[:-5] + bytes([held[-5] ^ 1]) + held[-4:])
        with pytest.raises(EmbeddingsError, match=rf"{path.name} is damaged"):
            verify_arrays(tmp_path / "here", HEADER)
        path.write_bytes(held)
    verify_arrays(tmp_path / "here", HEADER)
    assert (tmp_path / "here" / HEADER).is_file()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("rows", 1000, "rows or tiles out of range"),
        ("slots", 1000, "rows or tiles out of range"),
        ("lists", 1000, "rows or tiles out of range"),
        ("lists", -1, "rows or tiles out of range"),
        ("slots", NOBODY, "rows in empty places"),
    ],
)
def test_numbers_out_of_range_are_found_when_opened(tmp_path: Path, name: str, value: int, said: str) -> None:
    made = Partition.of(Blocks.of(normal(np.random.default_rng(0), 60), NESTING), dim=20)
    wrong = getattr(made, name).copy()
    wrong.flat[0] = value
    replace(made, **{name: wrong}).write(tmp_path / "here")
    with pytest.raises(EmbeddingsError, match=rf"is damaged .*{said}"):
        Partition.open(tmp_path / "here")


def test_the_layout_of_an_older_version_is_built_again(tmp_path: Path) -> None:
    write_arrays(tmp_path / "here", HEADER, 1, {}, {"gaps": np.zeros(3)})
    said = r"here has the layout of an older matryo \(got format 1, supported from 4\): build it again"
    with pytest.raises(EmbeddingsError, match=said):
        Partition.open(tmp_path / "here")


def test_partitions_of_other_blocks_are_refused() -> None:
    rng = np.random.default_rng(0)
    blocks, others = Blocks.of(normal(rng, 60), NESTING), Blocks.of(normal(rng, 61), NESTING)
    partition = Partition.of(blocks, dim=20, long=90)
    shorter = Blocks.of(normal(rng, 60)[:, :90], Nesting([20, 90]))
    for wrong, own in ((others, partition), (Blocks.of(normal(rng, 60), Nesting([8, 160])), partition),
                       (shorter, Partition.of(blocks, dim=20, long=90, rotated=True))):   # fmt: skip
        with pytest.raises(EmbeddingsError, match="partitions must belong to the blocks that are searched"):
            PartitionSearch(wrong, own, Plan.of([(20, 50, "int8")]), 5)

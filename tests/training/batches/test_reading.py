"""Reading ahead: order, errors, closing, and the time that is counted as waiting."""

import threading
import time

import numpy as np
import pytest
import torch

from matryo.data import array_dataset
from matryo.errors import DataError
from matryo.training.batches import reading
from matryo.training.batches.reading import Crops, Waiting, prepare_ahead, read_ahead, threads_for
from matryo.training.pace import Pace
from matryo.training.recipe.load import load_recipe

CPU = torch.device("cpu")


class Slow:
    """A split that takes time to read, longer for earlier images, and counts its readers."""

    shape = None

    def __init__(self, count=24, seconds=0.002, bad=()):
        self.pixels = np.random.default_rng(0).integers(0, 256, (count, 6, 6, 3), dtype=np.uint8)
        self.labels, self.seconds, self.bad, self.read = np.zeros(count, np.int64), seconds, bad, []

    def __len__(self):
        return len(self.pixels)

    def name(self, index):
        return str(index)

    def image(self, index):
        time.sleep(self.seconds * (1 + (index % 4 == 0)))
        self.read.append(index)
        if index in self.bad:
            raise DataError(f"image {index} cannot be read", got="nothing", cure="restore it")
        return self.pixels[index]


def crops(count, batch, size=6):
    rows = np.random.default_rng(1).permutation(count).reshape(-1, batch)
    return [Crops(row, size, lambda _, height, width: (0, 0, width, height)) for row in rows]


@pytest.mark.parametrize("threads", [0, 1, 3, 16])
def test_batches_come_in_order_with_the_images_that_were_asked_for(threads):
    split, wanted = Slow(), crops(24, 4)
    for batch, pixels in zip(wanted, read_ahead(split, wanted, threads, Waiting(CPU)), strict=True):
        assert np.array_equal(pixels.numpy(), split.pixels[batch.indices])
    assert sorted(split.read) == list(range(24))


@pytest.mark.parametrize("threads", [0, 2])
def test_the_error_of_an_image_comes_with_its_batch(threads):
    wanted = crops(24, 4)
    split = Slow(bad={int(wanted[2].indices[1])})
    found = read_ahead(split, wanted, threads, Waiting(CPU))
    assert len([next(found), next(found)]) == 2
    with pytest.raises(DataError, match=r"cannot be read \(got nothing\): restore it"):
        next(found)
    assert not _readers()


def test_a_stream_that_is_left_reads_no_further():
    split = Slow(240)
    found = read_ahead(split, crops(240, 4), 2, Waiting(CPU))
    next(found)
    found.close()
    count = len(split.read)
    assert count < 40
    assert not _readers()
    time.sleep(0.02)
    assert len(split.read) == count


def test_preparing_ahead_keeps_the_order():
    assert list(prepare_ahead(lambda n: n * n, range(9), Waiting(CPU))) == [n * n for n in range(9)]


def test_time_is_waiting_only_if_nothing_else_is_done_meanwhile():
    slow, patient = Waiting(CPU), Waiting(CPU)
    began = time.monotonic()
    for _ in read_ahead(Slow(12, 0.02), crops(12, 2), 1, slow):
        pass
    assert 0.5 * (time.monotonic() - began) < slow.seconds <= time.monotonic() - began
    for _ in read_ahead(Slow(12, 0.001), crops(12, 2), 2, patient):
        time.sleep(0.02)
    assert patient.seconds < 0.03   # for the first batch


def test_processes_of_one_machine_share_its_processors(monkeypatch):
    large = array_dataset({"train": (np.zeros((1, 65, 64, 3), np.uint8), [0])}).split("train")
    small = array_dataset({"train": (np.zeros((1, 32, 32, 3), np.uint8), [0])}).split("train")
    monkeypatch.setattr(reading, "processors", lambda: 16)
    assert [threads_for(large, most) for most in (0, 3, 64)] == [0, 3, 16]
    assert [threads_for(small, most) for most in (0, 1, 64)] == [0, 1, 2]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert threads_for(large, 64) == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "32")
    assert threads_for(large, 64) == 1


def test_the_pace_is_that_since_the_last_report(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("matryo.training.pace.time.monotonic", lambda: now[0])
    waiting = Waiting(CPU)
    pace = Pace(waiting, 40)
    recipe = load_recipe("imagenet-rn50-mrl")
    now[0], waiting.seconds = 108.0, 7.0
    slow = pace.report(44)
    assert (slow.steps, slow.waiting) == (0.5, 0.875)
    assert pace.advice(slow, recipe, "images") == ""   # too early to tell
    now[0] = 112.0
    pace.restart(44)   # a test, which is no training
    now[0], waiting.seconds = 116.0, 8.0
    later = pace.report(64)
    assert (later.steps, later.waiting) == (5.0, 0.25)
    assert "waits for images 25% of the time: store smaller images once with `matryo pack --side 512`" in pace.advice(
        later, recipe, "images"
    )
    assert pace.advice(later, recipe, "images") == ""   # once is enough
    fast = Pace(waiting, 0)
    now[0] = 140.0
    assert fast.advice(fast.report(10), recipe, "images") == ""


def _readers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("matryo-reader")]

"""Rows of every kind that the report draws, with plausible figures from formulas, and pictures to go with them."""

from __future__ import annotations

import struct
import zlib

from matryo.classify.curve import CascadeCurve
from matryo.evaluation import DimRow, Evaluation
from matryo.evaluation.protocols.disagreement import Disagreement
from matryo.evaluation.protocols.few_shot import FewShot
from matryo.evaluation.protocols.pairs import Pairs
from matryo.evaluation.protocols.probe import Probe
from matryo.evaluation.protocols.robustness import Robustness
from matryo.evaluation.protocols.similarity import Similarity
from matryo.evaluation.protocols.stream import Stream
from matryo.evaluation.protocols.superclass import Superclasses
from matryo.evaluation.protocols.trends import TRENDS, Trends
from matryo.evaluation.protocols.zero_shot import ZeroShot
from matryo.report import GradCamStrip
from matryo.results import Row

DIMS = (8, 16, 32, 64, 128, 256)
ABOUT = ("demo separate", "emoji", "flat")


def row(kind, figures, *, subject="demo-nested emoji flat", seed=0, command="matryo evaluate runs/demo-nested"):
    versions, when = {"numpy": "2.4"}, "2026-01-02T03:04:05+00:00"
    return Row(kind, subject, figures, seed, command, "0123456789ab", "2 × CPU", versions, when)


def of(result, **about):
    return row(result.kind, result.to_figures(), **about)


def evaluation(top1, *, model="demo separate", split="flat", trained=None, head=None, database=1000, map10=None):
    """An evaluation from 1-NN accuracies by dim; other figures follow from them."""
    rows = tuple(
        DimRow(
            dim=dim,
            trained=trained is None or dim in trained,
            top1=value,
            top5=min(1.0, value + 0.1),
            top10=min(1.0, value + 0.15),
            map_at={10: value * 0.8 if map10 is None else map10[dim]},
            precision_at={10: value * 0.7},
            mflops=database * dim / 1e6,
            head_top1=(head or {}).get(dim),
            head_top5=None,
        )
        for dim, value in top1.items()
    )
    return Evaluation(model, "emoji", split, database, 400, 0, rows)


def evaluate_row(top1, *, name="demo-nested", seed=0, **about):
    one = evaluation(top1, **about)
    return row("evaluate", one.to_figures(), subject=f"{name} {one.dataset} {one.split}", seed=seed)


def rising(dim, floor=0.3, top=0.95, start=8):
    """An accuracy that grows with the dim and levels off."""
    return top - (top - floor) * (start / dim) ** 1.2


def every_kind():
    """A row of each kind that the report draws, some over several seeds, and one of a kind it does not know."""
    both = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
    heads = {dim: rising(dim, 0.2) for dim in DIMS}
    found = []
    for seed, shift in enumerate((0.0, 0.01, -0.012)):
        for split, less in (("flat", 0.0), ("high-contrast", 0.3)):
            nested = {dim: rising(dim, 0.75) - less + shift for dim in both}
            found.append(evaluate_row(nested, seed=seed, split=split, trained=DIMS, head=heads))
            for name, floor in (("demo fixed", 0.4), ("demo fixed + PCA", 0.6), ("demo fixed + jl", 0.35)):
                some = {dim: rising(dim, floor) - less + shift for dim in both}
                about = {"name": name, "model": name, "seed": seed, "split": split, "trained": (256,)}
                found.append(evaluate_row(some, head={256: 0.94} if name == "demo fixed" else None, **about))
        top1 = {"flat": {str(dim): value + shift for dim, value in heads.items()}}
        figures = {"top1": top1, "seconds": 88.0 + seed, "images_per_second": 2000.0}
        found.append(row("train", figures, subject="demo separate", seed=seed, command="matryo demo"))
    found += [of(one) for one in _protocols()]
    found.append(row("step-cost", {"anything": 1}, subject="a kind of its own", seed=None))
    return found


def _protocols():
    curve = tuple(rising(dim) for dim in DIMS)
    yield Probe(*ABOUT, DIMS, curve, curve)
    by_k = tuple(tuple(min(1.0, y + 0.02 * k) for k in (1, 5, 10)) for y in curve)
    back = tuple(tuple(y - 0.1 for y in row) for row in by_k)
    sides = ("images", "texts"), (200, 1000), (200, 990), 1000
    yield Pairs(*ABOUT, *sides, DIMS, (1, 5, 10), *(((by_k, back),) * 4))
    yield ZeroShot(*ABOUT, 240, DIMS, tuple(y - 0.2 for y in curve), curve)
    shots = (1, 3, 5, 7, 9)
    accuracy = tuple(tuple(rising(dim, 0.2, 0.5 + 0.04 * n) for dim in DIMS) for n in shots)
    yield FewShot(*ABOUT, "never trained", 20, 100, DIMS, shots, accuracy, ((0.012,) * 6,) * 5)
    groups = ("pretrain-head", "novel-head", "pretrain-tail", "novel-tail", "mean per class", "overall")
    by_group = tuple(tuple(rising(dim, 0.2, 0.9 - 0.1 * g) for dim in DIMS) for g in range(6))
    yield Stream(*ABOUT, 5, 3000, 10, DIMS, groups, ((None,) * 6, *by_group[1:]), ((None,) * 6, *((0.01,) * 6,) * 5))
    names = ("faces", "animals", "food", "travel", "objects", "symbols", "flags", "people")
    each = tuple(tuple(rising(dim, 0.1 + 0.1 * i, 0.95) for dim in DIMS) for i in range(8))
    coarse = tuple(min(1.0, y + 0.2 * (1 - y)) for y in curve)
    yield Superclasses(*ABOUT, "head", DIMS, names, (50,) * 8, coarse, curve, (0.02,) * 6, each)
    classes = tuple(f"class {i}" for i in range(40))
    per_class = tuple(
        tuple(min(1.0, max(0.0, rising(dim) + 0.02 * (i % 9 - 4) * 8 / dim)) for dim in DIMS) for i in range(40)
    )
    per_class = ((0.9, 0.9, 0.8, 0.7, 0.6, 0.5), *per_class[1:])
    yield Trends(
        *ABOUT, "head", DIMS, curve, classes, (10,) * 40, per_class, tuple(TRENDS[i % 4] for i in range(40)),
        (0.3, 0.3, 0.2, 0.1, 0.05, 0.02), 0.03, 0.97,
    )  # fmt: skip
    edges = tuple(-1 + 0.05 * i for i in range(41))
    positive, random = [], []
    for dim in DIMS:
        for shares, centre, width in ((positive, 0.6, 0.6 / dim**0.25), (random, 0.05, 1.4 / dim**0.5)):
            heights = [2.718 ** (-0.5 * ((edge + 0.025 - centre) / width) ** 2) for edge in edges[:-1]]
            shares.append(tuple(height / sum(heights) for height in heights))
    means = ((0.6,) * 6, (0.3,) * 6, (0.05,) * 6, (0.2,) * 6, tuple(rising(dim, 0.85, 0.99) for dim in DIMS))
    yield Similarity(*ABOUT, 20_000, DIMS, *means, edges, tuple(positive), tuple(random))
    splits, lower = ("flat", "twemoji", "high-contrast"), (0.0, 0.25, 0.35)
    some = tuple(tuple(y - less for y in curve) for less in lower)
    yield Robustness("demo separate", "emoji", DIMS, splits, some, some, some, "head", (0.97, 0.78, 0.7))
    for strategy, shift in (("greedy", 0.0), ("budget", 0.004), ("risk", -0.003)):
        spent = tuple(min(float(dim), 8 + 0.15 * dim) for dim in DIMS)
        gained = tuple(y + shift + 0.01 for y in curve)
        paid = tuple(2.0 * x for x in spent)
        sds = ((0.004,) * 6, spent, (1.0,) * 6, paid, (2.0,) * 6)
        stops = tuple(map(float, DIMS))
        yield CascadeCurve(*ABOUT, "separate", strategy, 30, 200, 200, DIMS, curve, stops, gained, *sds)
    yield Disagreement(
        *ABOUT, "head", (8, 256), 80, 7, 300, 13, ("a.png", "b.png"), (3, 5), ("cat", "dog"),
        (("cat", "tiger"), ("wolf", "dog")), ((0.8, 0.6), (0.5, 0.99)),
    )  # fmt: skip


def png(red, green, blue, size=8):
    """A PNG of one colour, written by hand."""
    lines = (b"\0" + bytes((red, green, blue)) * size) * size

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def pictures():
    return {"emoji/flat/3": png(200, 90, 40), "emoji/flat/5": png(40, 90, 200)}


def strips():
    overlays = tuple(png(250 - 40 * i, 60, 40 * i) for i in range(4))
    dims, sure = (8, 16, 64, 256), (0.4, 0.5, 0.9, 1.0)
    return [
        GradCamStrip(png(10, 160, 90), "cat", dims, overlays, ("dog", "cat", "cat", "cat"), sure),
        GradCamStrip(png(90, 10, 160), "dog", dims, overlays, ("dog",) * 4, sure),
    ]

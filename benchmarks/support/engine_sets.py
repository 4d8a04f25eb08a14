"""Sets for the measurements of engines: vectors generated to match stored recalls of real ones, and real nested texts.

The generated sets are Gaussian classes whose means and noise decay from column to column. The exponents were chosen so
that the recall of prefixes is near that of the Tiny-ImageNet ResNets in docs/results/generator.jsonl, which are not in
this checkout; ``about.json`` holds both. The real set is any that ``benchmarks/unseen.py make`` writes: glosses.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from matryo import Nesting
from matryo.engines.scan import scan

ROWS, LEARN, ASKED, CLASSES = 100_000, 3000, 1000, 200
SPREADS = {512: ("tiny-imagenet-rn18 separate", 0.47, 0.6), 2048: ("tiny-imagenet-rn50 separate", 0.42, 0.6)}
"""By dim: the subject that is matched, and the exponents of the decay of noise and of class means."""


def generate(dim: int, out: Path, stored: Path, seed: int = 0) -> None:
    """Write ``database``, ``learn`` and ``asked`` of one dim."""
    subject, noise, between = SPREADS[dim]
    rng, column = np.random.default_rng([seed, dim]), np.arange(1, dim + 1, dtype=np.float32)
    means = rng.standard_normal((CLASSES, dim), np.float32) * column**-between
    arrays = {}
    for name, count in (("database", ROWS), ("learn", LEARN), ("asked", ASKED)):
        drawn = rng.standard_normal((count, dim), np.float32) * column**-noise
        arrays[name] = _unit(drawn + means[rng.integers(CLASSES, size=count)])
    rows = map(json.loads, stored.read_text(encoding="utf-8").splitlines())
    real = next(row["figures"]["real"]["recall@10 of 10"] for row in rows if row["subject"] == subject)
    nesting = Nesting.halving(dim, smallest=8)
    lists = scan([(np.arange(ROWS), arrays["database"])], arrays["asked"][:200], 10, "cosine", nesting.dims)
    own = {str(level): _recall(lists[level].ids, lists[dim].ids) for level in nesting.dims}
    _write(out, arrays, {"name": f"generated like {subject}", "recall": own, "real": real})


def take(folder: Path, out: Path, seed: int = 0) -> None:
    """Write random rows of a set of ``benchmarks/unseen.py``; its tuning queries learn, its test queries ask."""
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    whole = np.load(folder / "database.npy", mmap_mode="r")
    chosen = np.sort(np.random.default_rng(seed).permutation(len(whole))[:ROWS])
    arrays = {"database": whole[chosen], "learn": np.load(folder / "tuning.npy"),
              "asked": np.load(folder / "test.npy")[:ASKED]}
    _write(out, {name: _unit(np.asarray(array, np.float32)) for name, array in arrays.items()},
           {"name": f"real: {about['source']}"})


def _write(out: Path, arrays: dict[str, Any], about: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(out / f"{name}.npy", array)
    (out / "about.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _unit(vectors: Any) -> Any:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _recall(found: Any, true: Any) -> float:
    return float((found[:, :, None] == true[:, None]).any(axis=1).mean())

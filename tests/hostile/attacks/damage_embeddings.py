"""Damage the files of an embeddings folder in every way."""

from __future__ import annotations

import dataclasses
import random
import resource
from pathlib import Path
from typing import Any

import numpy as np

from attacks.damage import damage, restored
from attacks.outcome import Outcome, ended, forked
from matryo.embeddings import EmbeddingSet, Head

PROMISE = "A damaged embeddings folder never crashes, and verify finds every damage that changes what is read."
BOUNDED, SOAK = 30, 1000


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Damage ``count`` copies of two folders and read each in a fork."""
    chance, outcome = random.Random(seed), Outcome(0)
    random_numbers = np.random.default_rng(seed)
    vectors = random_numbers.normal(size=(20, 8))
    head = Head.tied(random_numbers.normal(size=(3, 8)), np.zeros(3), dims=(4, 8))
    about: dict[str, Any] = {"nesting": [4, 8], "model": "mine", "dataset": "theirs"}
    EmbeddingSet.write(folder / "plain", vectors, **about)
    named = {"ids": [f"id {i}" for i in range(20)], "labels": ["cat", "dog", "bird", "dog"] * 5}
    EmbeddingSet.write(folder / "full", vectors, dtype="float16", head=head, **named, **about)
    bases = [(base, read(EmbeddingSet.open(base))) for base in (folder / "plain", folder / "full")]
    while outcome.attempts < count:
        base, baseline = chance.choice(bases)
        work = restored(base, folder / "work")
        changed = damage(work, chance)
        if changed is None:
            continue
        end = forked(use, work, baseline)
        outcome.attempts += 1
        if failure := end.value if end.kind == "returned" else f"{end.kind}: {end.text}":
            outcome.failures.append(f"attempt {outcome.attempts}, seed {seed}, {base.name}, {changed[1]}: {failure}")
    return outcome


def read(embeddings: EmbeddingSet) -> dict[str, Any]:
    """Everything that a user can read from a set, as lists."""
    head = embeddings.head
    return {
        "vectors": np.asarray(embeddings.vectors).tolist(), "prefixes": embeddings.at(4).tolist(),
        "ids": np.asarray(embeddings.ids).tolist(),
        "labels": None if embeddings.labels is None else np.asarray(embeddings.labels).tolist(),
        "manifest": {name: value for name, value in dataclasses.asdict(embeddings.manifest).items() if name != "files"},
        "head": None if head is None else [logits.tolist() for _, logits in head.all_logits(np.eye(8))],
    }  # fmt: skip


def use(path: Path, baseline: dict[str, Any]) -> str:
    """Open, read and verify a damaged folder; return the broken promise, or ""."""
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    with np.errstate(all="ignore"):
        opened = ended(EmbeddingSet.open, path)
        if opened.kind != "returned":
            return opened.text if opened.kind == "bare" else ""
        found = ended(read, opened.value)
        verified = ended(opened.value.verify)
        for end in (found, verified):
            if end.kind == "bare":
                return end.text
        if verified.kind == "returned" and (found.kind != "returned" or found.value != baseline):
            changed = [name for name in baseline if found.value and found.value[name] != baseline[name]]
            return f"verified, but it reads {changed or found.text} differently"
    return ""

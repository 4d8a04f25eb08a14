"""Vectors of real texts and images for `compress.py`: a database, queries, and which rows are relevant to each query.

Four sets are reported; settings were chosen on those of ``DEVELOPMENT``.
"""

from __future__ import annotations

import importlib
import json
import lzma
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from support.unseen_sets import Named

Array = np.ndarray[Any, np.dtype[Any]]
QUERIES = 1000
SIDE = 64   # pixels of an image for the ResNet50


@dataclass(frozen=True)
class Files(Named):
    """Where the data and the frozen models are."""

    data: Path | None = None
    wordllama: Path | None = None
    """The folder of the installed package."""
    vectors: Path | None = None
    """The output of ``retrofit.py encode``."""


@dataclass(frozen=True)
class Made:
    """One set."""

    database: Array
    queries: Array
    source: str
    relevant: list[list[int]] | None = None
    """The relevant rows of each query; None where only the nearest rows by all columns count."""
    trained: tuple[int, ...] = ()
    choosing: tuple[Array, list[list[int]]] | None = None
    """Other queries, with their relevant rows, for choices by nDCG."""

    def save(self, folder: Path) -> None:
        """Write the vectors and what is known of them."""
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "database.npy", np.ascontiguousarray(self.database, np.float32))
        np.save(folder / "queries.npy", np.ascontiguousarray(self.queries, np.float32))
        about = {"source": self.source, "relevant": self.relevant, "trained": self.trained}
        if self.choosing is not None:
            np.save(folder / "choosing.npy", np.ascontiguousarray(self.choosing[0], np.float32))
            about["choosing"] = self.choosing[1]
        (folder / "about.json").write_text(json.dumps(about) + "\n", encoding="utf-8")


# ── models ────────────────────────────────────────────────────────────────────────────────────────────────────


def by_wordllama(files: Files, texts: Sequence[str]) -> Array:
    """Means of token vectors that were trained nested."""
    sets: Any = importlib.import_module("support.unseen_sets")
    return np.asarray(sets.wordllama(files.need("wordllama"), list(texts)))


def by_resnet(files: Files, blob: Array, offsets: Array, rows: Array) -> Array:
    """2048 features of images by a frozen ResNet50 of ImageNet, at 64 pixels."""
    torch: Any = importlib.import_module("torch")
    photos: Any = importlib.import_module("support.unseen_photos")
    tqdm: Any = importlib.import_module("tqdm").tqdm
    model, found = photos.resnet(files.need("data") / "resnet50_imagenet/resnet50_fp16.safetensors"), []
    with torch.inference_mode():
        for start in tqdm(range(0, len(rows), 64)):
            images = [photos.decode(blob[offsets[row] : offsets[row + 1]]) for row in rows[start : start + 64]]
            batch = torch.nn.functional.interpolate(torch.stack(images), (SIDE, SIDE), mode="bilinear")
            found.append(model(batch.contiguous(memory_format=torch.channels_last)).float().numpy())
    return np.concatenate(found)


# ── sets that are reported ────────────────────────────────────────────────────────────────────────────────────


def scifact(files: Files) -> Made:
    """Abstracts and claims; the qrels of the test split."""
    folder = files.need("vectors")
    relevant, other = (json.loads((folder / f"scifact-{split}.json").read_text("utf-8")) for split in ("test", "train"))
    return Made(np.load(folder / "scifact.npy"), np.load(folder / "scifact-test.npy"),
                "SciFact, test claims; all-MiniLM-L6-v2", relevant,
                choosing=(np.load(folder / "scifact-train.npy"), other))  # fmt: skip


def clinc(files: Files) -> Made:
    """Utterances of 150 intents: the training split and the test split; those of the same intent are relevant."""
    folder = files.need("vectors")
    asked = np.load(folder / "clinc-test-labels.npy")
    chosen = np.sort(np.random.default_rng(0).permutation(len(asked))[:QUERIES])
    labels, rows = np.load(folder / "clinc-train-labels.npy").tolist(), np.load(folder / "clinc-train.npy")
    relevant = _same(labels, asked[chosen].tolist())
    return Made(rows, np.load(folder / "clinc-test.npy")[chosen], "CLINC150, train and test; all-MiniLM-L6-v2",
                relevant, choosing=_own(rows, labels))  # fmt: skip


def tiny(files: Files) -> Made:
    """12,000 training images of 200 classes, and 1,000 of the validation images."""
    parts, labels = [], []
    for split, count in (("train", 12_000), ("val", QUERIES)):
        packed = np.load(files.need("data") / f"tiny_imagenet/{split}_32px_webp.npz")
        key = next(name for name in packed.files if name not in ("blob", "off"))
        rows = np.sort(np.random.default_rng(0).permutation(len(packed["off"]) - 1)[:count])
        parts.append(by_resnet(files, packed["blob"], packed["off"], rows))
        labels.append(packed[key][rows].tolist())
    return Made(parts[0], parts[1], "Tiny-ImageNet, train and val; ResNet50 of ImageNet, frozen", _same(*labels),
                choosing=_own(parts[0], labels[0]))  # fmt: skip


def captions(files: Files) -> Made:
    """Captions of Flickr8k: 1,000 of them are queries; the other captions of the same photo are relevant."""
    data = json.loads((files.need("data") / "flickr8k/captions.json").read_text(encoding="utf-8"))
    texts = [(photo, text) for photo, some in enumerate(data["captions"]) for text in some]
    order = np.random.default_rng(0).permutation(len(texts))
    asked, kept = np.sort(order[:QUERIES]), np.sort(order[QUERIES:])
    vectors = by_wordllama(files, [text for _, text in texts])
    photos = [texts[row][0] for row in kept]
    relevant = _same(photos, [texts[row][0] for row in asked])
    return Made(vectors[kept], vectors[asked], "captions of Flickr8k; wordllama 0.4 l2_supercat_256, nested",
                relevant, (64, 128, 256), _own(vectors[kept], photos))  # fmt: skip


# ── sets that settings were chosen on ─────────────────────────────────────────────────────────────────────────


def reviews(files: Files) -> Made:
    """Reviews of films."""
    data = json.loads(lzma.decompress((files.need("data") / "imdb/imdb_unsup.json.xz").read_bytes()))
    texts = data if isinstance(data, list) else next(each for each in data.values() if isinstance(each, list))
    return _divided(by_wordllama(files, [str(text) for text in texts[:20_000]]), "IMDB; wordllama 0.4, nested")


def _divided(vectors: Array, source: str) -> Made:
    vectors = np.unique(vectors, axis=0)
    order = np.random.default_rng(0).permutation(len(vectors))
    return Made(vectors[order[QUERIES:]], vectors[order[:QUERIES]], source)


def _own(rows: Array, labels: Sequence[Any]) -> tuple[Array, list[list[int]]]:
    """Rows of the database as queries; the other rows of the same label are relevant."""
    chosen = np.sort(np.random.default_rng(1).permutation(len(rows))[:QUERIES])
    same = _same(labels, [labels[row] for row in chosen])
    return rows[chosen], [[other for other in some if other != row] for row, some in zip(chosen, same, strict=True)]


def _same(labels: Sequence[Any], asked: Sequence[Any]) -> list[list[int]]:
    places: dict[Any, list[int]] = {}
    for row, label in enumerate(labels):
        places.setdefault(label, []).append(row)
    return [places.get(label, []) for label in asked]


SETS: dict[str, Callable[[Files], Made]] = {"scifact": scifact, "clinc": clinc, "tiny": tiny, "captions": captions}
DEVELOPMENT: dict[str, Callable[[Files], Made]] = {"reviews": reviews}

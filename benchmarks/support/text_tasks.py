"""Training pairs and evaluation tasks of sentence encoders: SciFact, CLINC150, STS-B and WordNet."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from matryo import EmbeddingSet, evaluate, truncate
from matryo.data import Tokenizer, open_dataset, pairs_by_label
from matryo.evaluation import Relevance, pairs

Embed = Callable[[Tensor, Tensor], Tensor]
"""Token ids and their mask, [batch, length] each → vectors [batch, d]."""
Integers = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float32]]
SHARES = {"scifact": 0.4, "clinc150": 0.2, "wordnet": 0.4}
_TOKENS = 1 << 15   # of a batch that is encoded
_LOOK = 8   # batches of rows searched for rows that may share a batch


class Tokenised:
    """Texts as ids, end to end; a batch is padded when it is read."""

    def __init__(self, tokenizer: Tokenizer, texts: Iterable[str], length: int) -> None:
        self.ids, self.offsets = tokenizer.flat(texts, length)
        self.pad = tokenizer.pad

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Integers:
        """Tokens of each text."""
        return np.diff(self.offsets)

    def batch(self, rows: Integers, device: torch.device) -> tuple[Tensor, Tensor]:
        """Ids and mask of some ``rows``, padded to a multiple of eight tokens."""
        lengths = self.lengths[rows]
        places = np.arange(-(-int(lengths.max()) // 8) * 8)
        mask = places < lengths[:, None]
        ids = np.full(mask.shape, self.pad, np.int64)
        ids[mask] = self.ids[(self.offsets[rows][:, None] + places)[mask]]
        return _sent(ids, device), _sent(mask, device)


def _sent(values: Any, device: torch.device) -> Tensor:
    """On the device; a GPU need not be done with what is before it."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


@dataclass(frozen=True)
class Source:
    """Pairs to train on."""

    name: str
    queries: Tokenised
    candidates: Tokenised
    pairs: Integers
    """[n, 2]: rows of both."""
    keys: Integers
    """[n, 2]: what each side is about. In a batch every key stands once: others would be negatives that are none."""


@dataclass(frozen=True)
class Batch:
    """Pairs of one source that are scored against each other."""

    source: int
    rows: Integers


def sources(tokenizer: Tokenizer, data: Path, length: int, seed: int) -> list[Source]:
    """SciFact's titles with their abstracts and claims with their papers, intents with intents, words with glosses."""
    found = [_scifact(tokenizer, data / "scifact", length)]
    train = open_dataset("texts", data / "clinc150").split("train")
    texts = Tokenised(tokenizer, train, length)
    rows = pairs_by_label(train, seed).pairs
    found.append(Source("clinc150", texts, texts, rows, train.labels[rows]))
    words: Any = open_dataset("wordnet").split("train")
    sides = Tokenised(tokenizer, words.queries, length), Tokenised(tokenizer, words.candidates, length)
    return [*found, Source("wordnet", *sides, words.pairs, words.pairs)]


def _scifact(tokenizer: Tokenizer, folder: Path, length: int) -> Source:
    opened = open_dataset("beir", folder)
    titles, claims = (opened.split(name) for name in ("titles", "train"))
    sides: Any = [[titles.queries, claims.queries], [titles.candidates, claims.candidates]]
    queries, candidates = (Tokenised(tokenizer, (text for part in side for text in part), length) for side in sides)
    # A title's text and the whole paper are rows of two lists in one order, so a paper's key is its place in them.
    shift = np.array([len(sides[0][0]), len(sides[1][0])])
    rows = np.concatenate([titles.pairs, claims.pairs + shift])
    papers = np.concatenate([titles.pairs[:, 1], claims.pairs[:, 1]])
    return Source("scifact", queries, candidates, rows, np.stack([rows[:, 0], papers], axis=1))


def batches(given: Sequence[Source], steps: int, size: int, seed: int) -> list[Batch]:
    """The batches of a training, in order: a function of the seed, the same for every model that is compared."""
    rng = np.random.default_rng(seed)
    counts = np.array([SHARES[source.name] for source in given]) * steps / sum(SHARES[s.name] for s in given)
    turns = np.repeat(np.arange(len(given)), np.diff(np.r_[0, np.round(np.cumsum(counts))]).astype(int))
    draws = [_draws(source.keys, size, rng) for source in given]
    return [Batch(int(place), next(draws[place])) for place in rng.permutation(turns)]


def _draws(keys: Integers, size: int, rng: np.random.Generator) -> Iterator[Integers]:
    """Rows epoch after epoch, up to ``size`` at a time with no key twice; those that must wait come next."""
    waiting: deque[int] = deque()
    while True:
        while len(waiting) < _LOOK * size:
            waiting.extend(rng.permutation(len(keys)).tolist())
        taken: list[int] = []
        later: list[int] = []
        seen: tuple[set[int], set[int]] = set(), set()
        for _ in range(_LOOK * size):
            row = waiting.popleft()
            query, candidate = keys[row].tolist()
            if query in seen[0] or candidate in seen[1]:
                later.append(row)
                continue
            taken.append(row)
            seen[0].add(query)
            seen[1].add(candidate)
            if len(taken) == size:
                break
        waiting.extendleft(reversed(later))
        yield np.array(taken)


class Tasks:
    """SciFact's test queries, CLINC150's test intents and STS-B's test pairs."""

    def __init__(self, tokenizer: Tokenizer, data: Path, length: int) -> None:
        asked: Any = open_dataset("beir", data / "scifact").split("test")
        self.relevance = Relevance.of(asked.pairs, asked.grades)
        intents: Any = open_dataset("texts", data / "clinc150")
        self.labels = {name: intents.split(name).labels for name in ("train", "test")}
        lines = (data / "stsb" / "test.jsonl").read_text(encoding="utf-8").splitlines()
        judged = [json.loads(line) for line in lines]
        self.scores = [one["score"] for one in judged]
        texts = {
            "scifact queries": asked.queries,
            "scifact corpus": asked.candidates,
            "clinc150 train": intents.split("train"),
            "clinc150 test": intents.split("test"),
            "stsb first": [one["sentence1"] for one in judged],
            "stsb second": [one["sentence2"] for one in judged],
        }
        self.texts = {name: Tokenised(tokenizer, some, length) for name, some in texts.items()}

    def encode(self, embed: Embed, device: torch.device) -> dict[str, Floats]:
        """The vectors of every text, by the name of its list."""
        return {name: encode(embed, texts, device) for name, texts in self.texts.items()}

    def grade(self, vectors: dict[str, Floats], dims: Sequence[int]) -> dict[str, dict[str, list[float]]]:
        """Every figure, a list by dim."""
        found = pairs(
            EmbeddingSet.of(vectors["scifact queries"]), EmbeddingSet.of(vectors["scifact corpus"]), self.relevance,
            dims=dims, ks=[10, 100], progress=False,
        )  # fmt: skip
        train, test = (EmbeddingSet.of(vectors[f"clinc150 {n}"], labels=self.labels[n]) for n in ("train", "test"))
        intents = evaluate(train, test, dims=dims, ks=[10], progress=False)
        return {
            "scifact": {"ndcg@10": list(found.at("nDCG", 10)), "recall@100": list(found.at("recall", 100))},
            "clinc150": {"1-nn": [row.top1 for row in intents.rows], "10-nn": [row.knn[10] for row in intents.rows]},
            "stsb": {"spearman": [self._spearman(vectors, dim) for dim in dims]},
        }

    def _spearman(self, vectors: dict[str, Floats], dim: int) -> float:
        from scipy.stats import spearmanr

        one, other = (truncate(vectors[f"stsb {side}"].astype(np.float64), dim) for side in ("first", "second"))
        return float(spearmanr((one * other).sum(axis=1), self.scores).statistic)


def encode(embed: Embed, texts: Tokenised, device: torch.device, rows: Integers | None = None) -> Floats:
    """The vectors of ``texts``, or of some ``rows``, in batches of texts of like length."""
    rows = np.arange(len(texts)) if rows is None else rows
    order, found = np.argsort(-texts.lengths[rows], kind="stable"), []
    start = 0
    with torch.inference_mode():
        while start < len(order):
            some = order[start : start + max(1, _TOKENS // int(texts.lengths[rows[order[start]]]))]
            found.append(embed(*texts.batch(rows[some], device)).float())
            start += len(some)
    vectors = np.empty((len(order), found[0].shape[1]), np.float32)
    vectors[order] = torch.cat(found).cpu().numpy()
    return vectors

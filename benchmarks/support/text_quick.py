"""Made-up texts and a tiny model in the layouts that the text benchmarks read, to see in seconds that they run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from matryo.data import Tokenizer
from matryo.encoders import Bert, BertConfig
from matryo.files import write_json

_TOPICS = 12
_WORDS = 8   # of each topic


def make(folder: Path, *, docs: int = 60, dim: int = 48) -> None:
    """scifact/, clinc150/, stsb/ and imdb/ of sentences about a dozen topics, and a model/ for them."""
    rng = np.random.default_rng(0)

    def sentence(topic: int, words: int = 8) -> str:
        return " ".join(f"{chr(97 + topic)}{'aeiou'[w % 5]}{w}" for w in rng.integers(0, _WORDS, words))

    about = rng.integers(0, _TOPICS, docs)
    corpus = [{"_id": f"d{i}", "title": sentence(t, 4), "text": sentence(t, 12)} for i, t in enumerate(about)]
    _write(folder / "scifact" / "corpus.jsonl", corpus)
    asked = [{"_id": f"q{i}", "text": sentence(about[i])} for i in range(docs)]
    _write(folder / "scifact" / "queries.jsonl", asked)
    for split, rows in (("train", range(docs // 2)), ("test", range(docs // 2, docs))):
        lines = ["query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t1" for i in rows)]
        (folder / "scifact" / "qrels").mkdir(exist_ok=True)
        (folder / "scifact" / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for split, count in (("train", 10), ("test", 4)):
        intents = [{"text": sentence(t), "label": f"topic {t}"} for t in range(_TOPICS) for _ in range(count)]
        _write(folder / "clinc150" / f"{split}.jsonl", intents)
    likes = [(t, t if i % 2 else (t + 1) % _TOPICS) for t in range(_TOPICS) for i in range(4)]
    judged = ({"sentence1": sentence(a), "sentence2": sentence(b), "score": float(a == b)} for a, b in likes)
    _write(folder / "stsb" / "test.jsonl", judged)
    for split, count in (("train", 200), ("test", 40)):
        _write(folder / "imdb" / f"{split}.jsonl", ({"text": sentence(i % _TOPICS, 30)} for i in range(count)))
    _model(folder / "model", [one["title"] + " " + one["text"] for one in corpus], dim)


def _model(folder: Path, texts: list[str], dim: int) -> None:
    """A BERT of two layers, as sentence-transformers opens it."""
    tokenizer = Tokenizer.train(texts, vocabulary=300)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": dim, "num_attention_heads": 2, "intermediate_size": 2 * dim}
    config = BertConfig.named("bert-tiny", vocab_size=tokenizer.vocabulary, max_position_embeddings=64, **sizes)
    Bert(config).save(folder)
    tokenizer.save(folder)
    names = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **names})


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

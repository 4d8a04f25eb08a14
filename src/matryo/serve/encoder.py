"""Models that encode texts and images for the server: run folders, exported folders, sentence-transformers folders.

Texts are tokenized first, so that requests can be batched by tokens. A BERT reads a batch without padding.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from matryo.data.texts.tokenizer import Tokenizer
from matryo.encoders import Bert, SentenceEncoder, Tokens
from matryo.encoders.adapters.sentence_transformers import from_sentence_transformers
from matryo.encoders.bert.packed import ROWS, PackedBert
from matryo.errors import InputError
from matryo.files import sha256
from matryo.inference.items import GivenImages
from matryo.inference.model import TrainedModel, load
from matryo.training.objectives.masked import MaskedModel
from matryo.training.run.paths import RunFolder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

    from matryo.arrays import Array, Floats

__all__ = ["Encoder", "Facts", "open_encoder"]

_PADDED = 4096   # tokens with their padding per forward pass of a model that needs padding
_NO_LIMIT = 1_000_000   # transformers writes 1e30 for "no maximum length"


@dataclass(frozen=True)
class Facts:
    """The facts about a model that clients see."""

    dims: tuple[int, ...]
    """The dims it was trained at; the last one is the full dim."""
    length: int = 0
    """The most tokens of a text; 0 for a model of images."""
    pooling: str = ""
    texts: bool = True
    images: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    tokenizer: str = ""
    """The id of the tokenizer, which clients that send token ids must name."""
    table: tuple[Mapping[str, Any], ...] = ()
    """Measurements by dim, of the run or the model card."""
    weights: str = ""

    @property
    def dim(self) -> int:
        """The full dim."""
        return self.dims[-1]


class Encoder(ABC):
    """A loaded model."""

    def __init__(self, facts: Facts, tokenizer: Tokenizer | None, device: torch.device) -> None:
        self.facts, self.tokenizer, self.device = facts, tokenizer, device
        self.lanes = 1
        """How many batches at a time use the cores best."""
        self.grain = 0
        """If not 0, the first batch of a size is slow, and sizes count in multiples of this many tokens."""

    def use_threads(self, count: int) -> None:
        """Let the forward passes of the calling thread use ``count`` threads."""
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)

    def warm(self, tokens: int) -> None:
        """Run a batch of each size up to ``tokens``."""
        size = max(1, min(self.grain, self.facts.length))
        for count in range(self.grain, tokens + 1, self.grain) if self.grain else ():
            self.embed_tokens([np.ones(size, np.int32)] * -(-count // size))

    def tokenize(self, texts: Sequence[str], input_type: str | None) -> tuple[list[Array], list[int]]:
        """The ids of each text, truncated, and the number of its tokens before that."""
        assert self.tokenizer is not None
        prompt = self._prompt(input_type)
        texts = [prompt + text for text in texts] if prompt else texts
        flat, offsets = self.tokenizer.flat(texts)
        sizes = np.diff(offsets).tolist()
        if max(sizes) > self.facts.length:
            flat, offsets = self.tokenizer.flat(texts, self.facts.length)
        return np.split(flat, offsets[1:-1]), sizes

    def embed_tokens(self, ids: Sequence[Array]) -> Floats:
        """Token ids of each text → vectors [n, d], not normalised."""
        with torch.inference_mode():
            return self._embed(ids).float().cpu().numpy()

    def embed_images(self, images: Sequence[Array]) -> Floats:
        """Images, uint8 [height, width, 3], → vectors [n, d], not normalised."""
        raise InputError("this model reads texts", got=f"{len(images)} images", cure="send texts")

    @abstractmethod
    def _embed(self, ids: Sequence[Array]) -> Tensor: ...

    def _prompt(self, input_type: str | None) -> str:
        prompts = self.facts.prompts
        if input_type is None:
            return prompts.get(self.facts.default_prompt, "")
        names = ("query",) if input_type == "query" else ("document", "passage")
        return next((prompts[name] for name in names if name in prompts), "")


class _Packed(Encoder):
    """A BERT, which needs no padding."""

    def __init__(self, bert: Bert, facts: Facts, tokenizer: Tokenizer, device: torch.device) -> None:
        super().__init__(facts, tokenizer, device)
        self.bert = PackedBert(bert)
        # Batches side by side with a thread each do more than one batch with all threads, which wait for each other.
        self.lanes = torch.get_num_threads() if device.type == "cpu" else 1
        self.grain = ROWS if device.type == "cpu" else 0   # oneDNN makes code for each size

    def _embed(self, ids: Sequence[Array]) -> Tensor:
        flat = torch.from_numpy(np.concatenate(ids).astype(np.int64)).to(self.device)
        counts = torch.tensor([len(part) for part in ids])
        return self.bert(flat, counts)[:, : self.facts.dim]


class _Padded(Encoder):
    """Any other model of texts: batches of similar lengths are padded."""

    def __init__(self, network: Any, facts: Facts, tokenizer: Tokenizer | None, device: torch.device) -> None:
        super().__init__(facts, tokenizer, device)
        self.network = network

    def _embed(self, ids: Sequence[Array]) -> Tensor:
        order = sorted(range(len(ids)), key=lambda row: -len(ids[row]))
        out = torch.empty(len(ids), self.facts.dim)
        start = 0
        while start < len(order):
            longest = len(ids[order[start]])
            rows = order[start : start + max(1, _PADDED // longest)]
            out[rows] = self.network(self._tokens([ids[row] for row in rows]))[:, : self.facts.dim].float().cpu()
            start += len(rows)
        return out

    def _tokens(self, ids: Sequence[Array]) -> Tokens:
        counts = np.array([len(part) for part in ids])
        mask = np.arange(counts.max()) < counts[:, None]
        assert self.tokenizer is not None
        padded = np.full(mask.shape, self.tokenizer.pad, np.int64)
        padded[mask] = np.concatenate(ids)
        return Tokens(torch.from_numpy(padded), None if mask.all() else torch.from_numpy(mask)).to(self.device)


class _Trained(_Padded):
    """A run of matryo that reads images, or texts by another encoder than BERT."""

    def __init__(self, model: TrainedModel, facts: Facts) -> None:
        super().__init__(model.network.embed, facts, model.tokenizer, model.device)
        self.model = model

    def embed_images(self, images: Sequence[Array]) -> Floats:
        if not self.model.reads_images:
            return super().embed_images(images)
        return np.concatenate([vectors for vectors, _ in self.model.embed(GivenImages(list(images)))])


def open_encoder(path: Path, device: str = "auto", precision: str = "fp32") -> Encoder:
    """Load the model of a run folder, or of a folder of sentence-transformers or transformers with a BERT."""
    if RunFolder(path).exists:
        return _open_run(path, device, precision)
    if not path.is_dir() or not any((path / name).is_file() for name in ("modules.json", "config.json")):
        rule = "a served model must be a run folder, or a sentence-transformers folder"
        raise InputError(rule, got=path, cure="check the path, or export: matryo export RUN --to sentence-transformers")
    return _open_sentence(path, device)


def _open_run(path: Path, device: str, precision: str) -> Encoder:
    model, folder = load(path, device=device, precision=precision), RunFolder(path)
    encoder = model.network.encoder
    pooling = getattr(encoder, "pooling", "")
    facts = Facts(
        dims=model.nesting.dims,
        length=model.recipe.text.length if model.tokenizer is not None else 0,
        pooling=pooling if isinstance(pooling, str) else "",
        texts=model.tokenizer is not None,
        images=model.reads_images,
        tokenizer="" if folder.tokenizer is None else f"matryo:{sha256(folder.tokenizer)[:12]}",
        table=_measured(folder),
        weights=model.weights,
    )
    if isinstance(encoder, Bert) and not isinstance(model.network, MaskedModel) and precision == "fp32":
        assert model.tokenizer is not None
        return _Packed(encoder, facts, model.tokenizer, model.device)
    return _Trained(model, facts)


def _measured(folder: RunFolder) -> tuple[Mapping[str, Any], ...]:
    """The figures of the run at each dim."""
    by_dim = folder.row.by_dim()
    return tuple(
        {"dim": dim, **{name: values[dim] for name, values in by_dim.items() if dim in values}} for dim in folder.dims
    )


def _open_sentence(path: Path, device: str) -> Encoder:
    from matryo.training.distributed import choose_device

    target, tokenizer = choose_device(device), Tokenizer.open(path)
    settings = _settings(path / "config_sentence_transformers.json")
    config = _settings(path / "config.json")
    try:
        bert: nn.Module | None = Bert.open(path)
    except InputError:
        bert = None   # another network, or further modules after it
    network: Any = bert if bert is not None else _sentence_encoder(path)
    network.to(target).eval()
    facts = Facts(
        dims=_dims(path, config, int(network.dim)),
        length=_length(path, config),
        pooling=bert.pooling if isinstance(bert, Bert) else "",
        prompts={name: text for name, text in settings.get("prompts", {}).items() if text},
        default_prompt=settings.get("default_prompt_name") or "",
        tokenizer=f"matryo:{_digest(tokenizer)}",
        table=_card(path),
    )
    kind = _Packed if bert is not None else _Padded
    return kind(network, facts, tokenizer, target)


def _sentence_encoder(path: Path) -> SentenceEncoder:
    if not (path / "modules.json").is_file():
        rule = "a transformers folder must hold a BERT to be served"
        raise InputError(rule, got=path, cure="save it with sentence-transformers, which also stores its pooling")
    return from_sentence_transformers(path)


def _dims(path: Path, config: Mapping[str, Any], dim: int) -> tuple[int, ...]:
    """The dims that an export recorded; else the full dim alone."""
    inner = config if config else _settings(path / "0_Transformer" / "config.json")
    stored = {int(one) for one in inner.get("matryoshka_dimensions", ()) if int(one) < dim}
    return (*sorted(stored), dim)


def _length(path: Path, config: Mapping[str, Any]) -> int:
    lengths = [
        *(_settings(file).get("max_seq_length") for file in sorted(path.glob("**/sentence_bert_config.json"))),
        config.get("max_position_embeddings"),
        *(_settings(file).get("model_max_length") for file in sorted(path.glob("**/tokenizer_config.json"))),
    ]
    return min((int(length) for length in lengths if length and length < _NO_LIMIT), default=512)


def _card(path: Path) -> tuple[Mapping[str, Any], ...]:
    """The rows of the first table of the model card that starts with a column ``dim``."""
    try:
        lines = (path / "README.md").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return ()
    start = next((row for row, line in enumerate(lines) if line.replace(" ", "").startswith("|dim|")), None)
    if start is None:
        return ()
    names, rows = _cells(lines[start]), []
    for line in lines[start + 2 :]:
        cells = _cells(line)
        if not line.startswith("|") or not cells[0].isdigit():
            break
        rows.append({name: int(cell) if name == "dim" else cell for name, cell in zip(names, cells, strict=False)})
    return tuple(rows)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _settings(path: Path) -> dict[str, Any]:
    try:
        settings: dict[str, Any] = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}
    return settings


def _digest(tokenizer: Tokenizer) -> str:
    return hashlib.sha256(tokenizer.files.get("tokenizer.json", tokenizer.source.encode())).hexdigest()[:12]

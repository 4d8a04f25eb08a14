"""The models of a server by name: each with the batcher of its forward passes, and replaced as a whole by a reload."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.errors import InputError, MissingExtra
from matryo.nesting import truncate
from matryo.serve.batching import Batcher
from matryo.serve.http.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from matryo.arrays import Array, Floats
    from matryo.serve.encoder import Encoder
    from matryo.serve.http.metrics import Metrics
    from matryo.serve.limits import Limits

__all__ = ["Encoded", "Models", "ServedModel"]

_LEAST, _MOST = 128, 32_768   # tokens per forward pass, whatever the speed
_IMAGE = 256   # tokens that an image counts as in a batch
_WARM = 4   # forward passes before the first request, which also measure the speed
_SIZES = 512   # tokens: batches up to this size are prepared before the first request
_DENSE = 24   # characters per token that no usual text reaches


@dataclass(frozen=True)
class Encoded:
    """The vectors of the inputs of a request, [n, d], not normalised, and the tokens that were read."""

    vectors: Floats
    tokens: int
    truncated: int
    """The number of texts that were longer than the model reads."""


class ServedModel:
    """A loaded model and the thread that runs it."""

    def __init__(self, name: str, encoder: Encoder, limits: Limits, metrics: Metrics, lanes: int = 1) -> None:
        self.name, self.encoder, self.facts, self.limits, self.metrics = name, encoder, encoder.facts, limits, metrics
        self.created = int(time.time())

        def seen(cost: float, seconds: float) -> None:
            metrics.observe("batch_cost", cost, queue=name)
            metrics.observe("batch_seconds", seconds, queue=name)

        self.lanes = lanes
        self.batcher = Batcher(self._work, step=limits.step, wait=limits.wait, least=_LEAST, most=_MOST, seen=seen,
                               name=name, lanes=lanes)  # fmt: skip
        metrics.gauge("queue_cost", lambda: self.batcher.waiting, queue=name)

    async def warm(self) -> None:
        """Run the model a few times: the first passes are slow, and the speed is not known before."""
        await asyncio.to_thread(self._prepare)
        for _ in range(_WARM):
            if self.facts.texts:
                await self.encode_texts(["warm up the model"] * 8, None)
            else:
                await self.encode_images([np.zeros((32, 32, 3), np.uint8)])

    def _prepare(self) -> None:
        """Run batches of many sizes, by one thread and by all: oneDNN makes other code for each."""
        for threads in sorted({1, self.lanes}):
            if self.lanes > 1:
                self.encoder.use_threads(threads)
            self.encoder.warm(_SIZES)

    async def encode_texts(self, texts: Sequence[str], input_type: str | None, *, truncate: bool = True) -> Encoded:
        """Encode texts, each read up to the model's length; without ``truncate``, longer ones are refused."""
        self.batcher.admit()
        if sum(map(len, texts)) > _DENSE * self.limits.tokens:
            raise self._too_many("many more")
        small = sum(map(len, texts)) < 2048
        tokenize = self.encoder.tokenize
        ids, sizes = tokenize(texts, input_type) if small else await asyncio.to_thread(tokenize, texts, input_type)
        over = [row for row, size in enumerate(sizes) if size > self.facts.length]
        if over and not truncate:
            message = f"input {over[0]} has {sizes[over[0]]:,} tokens, and the model reads {self.facts.length:,}"
            raise ApiError(
                400, f"{message}: shorten it, or drop truncate", param="input", code="context_length_exceeded"
            )
        if sum(sizes) > self.limits.tokens:
            raise self._too_many(f"{sum(sizes):,}")
        return await self._run("texts", ids, [len(part) for part in ids], len(over))

    async def encode_ids(self, ids: Sequence[Array]) -> Encoded:
        """Encode token ids of the model's own tokenizer."""
        if (count := sum(map(len, ids))) > self.limits.tokens:
            raise self._too_many(f"{count:,}")
        return await self._run("texts", ids, [len(part) for part in ids], 0)

    async def encode_images(self, images: Sequence[Array]) -> Encoded:
        """Encode decoded images."""
        vectors = await self.batcher.run(images, [_IMAGE] * len(images), "images")
        return Encoded(np.stack(vectors), 0, 0)

    def close(self) -> None:
        """Finish what is queued."""
        self.batcher.close()

    async def _run(self, kind: str, ids: Sequence[Array], counts: list[int], truncated: int) -> Encoded:
        vectors = await self.batcher.run(ids, counts, kind)
        self.metrics.count("tokens_total", sum(counts), model=self.name)
        return Encoded(np.stack(vectors), sum(counts), truncated)

    def _work(self, kind: Hashable, items: list[Any]) -> Floats:
        if self.lanes > 1:   # one lane per thread of PyTorch
            self.encoder.use_threads(max(1, self.lanes // self.batcher.beside))
        return self.encoder.embed_tokens(items) if kind == "texts" else self.encoder.embed_images(items)

    def _too_many(self, got: str) -> ApiError:
        message = f"the inputs must have at most {self.limits.tokens:,} tokens (got {got}): send fewer at a time"
        return ApiError(400, message, param="input", code="too_many_tokens")


class Models:
    """The models by name."""

    def __init__(
        self, paths: Mapping[str, Path], limits: Limits, metrics: Metrics, device: str = "auto", *, alone: bool = False
    ) -> None:
        self.paths, self.limits, self.metrics, self.device = dict(paths), limits, metrics, device
        self.alone, self._lanes = alone, dict[str, int]()
        self.served = {name: self._open(name) for name in self.paths}

    def __iter__(self) -> Any:
        return iter(self.served.values())

    def find(self, name: str) -> ServedModel:
        """The model ``name``."""
        if name not in self.served:
            known = ", ".join(self.served) or "none: this server has indexes only"
            message = f"the model {name:.60} is not served: the models are {known}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return self.served[name]

    def for_index(self, name: str | None, facts: Mapping[str, Any], dim: int) -> ServedModel:
        """The model that encodes queries of an index: ``name``, or the one that made its vectors, or the only one."""
        if name is not None:
            model = self.find(name)
        else:
            made = [one for one in self if one.facts.weights and one.facts.weights == facts.get("weights")]
            able = made or [one for one in self if one.facts.dim >= dim]
            if len(able) != 1:
                message = "texts and images need the model of the index: name a served one as model, or send vectors"
                raise ApiError(400, message, param="model", code="no_model")
            model = able[0]
        if model.facts.dim < dim:
            message = f"the model {model.name} has {model.facts.dim} dims, and the index {dim}: name another model"
            raise ApiError(400, message, param="model")
        return model

    async def reload(self) -> None:
        """Load every model again, and replace it; requests that have begun finish with the old one."""
        for name in self.paths:
            new = await asyncio.to_thread(self._open, name)
            await new.warm()
            old, self.served[name] = self.served[name], new
            await asyncio.to_thread(old.close)

    def close(self) -> None:
        """Finish what is queued."""
        for model in self.served.values():
            model.close()

    def _open(self, name: str) -> ServedModel:
        with MissingExtra.unless_installed("PyTorch", "text", module="torch"):
            from matryo.serve.encoder import open_encoder

        encoder = open_encoder(self.paths[name], self.device)
        lanes = self._lanes.setdefault(name, encoder.lanes if self.alone else 1)   # lanes change PyTorch's threads
        return ServedModel(name, encoder, self.limits, self.metrics, lanes)


def cut(vectors: Floats, dim: int) -> Floats:
    """Truncate, then normalise."""
    try:
        return truncate(vectors, dim, normalize=True)
    except InputError as error:
        raise ApiError(400, str(error), param="dimensions") from None

"""A trained model, loaded from its run folder: images or texts in, vectors or classes out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from matryo.arguments import checked
from matryo.data.dataset import TextSplit
from matryo.data.texts.rows import TextRows
from matryo.data.texts.tokenizer import Tokenizer
from matryo.data.unlabelled import open_unlabelled
from matryo.encoders import depth_of, mflops_per_token
from matryo.errors import InputError
from matryo.inference.encode import head_arrays
from matryo.inference.items import as_images, as_list
from matryo.nesting import truncate
from matryo.training.batches.open import ordered_batches
from matryo.training.batches.reading import Waiting
from matryo.training.batches.texts import sorted_rows, tokens_ahead
from matryo.training.distributed import choose_device
from matryo.training.objectives.classify import Classifier, at_width
from matryo.training.objectives.depths import after_layers
from matryo.training.recipe.against_data import noun
from matryo.training.run.paths import RunFolder
from matryo.training.run.trained import open_trained

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.arrays import Floats
    from matryo.data import ImageSplit
    from matryo.heads import NestedLinear
    from matryo.nesting import Nesting
    from matryo.training.objectives.base import NestedModel
    from matryo.training.recipe.fields import Recipe

PRECISIONS = ("fp32", "bf16")
_SIDES = ("queries", "candidates")
_SORTED = 16   # batches of texts that are sorted by length together


@dataclass(frozen=True)
class Prediction:
    """The most likely class of each item."""

    labels: tuple[str, ...]
    """The class names."""
    confidence: Floats
    """The softmax probability of each label, [n]."""
    dim: int
    """The dim at which the head classified."""


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """A trained network with its recipe and class names."""

    network: NestedModel
    recipe: Recipe
    classes: tuple[str, ...]
    device: torch.device
    weights: str
    """The SHA-256 of the weights, which identifies the model."""
    width: float = 1.0
    """The share of a slimmable network's channels in use."""
    tokenizer: Tokenizer | None = None
    """The tokenizer; None for a model that reads images only."""
    sides: tuple[str, ...] = ()
    """The kinds (images or texts) of queries and candidates, for a model trained on pairs; else empty."""
    precision: str = "fp32"
    """The precision of the computation: fp32, whose vectors equal those of every export, or bf16, faster on a GPU."""
    layers: int = 0
    """The number of layers of a BERT or ViT in use, if it is cut; else 0."""

    def __repr__(self) -> str:
        """Two lines: what the model is, and what it reads, its dims and its classes."""
        reads = " and ".join(["images"] * self.reads_images + ["texts"] * (self.tokenizer is not None))
        classes = f"{len(self.classes):,} classes" if self.head is not None else "no classes"
        about = self.description
        return (
            f"TrainedModel({about['name']!r}, encoder {about['encoder']}, seed {about['seed']}, on {self.device})\n"
            f"  reads {reads}; dims {', '.join(map(str, self.nesting.dims))}; {classes}"
        )

    @property
    def description(self) -> dict[str, Any]:
        """The model's entry in the manifest of an embeddings folder."""
        slimmable = self.recipe.head.kind == "slimmable"
        narrow = f" at width {self.width:g}" if self.width != 1 else ""
        narrow += f" after layer {self.layers}" if self.layers else ""
        encoder = self.network.encoder
        depth = {"layers": depth_of(encoder), "mflops_per_token": round(mflops_per_token(encoder), 3)}
        return {
            "name": f"{self.recipe.name} {self.recipe.variant}{narrow}",
            "encoder": " + ".join(filter(None, (self.recipe.encoder.name, self.recipe.text.encoder))),
            "head": self.recipe.variant,
            **({"width": self.width} if slimmable else {}),
            **(depth if self.layers or self.recipe.encoder.layers else {}),
            "seed": self.recipe.loop.seed,
            "weights": self.weights,
            **({"precision": self.precision} if self.precision != "fp32" else {}),
        }

    @property
    def nesting(self) -> Nesting:
        """The dims that the model was trained at, with their weights."""
        return self.network.nesting

    @property
    def head(self) -> NestedLinear | None:
        """The classifiers, or None for a model trained without classes."""
        return self.network.head if isinstance(self.network, Classifier) else None

    @checked
    def after_layers(self, layers: int) -> TrainedModel:
        """This model with only the first ``layers`` of its BERT or ViT, and the same head; it shares the weights.

        >>> load("runs/text").after_layers(2).encode(["a text"], dim=64)      # doctest: +SKIP
        """
        whole = depth_of(self.network.encoder)
        network = after_layers(self.network, layers).eval()
        return self if layers == whole else replace(self, network=network, layers=layers)

    @checked
    def encode(
        self, items: Any, dim: int | None = None, *, layers: int | None = None, normalize: bool = True,
        side: str | None = None,
    ) -> Floats:   # fmt: skip
        """Images or texts → float32 vectors [n, dim], of unit norm unless ``normalize=False``.

        Args:
            items: texts, or images: paths, Pillow images, uint8 arrays [height, width, 3], one array
                [n, height, width, 3], or a folder of images. A list, or a column of pandas, polars or datasets.
            dim: any prefix length up to the model's own, which is the default.
            layers: stop after so many layers of a BERT or ViT; by default, run all. Good are those of encoder.layers,
                which were trained.
            side: ``queries`` or ``candidates``, for a model trained on pairs of images and texts: a ``str`` is then the
                path of an image if that side is images. Without ``side``, such a model reads a ``str`` as a text.
        """
        if layers is not None:
            return self.after_layers(layers).encode(items, dim, normalize=normalize, side=side)
        split, full = self._split(items, side), self.nesting.dim
        dim = full if dim is None else dim
        empty = truncate(np.zeros((0, full), np.float32), dim)   # an invalid dim is an error before any encoding
        return truncate(self._vectors(split), dim, normalize) if len(split) else empty

    @checked
    def predict(self, items: Any, dim: int | None = None, *, layers: int | None = None) -> Prediction:
        """The class of each item with its confidence, by the head at ``dim`` (default: the largest).

        ``items`` and ``layers`` are those of :meth:`encode`. A separate head classifies only at the dims it was
        trained at.

        >>> load("runs/demo").predict(["cat.png"]).labels      # doctest: +SKIP
        ('animal-mammal',)
        """
        if layers is not None:
            return self.after_layers(layers).predict(items, dim)
        if self.head is None:
            raise InputError(
                "only a model trained with objective.kind classify predicts classes",
                got=f"objective.kind {self.recipe.objective.kind}",
                cure="use encode, and search or classify the vectors",
            )
        head, split = head_arrays(self.head), self._split(items, None)
        dim = self.nesting.dim if dim is None else dim
        logits = head.logits(np.zeros((0, head.dim), np.float32), dim)   # an invalid dim is an error before encoding
        if len(split):
            logits = head.logits(self._vectors(split), dim)
        best = logits.argmax(1)
        exponentials = np.exp(logits - logits.max(1, keepdims=True, initial=-np.inf))
        confidence = exponentials[np.arange(len(best)), best] / exponentials.sum(1)
        return Prediction(tuple(self.classes[index] for index in best), confidence.astype(np.float32), dim)

    def _vectors(self, split: ImageSplit | TextSplit) -> Floats:
        return np.concatenate([vectors for vectors, _ in self.embed(split)])

    def _split(self, items: Any, side: str | None) -> ImageSplit | TextSplit:
        """``items`` as a split without labels."""
        if side is not None and (side not in _SIDES or not self.sides):
            raise InputError(
                "side must be queries or candidates, and the model trained on pairs",
                got=f"{side!r}, a model trained on {'pairs' if self.sides else 'no pairs'}",
                cure="choose one of both" if self.sides else "leave side out",
            )
        is_images = side is not None and self.sides[_SIDES.index(side)] == "images"
        if self.tokenizer is None or is_images:
            return as_images(items)
        if isinstance(items, Path):   # a folder or file of texts; a str is a text itself
            split: Any = open_unlabelled(items)
            self.check_reads(split)
            return split   # type: ignore[no-any-return]
        texts = as_list(items)
        wrong = next((i for i, item in enumerate(texts) if not isinstance(item, str)), None)
        if wrong is None:
            return TextRows(list(texts))
        if self.reads_images:
            return as_images(items)
        got = f"{type(texts[wrong]).__name__} at position {wrong}"
        raise InputError("this model reads texts", got=got, cure="pass a list of str")

    @property
    def reads_images(self) -> bool:
        """Whether the model was trained on images, alone or with texts."""
        return self.tokenizer is None or "images" in self.sides

    @checked
    def check_reads(self, split: ImageSplit | TextSplit) -> None:
        """Raise unless the model was trained on what ``split`` holds, images or texts."""
        kind = noun(split)
        if not (self.reads_images if kind == "images" else self.tokenizer is not None):
            own = "texts" if kind == "images" else "images"
            rule, cure = f"this model reads {own}", f"choose a --source of {own}, or another model"
            raise InputError(rule, got=f"{len(split):,} {kind}", cure=cure)

    @checked
    def embed(
        self, split: ImageSplit | TextSplit, *, start: int = 0, batch: int = 512
    ) -> Iterator[tuple[Floats, Any]]:
        """Iterate over batches of (vectors, labels), in order from item ``start``; the vectors are not normalised."""
        self.network.eval()
        if isinstance(split, TextSplit):
            yield from self._embed_texts(split, start, batch)
            return
        with torch.inference_mode():
            for inputs, labels in ordered_batches(split, self.recipe, self.device, start=start, batch=batch):
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
                    z = self.network.embed(inputs, flip=self.recipe.data.test_flip)
                yield z.cpu().numpy(), labels.numpy()

    def _embed_texts(self, split: TextSplit, start: int, batch: int) -> Iterator[tuple[Floats, Any]]:
        """As :meth:`embed`; texts of similar length are embedded together, so that few tokens are padding."""
        assert self.tokenizer is not None
        span = _SORTED * batch
        low, filled, vectors = start // span * span, 0, torch.empty(0)   # a resumed encoding has the same batches
        rows, again = tee(sorted_rows(split, low, span, batch))
        tokens = tokens_ahead(split, again, self.tokenizer, self.recipe.text.length, Waiting(self.device))
        with torch.inference_mode():
            for part, inputs in zip(rows, tokens, strict=True):
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
                    z = self.network.embed(inputs, flip=self.recipe.data.test_flip)
                if not filled:
                    vectors = torch.empty(min(span, len(split) - low), z.shape[1], device=self.device)
                vectors[torch.from_numpy(part - low).to(self.device)] = z.float()
                filled += len(part)
                if filled == len(vectors):
                    found, high = vectors.cpu().numpy(), low + filled
                    for first in range(max(start, low), high, batch):
                        last = min(first + batch, high)
                        yield found[first - low : last - low], split.labels[first:last]
                    low, filled = high, 0


@checked
def load(
    run: str | Path, *, device: str = "auto", width: float = 1.0, layers: int | None = None, precision: str = "fp32"
) -> TrainedModel:
    """Load the model of a complete run folder; a slimmable one at one of its widths, a BERT or ViT with its ``layers``.

    ``precision`` is that of encoding, independent of training: ``bf16`` is faster on a GPU, but its vectors differ from
    those of ``fp32`` in the third digit. Every file is compared with its checksum; a damaged one is an error.

    >>> model = load("runs/demo")                    # doctest: +SKIP
    >>> model.encode(["cat.png"], dim=64).shape      # doctest: +SKIP
    (1, 64)
    """
    if precision not in PRECISIONS:
        raise InputError("unknown precision", got=repr(precision), cure=f"choose one of {', '.join(PRECISIONS)}")
    folder = RunFolder(Path(run))
    network, tokenizer = open_trained(folder)
    network, target = at_width(network, width), choose_device(device)
    network.to(target, memory_format=torch.channels_last).eval()   # type: ignore[call-overload]
    model = TrainedModel(
        network, folder.recipe, folder.classes, target, folder.digest, width, tokenizer, folder.sides, precision
    )
    return model if layers is None else model.after_layers(layers)

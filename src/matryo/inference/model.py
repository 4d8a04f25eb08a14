"""A trained model, loaded from its run folder: images or texts in, vectors out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from matryo.data.images.decode import decode, to_rgb
from matryo.data.texts.rows import TextRows
from matryo.data.texts.tokenizer import Tokenizer
from matryo.errors import InputError
from matryo.files import sha256
from matryo.nesting import truncate
from matryo.training.batches.open import test_batches
from matryo.training.distributed import choose_device
from matryo.training.objectives.classify import Classifier, at_width
from matryo.training.recipe.against_data import noun
from matryo.training.run.paths import RunFolder
from matryo.training.run.trained import open_trained

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matryo.data import ImageSplit, TextSplit
    from matryo.heads import NestedLinear
    from matryo.nesting import Nesting
    from matryo.training.objectives.base import NestedModel
    from matryo.training.recipe.fields import Recipe

    Vectors = np.ndarray[Any, np.dtype[np.float32]]

__all__ = ["GivenImages", "TrainedModel", "load"]

PRECISIONS = ("fp32", "bf16")
_SIDES = ("queries", "candidates")


@dataclass(frozen=True)
class TrainedModel:
    """A model with the recipe it was trained by and the classes it knows."""

    network: NestedModel
    recipe: Recipe
    classes: tuple[str, ...]
    device: torch.device
    weights: str
    """The SHA-256 of the weights: two models that differ in it differ."""
    width: float = 1.0
    """The share of a slimmable network's channels that it uses."""
    tokenizer: Tokenizer | None = None
    """How texts become numbers; None for a model of images."""
    sides: tuple[str, ...] = ()
    """What the queries and the candidates of its pairs were: images or texts; empty where it learned from no pairs."""
    precision: str = "fp32"
    """What it computes in: fp32, which gives the vectors that every export gives, or bf16, quicker on a GPU."""

    @property
    def description(self) -> dict[str, Any]:
        """What an embeddings folder says of the model that made it."""
        slimmable = self.recipe.head.kind == "slimmable"
        narrow = f" at width {self.width:g}" if self.width != 1 else ""
        return {
            "name": f"{self.recipe.name} {self.recipe.variant}{narrow}",
            "encoder": " + ".join(filter(None, (self.recipe.encoder.name, self.recipe.text.encoder))),
            "head": self.recipe.variant,
            **({"width": self.width} if slimmable else {}),
            "seed": self.recipe.loop.seed,
            "weights": self.weights,
            **({"precision": self.precision} if self.precision != "fp32" else {}),
        }

    @property
    def nesting(self) -> Nesting:
        """The dims this model was trained at."""
        return self.network.nesting

    @property
    def head(self) -> NestedLinear | None:
        """Its classifiers, if it has some."""
        return self.network.head if isinstance(self.network, Classifier) else None

    def encode(
        self, items: Any, dim: int | None = None, *, normalize: bool = True, side: str | None = None
    ) -> Vectors:
        """Images or texts → float32 vectors [n, dim], of unit norm unless ``normalize=False``.

        Args:
            items: a list of texts, for a model that reads texts; or a uint8 array [n, height, width, 3], or a list of
                such images, file paths or Pillow images, of any sizes.
            dim: any prefix length up to the model's own, which is the default.
            side: ``queries`` or ``candidates`` says which side of its pairs they are. A model of images and texts
                takes a ``str`` for a text, unless that side was images: then it is the path of one.
        """
        given, full = self._given(items, side), self.nesting.dim
        dim = full if dim is None else dim
        none = truncate(np.zeros((0, full), np.float32), dim)   # a wrong dim is told before anything is encoded
        if not len(given):
            return none
        # No worker processes: they would run the caller's script once more, and be sent all its images.
        vectors = np.concatenate([part for part, _ in self.embed(given, workers=0)])
        return truncate(vectors, dim, normalize)

    def _given(self, items: Any, side: str | None) -> ImageSplit | TextSplit:
        """What a caller passed, as a split without labels."""
        if side is not None and (side not in _SIDES or not self.sides):
            raise InputError(
                "a side is queries or candidates, of a model trained on pairs",
                got=f"{side!r}, a model trained on {'pairs' if self.sides else 'no pairs'}",
                cure="leave side out" if not self.sides else "choose one of both",
            )
        if isinstance(items, str):
            items = [items]
        told = isinstance(items, list | tuple) and bool(items) and all(isinstance(item, str) for item in items)
        images = side is not None and self.sides[_SIDES.index(side)] == "images"
        if self.tokenizer is None or images or (not told and self.reads_images):
            return GivenImages(items)
        if isinstance(items, list | tuple) and not items:
            return TextRows([])
        if not told:
            got = type(items).__name__
            if isinstance(items, list | tuple):
                place, wrong = next((i, item) for i, item in enumerate(items) if not isinstance(item, str))
                got = f"{type(wrong).__name__} at position {place}"
            raise InputError("this model reads texts", got=got, cure="pass a list of str")
        return TextRows(items)

    @property
    def reads_images(self) -> bool:
        """Whether images are among what it was trained on."""
        return self.tokenizer is None or "images" in self.sides

    def check_reads(self, split: ImageSplit | TextSplit) -> None:
        """Raise unless it was trained on what ``split`` holds, images or texts."""
        kinds = {"images": self.reads_images, "texts": self.tokenizer is not None}
        if not kinds[noun(split)]:
            own = next(kind for kind, read in kinds.items() if read)
            rule, cure = f"this model reads {own}", f"choose a --source of {own}, or another model"
            raise InputError(rule, got=f"{len(split):,} {noun(split)}", cure=cure)

    def embed(
        self, split: ImageSplit | TextSplit, *, start: int = 0, batch: int = 512, workers: int | None = None
    ) -> Iterator[tuple[Vectors, Any]]:
        """(vectors, labels) of a split in order, un-normalised, batch by batch from item ``start`` on.

        ``workers`` processes decode large splits; None takes the recipe's number.
        """
        self.network.eval()
        with torch.inference_mode():
            for inputs, labels in test_batches(
                split, self.recipe, self.device, start=start, batch=batch, workers=workers, tokenizer=self.tokenizer
            ):
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
                    flip = self.recipe.data.test_flip and isinstance(inputs, torch.Tensor)
                    z = self.network.embed(inputs, flip=flip)
                yield z.cpu().numpy(), labels.numpy()


def load(run: str | Path, *, device: str = "auto", width: float = 1.0, precision: str = "fp32") -> TrainedModel:
    """The model of a complete run folder; a slimmable one at one of its widths.

    ``precision`` is what it encodes in, whatever it was trained in: ``bf16`` is quicker on a GPU, but its vectors
    differ from those in ``fp32`` in the third digit.

    >>> model = load("runs/demo")                    # doctest: +SKIP
    >>> model.encode(["cat.png"], dim=64).shape      # doctest: +SKIP
    (1, 64)
    """
    if precision not in PRECISIONS:
        raise InputError("unknown precision", got=repr(precision), cure=f"choose one of {', '.join(PRECISIONS)}")
    path = Path(run)
    saved = open_trained(path)
    network = at_width(saved.network, width)
    where = choose_device(device)
    network.to(where, memory_format=torch.channels_last).eval()   # type: ignore[call-overload]
    weights = sha256(RunFolder(path).weights)
    return TrainedModel(
        network, saved.recipe, saved.classes, where, weights, width, saved.tokenizer, saved.sides, precision
    )


class GivenImages:
    """What a caller passed to ``encode`` or Grad-CAM, as a split without labels."""

    shape = None

    def __init__(self, images: Any) -> None:
        if isinstance(images, (str, Path)) or hasattr(images, "convert"):
            images = [images]
        if isinstance(images, np.ndarray) and images.ndim == 3 and images.shape[-1] == 3:
            images = images[None]
        self.images = images
        self.labels = np.full(len(images), -1, np.int64)

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        return f"image {index}"

    def image(self, index: int) -> Any:
        item = self.images[index]
        if isinstance(item, (str, Path)):
            return decode(_read(Path(item)), str(item))
        if hasattr(item, "convert"):
            return to_rgb(item, self.name(index))
        pixels = np.asarray(item)
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[-1] != 3:
            raise InputError(
                "images must be uint8 [height, width, 3]",
                got=f"{pixels.dtype} {list(pixels.shape)} at position {index}",
                cure="pass RGB values of 0…255",
            )
        return pixels


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError("cannot read an image", got=f"{path}: {error.strerror}", cure="check the path") from error

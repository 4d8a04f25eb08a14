"""The two settings in which the paper's tables are measured: the paper's own, and a small one on bundled data."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from matryo.errors import InputError
from matryo.nesting import Nesting

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Scale:
    """Models to train, their data, and where they are tested."""

    name: str
    about: str
    recipe: str
    """The bundled recipe that every image model changes."""
    changes: Mapping[str, str]
    """Fields of that recipe that all of them share."""
    dims: tuple[int, ...]
    smallest: tuple[int, ...]
    """Other smallest dims, for the ablation."""
    query: str
    """The split that is classified and retrieved with."""
    shifted: Mapping[str, str]
    """The shifted test splits, each with the paper's name of its place in the tables."""
    unfreeze: Mapping[str, str]
    """Columns of the finetuning table, with the first layer that is trained."""
    finetuning: Mapping[str, str]
    """Fields of a finetuning that differ from the training."""
    hidden: int = 0
    """Classes that are hidden from training, for queries of unseen classes; 0: the unseen classes are other data."""
    pairs: Mapping[str, str] = field(default_factory=dict)
    """Fields of the recipe ``emoji-pairs``; empty where no public pairs stand in for ALIGN's."""
    folders: tuple[str, ...] = ()
    """Folders that --data DIR must hold; empty where the data is bundled."""
    run_gigabytes: float = 0.01
    """Disk for one run with its embeddings."""
    seeds: int = 1

    @property
    def dim(self) -> int:
        """The full dim."""
        return self.dims[-1]

    @property
    def between(self) -> tuple[int, ...]:
        """The dims half-way between the trained ones."""
        return tuple((low + high) // 2 for low, high in pairwise(self.dims))

    @property
    def uniform(self) -> tuple[int, ...]:
        """About as many dims as the paper's uniform nesting: equally spaced, from the smallest to the full one."""
        steps = 10 if self.dim >= 2048 else len(self.dims) - 1
        width = (self.dim - self.dims[0]) / steps
        return (self.dims[0], *(round(self.dims[0] + width * step) for step in range(1, steps)), self.dim)


_SMALL = {"encoder.dim": "128", "loop.epochs": "20", "optim.peak": "4", "data.test": ""}
_PAPER = {"data.test": ""}

SMALL = Scale(
    "small",
    "the bundled emoji: 1,661 classes, trained on the drawings of four vendors, tested on those of three others",
    recipe="demo",
    changes=_SMALL,
    dims=Nesting.halving(128, 8).dims,
    smallest=(4, 6),
    query="flat",
    shifted={"twemoji": "ImageNet-V2", "high-contrast": "ImageNet-Sketch"},
    unfreeze={"fc": "none", "4.2 conv3, fc": "projection", "4.2 conv2, conv3, fc": "blocks.2.body.3",
              "4.2 full, fc": "blocks.2"},
    finetuning={"loop.epochs": "6", "optim.peak": "1"},
    hidden=400,
    pairs={"loop.epochs": "5", "data.test": ""},
)  # fmt: skip
PAPER = Scale(
    "paper",
    "ImageNet-1K with ResNet50, 40 epochs",
    recipe="imagenet-rn50-mrl",
    changes=_PAPER,
    dims=Nesting.halving(2048, 8).dims,
    smallest=(4, 6),
    query="val",
    shifted={"v2": "ImageNet-V2", "r": "ImageNet-R", "a": "ImageNet-A", "sketch": "ImageNet-Sketch"},
    unfreeze={"fc": "none", "4.2 conv3, fc": "layer4.2.conv3", "4.2 conv2, conv3, fc": "layer4.2.conv2",
              "4.2 full, fc": "layer4.2"},
    finetuning={"loop.epochs": "10", "optim.lr": "0.1", "data.size_end": "0", "data.size_ramp": ""},
    folders=("imagenet/train", "imagenet/val"),
    run_gigabytes=14.0,
    seeds=3,
)  # fmt: skip
SCALES = {scale.name: scale for scale in (SMALL, PAPER)}


def scale_of(name: str) -> Scale:
    """Return the scale called ``name``."""
    if name not in SCALES:
        raise InputError("no such scale", got=repr(name), cure=f"choose from {', '.join(SCALES)}")
    return SCALES[name]

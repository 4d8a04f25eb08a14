"""A recipe: everything that decides how a model is trained, as frozen dataclasses.

Each field's help is written once, here; the command line and the docs are made from it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Literal

from matryo.errors import RecipeError
from matryo.nesting import Nesting

__all__ = ["Augment", "Data", "Encoder", "Finetune", "Head", "Loop", "Optim", "Recipe"]

Floats = tuple[float, ...]
Ints = tuple[int, ...]
Names = tuple[str, ...]


@dataclass(frozen=True)
class Data:
    """Which images, and how they are read."""

    source: Annotated[
        Literal["emoji", "folder", "packed", "shards"],
        "where images come from: the bundled emoji, or an image folder, packed .npz or tar shards in --data DIR",
    ] = "emoji"
    train: Annotated[str, "the split to train on"] = "train"
    test: Annotated[Names, "the splits to measure after training"] = ()
    size: Annotated[int, "pixels a side in training"] = 32
    size_end: Annotated[int, "pixels a side at the end of training; 0 keeps size"] = 0
    size_ramp: Annotated[Ints, "first and last epoch of the growth from size to size_end, in steps of 32 px"] = ()
    test_size: Annotated[int, "pixels a side when encoding; 0 is the training size"] = 0
    test_crop: Annotated[float, "share of the shorter side kept by the central crop when encoding"] = 1.0
    test_flip: Annotated[bool, "average the embeddings of an image and its mirror image when encoding"] = False
    mean: Annotated[Floats, "subtracted from the red, green and blue of 0…1 images"] = (0.485, 0.456, 0.406)
    std: Annotated[Floats, "then divided by"] = (0.229, 0.224, 0.225)
    resident: Annotated[
        Literal["auto", "yes", "no"],
        "keep the decoded images on the device (auto: if all have the training size and fit in 4 GB)",
    ] = "auto"
    workers: Annotated[int, "processes that decode when images are streamed"] = 8


@dataclass(frozen=True)
class Encoder:
    """The network that makes embeddings."""

    name: Annotated[str, "convnet, resnet18, resnet34, resnet50, or timm:MODEL"] = "convnet"
    dim: Annotated[int, "dimensions d of the embedding; 0 is the network's own"] = 0
    stem: Annotated[Literal["imagenet", "small"], "how a ResNet begins: small suits images of 32 px"] = "imagenet"
    blurpool: Annotated[bool, "low-pass before the strided convolutions of a ResNet"] = False
    norm: Annotated[Literal["batch", "group"], "the normalisation layers"] = "batch"
    pretrained: Annotated[bool, "start a timm model from its published weights"] = False
    widths: Annotated[Floats, "shares of its channels a ResNet is trained at, for head.kind = slimmable"] = (
        0.25, 0.5, 0.75, 1.0,
    )  # fmt: skip


@dataclass(frozen=True)
class Head:
    """The classifiers on the embedding, and the nesting they train."""

    kind: Annotated[
        Literal["separate", "tied", "fixed", "slimmable"],
        "a head a dim (MRL), one shared head (MRL-E), one dim only, or one shared by the widths of a slimmable network",
    ] = "separate"
    dims: Annotated[Ints, "the nesting; empty halves d down to 8 (fixed: d; slimmable: d at each width)"] = ()
    weights: Annotated[Floats, "the weight of each dim's loss; empty is 1 each"] = ()
    bias: Annotated[bool, "give the heads a bias"] = True


@dataclass(frozen=True)
class Augment:
    """How a training image is varied. Each image's variation depends on seed, epoch and image alone."""

    crop: Annotated[
        Literal["none", "pad", "resized", "affine"],
        "none; pad and crop back; random resized crop; or a random affine map of the whole image",
    ] = "pad"
    pad: Annotated[int, "pixels of reflected padding for crop = pad"] = 4
    scale: Annotated[Floats, "smallest and largest share of the area (resized) or zoom (affine)"] = (0.08, 1.0)
    rotate: Annotated[float, "largest rotation in degrees, for affine"] = 0.0
    shift: Annotated[float, "largest shift as a share of the side, for affine"] = 0.0
    flip: Annotated[bool, "mirror half of the images"] = True
    colour: Annotated[float, "strength of the random brightness, contrast and channel mixing"] = 0.0
    grey: Annotated[float, "share of the images turned grey"] = 0.0
    invert: Annotated[float, "share of the images turned into their negative"] = 0.0
    outline: Annotated[float, "share of the images reduced to their outlines"] = 0.0


@dataclass(frozen=True)
class Optim:
    """How the weights move."""

    name: Annotated[Literal["sgd", "adamw"], "the optimiser"] = "sgd"
    lr: Annotated[float, "peak learning rate for a global batch of lr_batch (it scales with the batch)"] = 0.1
    lr_batch: Annotated[int, "the global batch lr is meant for; 0 takes lr as it is"] = 0
    schedule: Annotated[Literal["triangular", "cosine"], "from the peak down to zero: a line or half a cosine"] = (
        "triangular"
    )
    peak: Annotated[float, "epochs of linear warm-up to the peak"] = 2.0
    momentum: Annotated[float, "momentum of sgd, or beta1 of adamw"] = 0.9
    beta2: Annotated[float, "beta2 of adamw"] = 0.999
    nesterov: Annotated[bool, "Nesterov momentum"] = False
    weight_decay: Annotated[float, "weight decay; the normalisation layers have none"] = 1e-4
    clip: Annotated[float, "largest gradient norm; 0 does not clip"] = 0.0
    label_smoothing: Annotated[float, "probability mass spread over all classes"] = 0.0
    ema: Annotated[float, "decay of an average of the weights, which is then the model; 0 keeps none"] = 0.0


@dataclass(frozen=True)
class Loop:
    """How long, how much at once, on what."""

    epochs: Annotated[int, "passes over the training split"] = 30
    batch: Annotated[int, "images a step on each process (each GPU)"] = 256
    seed: Annotated[int, "decides initial weights, order and augmentation"] = 0
    device: Annotated[str, "auto, cpu, cuda or cuda:N"] = "auto"
    precision: Annotated[Literal["bf16", "fp32"], "autocast to bfloat16, or plain float32"] = "bf16"
    compile: Annotated[bool, "torch.compile the encoder"] = False
    graph: Annotated[bool, "on one GPU and with sgd, record the step once and replay it (a CUDA graph)"] = True
    test_every: Annotated[int, "measure the test splits every so many epochs; 0: at the end only"] = 0
    log_every: Annotated[int, "steps between two lines of metrics"] = 20
    checkpoint_seconds: Annotated[float, "seconds between two checkpoints"] = 60.0


@dataclass(frozen=True)
class Finetune:
    """Start from trained weights instead of random ones."""

    start: Annotated[str, "a run folder or .safetensors file to take the encoder from; empty trains from scratch"] = ""
    unfreeze: Annotated[
        str, "train the encoder from this module on (say layer4.2.conv2); empty: all of it; none: only the heads"
    ] = ""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides how a model is trained."""

    name: str = "custom"
    data: Data = field(default_factory=Data)
    encoder: Encoder = field(default_factory=Encoder)
    head: Head = field(default_factory=Head)
    augment: Augment = field(default_factory=Augment)
    optim: Optim = field(default_factory=Optim)
    loop: Loop = field(default_factory=Loop)
    finetune: Finetune = field(default_factory=Finetune)

    def __post_init__(self) -> None:
        _check(self)

    def nesting(self, dim: int) -> Nesting:
        """The nesting for an encoder of ``dim`` dimensions."""
        by_kind = {
            "fixed": (dim,),
            "slimmable": tuple(round(width * dim) for width in self.encoder.widths),
        }
        default = by_kind.get(self.head.kind) or Nesting.halving(dim, min(8, dim)).dims
        nesting = Nesting(self.head.dims or default, self.head.weights or None)
        nesting.check_fits(dim)
        return nesting

    def to_toml(self) -> str:
        """The whole recipe, as text that :func:`load_recipe` reads back."""
        import tomli_w

        return tomli_w.dumps(dataclasses.asdict(self))


def _check(recipe: Recipe) -> None:
    """The rules between and inside fields that types cannot say."""
    data, head, augment, optim, loop = recipe.data, recipe.head, recipe.augment, recipe.optim, recipe.loop
    rules: list[tuple[bool, str, object, str]] = [
        (loop.epochs >= 1, "loop.epochs must be at least 1", loop.epochs, "train for one epoch or more"),
        (loop.batch >= 1, "loop.batch must be at least 1", loop.batch, "use one image a step or more"),
        (loop.log_every >= 1, "loop.log_every must be at least 1", loop.log_every, "log at every step or less often"),
        (0 <= loop.seed < 2**32, "loop.seed must lie in [0, 2³²)", loop.seed, "use a small integer"),
        (data.size >= 8, "data.size must be at least 8 pixels", data.size, "use larger images"),
        (data.workers >= 0, "data.workers must not be negative", data.workers, "0 decodes in the training process"),
        (optim.lr > 0, "optim.lr must be positive", optim.lr, "use a positive learning rate"),
        (optim.lr_batch >= 0, "optim.lr_batch must not be negative", optim.lr_batch, "use 0 to take optim.lr as it is"),
        (optim.peak >= 0, "optim.peak must not be negative", optim.peak, "use 0 for no warm-up"),
        (optim.weight_decay >= 0, "optim.weight_decay must not be negative", optim.weight_decay, "use 0 for none"),
        (optim.clip >= 0, "optim.clip must not be negative", optim.clip, "use 0 to clip nothing"),
        (loop.test_every >= 0, "loop.test_every must not be negative", loop.test_every, "0 measures at the end only"),
        (loop.checkpoint_seconds >= 0, "loop.checkpoint_seconds must be 0 or more", loop.checkpoint_seconds, "say 60"),
        (data.test_size == 0 or data.test_size >= 8, "data.test_size must be 0 or at least 8 pixels", data.test_size,
         "use larger images"),
        (0 <= optim.ema < 1, "optim.ema must lie in [0, 1)", optim.ema, "use 0 for none, or say 0.999"),
        (0 <= optim.label_smoothing < 1, "optim.label_smoothing must lie in [0, 1)", optim.label_smoothing, "use 0.1"),
        (0 < data.test_crop <= 1, "data.test_crop must lie in (0, 1]", data.test_crop, "1 keeps the whole image"),
        (len(data.mean) == 3 == len(data.std), "data.mean and data.std need one number a channel",
         (data.mean, data.std), "give three each"),
        (min(data.std, default=0) > 0, "data.std must be positive", data.std, "measure it on 0…1 images"),
        (len(augment.scale) == 2 and 0 < augment.scale[0] <= augment.scale[1],
         "augment.scale needs a smallest and a largest value", augment.scale, "give two positive numbers, in order"),
        (0 <= augment.pad < data.size, "augment.pad must lie in [0, data.size)", augment.pad, "reflect fewer pixels"),
        (not data.size_end or (len(data.size_ramp) == 2 and data.size_ramp[0] < data.size_ramp[1]),
         "data.size_end needs data.size_ramp", data.size_ramp, "give the first and last epoch of the growth"),
        (head.kind != "fixed" or len(head.dims) <= 1, "a fixed head has one dim", head.dims, "name one dim"),
        (head.kind != "slimmable" or not head.dims, "encoder.widths decide the dims of a slimmable network", head.dims,
         "leave head.dims empty"),
    ]  # fmt: skip
    for holds, rule, got, cure in rules:
        if not holds:
            raise RecipeError(rule, got=got, cure=cure)
    if head.dims:
        Nesting(head.dims, head.weights or None)

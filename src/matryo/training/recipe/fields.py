"""A recipe: everything that decides how a model is trained, as frozen dataclasses.

Each field's help is written once, here; the command line and the docs are made from it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Literal

from matryo.errors import NestingError
from matryo.nesting import Nesting
from matryo.training.recipe.checks import check

__all__ = ["Augment", "Data", "Encoder", "Finetune", "Head", "Loop", "Objective", "Optim", "Recipe", "Text"]

Floats = tuple[float, ...]
Ints = tuple[int, ...]
Names = tuple[str, ...]


@dataclass(frozen=True)
class Data:
    """Which images, texts or pairs, and how images are read."""

    source: Annotated[
        Literal[
            "emoji", "folder", "packed", "shards",
            "texts", "corpus", "pairs", "beir", "captions", "caption-shards", "emoji-names", "wordnet",
        ],
        "what --data DIR holds. Images: folder, packed .npz, tar shards; emoji are bundled. Texts: texts (with labels) "
        "or corpus. Pairs: pairs or beir of texts, captions or caption-shards; emoji-names and wordnet are bundled",
    ] = "emoji"  # fmt: skip
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
    damaged: Annotated[
        Literal["stop", "gray"], "a training image that cannot be decoded: stop, or show a gray one (at most 1 in 100)"
    ] = "stop"

    @property
    def encoded_size(self) -> int:
        """Pixels a side when encoding."""
        return self.test_size or self.size_end or self.size


@dataclass(frozen=True)
class Encoder:
    """The network that makes embeddings."""

    name: Annotated[
        str,
        "convnet, resnet18 …, vit-s4 … vit-b16, bert-tiny … bert-base; with their weights: bert:FOLDER, "
        "transformers:NAME, sentence-transformers:NAME, open_clip:NAME; or timm:MODEL",
    ] = "convnet"
    dim: Annotated[int, "dimensions d of the embedding; 0 is the network's own"] = 0
    stem: Annotated[Literal["imagenet", "small"], "how a ResNet begins: small suits images of 32 px"] = "imagenet"
    blurpool: Annotated[bool, "low-pass before the strided convolutions of a ResNet"] = False
    norm: Annotated[Literal["batch", "group"], "the normalisation layers"] = "batch"
    pretrained: Annotated[bool, "start a timm model from its published weights"] = False
    widths: Annotated[Floats, "shares of its channels a ResNet is trained at, for head.kind = slimmable"] = (
        0.25, 0.5, 0.75, 1.0,
    )  # fmt: skip
    pooling: Annotated[
        Literal["", "mean", "cls", "last"], "how a transformer's tokens become one vector; empty is its own way"
    ] = ""
    dropout: Annotated[float, "share of the features a transformer leaves out in training; below 0 is its own"] = -1.0
    drop_path: Annotated[float, "share of the branches the last layer of a ViT leaves out (stochastic depth)"] = 0.0


@dataclass(frozen=True)
class Text:
    """How texts are read, and who reads them beside images."""

    encoder: Annotated[str, "the encoder of texts where the other side of a pair is an image, say bert-small"] = ""
    tokenizer: Annotated[
        str,
        "a tokenizer.json or its folder; empty takes the pretrained encoder's, or trains one on the training split",
    ] = ""
    vocabulary: Annotated[int, "most pieces of a tokenizer trained here"] = 8192
    lowercase: Annotated[bool, "a tokenizer trained here knows no capitals and no accents"] = True
    length: Annotated[int, "tokens of a text at most, the special ones at both ends included"] = 64


@dataclass(frozen=True)
class Objective:
    """What is learned from the data."""

    kind: Annotated[
        Literal["classify", "masked", "pairs", "distil"],
        "the classes of items; words that were masked; which of two belong together (pairs, or items of one label); or "
        "a teacher's similarities",
    ] = "classify"
    temperature: Annotated[float, "what cosines are divided by, for pairs and distil"] = 0.05
    learn_temperature: Annotated[bool, "learn it, from there on (pairs)"] = False
    symmetric: Annotated[bool, "candidates look for their queries too (pairs)"] = True
    negatives: Annotated[bool, "use the hard negatives of the pairs, where they have some"] = True
    gather: Annotated[bool, "candidates of all processes under torchrun, not of the own alone (pairs)"] = True
    mask: Annotated[float, "share of a text's tokens that are to be predicted (masked)"] = 0.15
    gain: Annotated[float, "what the norm before the words begins with; more than 1 helps small dims (masked)"] = 1.0
    teacher: Annotated[str, "a run folder, or an encoder such as sentence-transformers:NAME (distil)"] = ""
    distil: Annotated[float, "weight of the teacher's similarities beside the pairs' own loss; 0 is none (pairs)"] = 0.0


@dataclass(frozen=True)
class Head:
    """The classifiers on the embedding, and the nesting they train. Pairs have none: there, all but fixed is nested."""

    kind: Annotated[
        Literal["separate", "tied", "fixed", "slimmable"],
        "a head a dim (MRL), one shared head (MRL-E), one dim only, or one shared by the widths of a slimmable network",
    ] = "separate"
    dims: Annotated[Ints, "the nesting; empty halves d down to 8 (fixed: d; slimmable: d at each width)"] = ()
    weights: Annotated[Floats, "the weight of each dim's loss; empty is 1 each"] = ()
    join: Annotated[float, "share of the training after which the smaller dims join the full one; 0: at once"] = 0.0
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

    name: Annotated[Literal["sgd", "adamw", "adafactor", "muon"], "the optimiser"] = "sgd"
    lr: Annotated[float, "peak learning rate for a global batch of lr_batch (it scales with the batch)"] = 0.1
    lr_batch: Annotated[int, "the global batch lr is meant for; 0 takes lr as it is"] = 0
    schedule: Annotated[Literal["triangular", "cosine"], "from the peak down to zero: a line or half a cosine"] = (
        "triangular"
    )
    peak: Annotated[float, "epochs of linear warm-up to the peak"] = 2.0
    warmup: Annotated[int, "steps of linear warm-up to the peak; 0 counts the epochs of optim.peak instead"] = 0
    momentum: Annotated[float, "momentum of sgd, or beta1 of adamw (and of what muon leaves to it)"] = 0.9
    beta2: Annotated[float, "beta2 of adamw (and of what muon leaves to it)"] = 0.999
    nesterov: Annotated[bool, "Nesterov momentum"] = False
    weight_decay: Annotated[float, "weight decay; the normalisation layers have none"] = 1e-4
    decay: Annotated[
        Literal["most", "matrices"], "what decays: most is all but the norms; matrices spares biases and embeddings too"
    ] = "most"
    encoder_share: Annotated[float, "the encoder's learning rate, as a share of what is new on top of it"] = 1.0
    clip: Annotated[
        float, "largest gradient norm; a step whose norm is not finite is left out (without batch norm); 0: no clipping"
    ] = 0.0
    label_smoothing: Annotated[float, "probability mass spread over all classes"] = 0.0
    ema: Annotated[float, "decay of an average of the weights, which is then the model; 0 keeps none"] = 0.0


@dataclass(frozen=True)
class Loop:
    """How long, how much at once, on what."""

    epochs: Annotated[
        int, "passes over the training split; 0 keeps a pretrained encoder as it is (pairs, with a fixed head)"
    ] = 30
    steps: Annotated[int, "train for so many steps instead of epochs; 0 counts epochs"] = 0
    batch: Annotated[int, "items a step on each process (each GPU)"] = 256
    parts: Annotated[int, "compute a batch in so many parts, to save memory (classify, masked)"] = 1
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
    text: Text = field(default_factory=Text)
    objective: Objective = field(default_factory=Objective)
    head: Head = field(default_factory=Head)
    augment: Augment = field(default_factory=Augment)
    optim: Optim = field(default_factory=Optim)
    loop: Loop = field(default_factory=Loop)
    finetune: Finetune = field(default_factory=Finetune)

    def __post_init__(self) -> None:
        check(self)

    @property
    def variant(self) -> str:
        """What tells this run from others of its recipe: the kind of head, or nested where there is none."""
        headless = self.objective.kind in ("pairs", "distil") and self.head.kind != "fixed"
        return "nested" if headless else self.head.kind

    @property
    def pretrained(self) -> bool:
        """Whether an encoder begins with weights that someone trained."""
        libraries = ("bert:", "transformers:", "sentence-transformers:", "open_clip:")
        named = any(name.startswith(libraries) for name in (self.encoder.name, self.text.encoder))
        return named or self.encoder.pretrained or bool(self.finetune.start)

    @property
    def trains(self) -> bool:
        """Whether anything is trained; a run of 0 epochs keeps a pretrained encoder unchanged, for comparison."""
        return self.loop.epochs > 0 or self.loop.steps > 0

    def nesting(self, dim: int) -> Nesting:
        """The nesting for an encoder of ``dim`` dimensions."""
        by_kind = {
            "fixed": (dim,),
            "slimmable": tuple(round(width * dim) for width in self.encoder.widths),
        }
        default = by_kind.get(self.head.kind) or Nesting.halving(dim, min(8, dim)).dims
        nesting = Nesting(self.head.dims or default, self.head.weights or None)
        if nesting.dim > dim:
            narrow = f"; encoder.dim is {dim}, and --encoder.dim 0 is the encoder's own" if self.encoder.dim else ""
            raise NestingError(
                f"head.dims must not exceed the {dim} dimensions of the encoder",
                got=nesting.dims,
                cure=f"--head.dims '' takes those that fit{narrow}",
            )
        return nesting

    def to_toml(self) -> str:
        """The whole recipe, as text that :func:`load_recipe` reads back."""
        import tomli_w

        return tomli_w.dumps(dataclasses.asdict(self))


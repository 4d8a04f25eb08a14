"""A recipe: all settings of a training, as frozen dataclasses.

The help of each field is written here once; the command line and the docs are generated from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Literal

from matryo.errors import NestingError, RecipeError
from matryo.nesting import Nesting, as_nesting
from matryo.training.recipe.checks import check

Floats = tuple[float, ...]
Ints = tuple[int, ...]
Names = tuple[str, ...]


@dataclass(frozen=True)
class Data:
    """The dataset, and how images are read."""

    source: Annotated[
        Literal[
            "emoji", "folder", "packed", "shards",
            "texts", "corpus", "pairs", "beir", "captions", "caption-shards", "emoji-names", "wordnet",
        ],
        "the format of --data DIR. Images: folder, packed (.npz), shards (tar); emoji is bundled. Texts: texts (with "
        "labels), corpus. Pairs: pairs, beir (texts), captions, caption-shards; emoji-names and wordnet are bundled",
    ] = "emoji"  # fmt: skip
    train: Annotated[str, "the split to train on"] = "train"
    test: Annotated[Names, "the splits to test on after training"] = ()
    size: Annotated[int, "pixels per side in training"] = 32
    size_end: Annotated[int, "pixels per side at the end of training; 0 is data.size"] = 0
    size_ramp: Annotated[Ints, "first and last epoch of the change from size to size_end, in steps of 32 px"] = ()
    test_size: Annotated[int, "pixels per side when encoding; 0 is the training size"] = 0
    test_crop: Annotated[float, "share of the shorter side in the central crop when encoding"] = 1.0
    test_flip: Annotated[bool, "average the embeddings of an image and its mirror image when encoding"] = False
    mean: Annotated[Floats, "mean of red, green and blue (0…1), for normalisation"] = (0.485, 0.456, 0.406)
    std: Annotated[Floats, "standard deviation of red, green and blue (0…1), for normalisation"] = (0.229, 0.224, 0.225)
    resident: Annotated[
        Literal["auto", "yes", "no"],
        "keep the decoded images on the device (auto: if all have the training size and fit in 4 GB)",
    ] = "auto"
    workers: Annotated[
        int, "most threads that decode streamed images; never more than the processors of this process"
    ] = 64
    damaged: Annotated[
        Literal["stop", "gray"],
        "an image that cannot be decoded: stop the training; or gray: train on a gray image instead, at most 1 in 100, "
        "and exclude it from test figures"
    ] = "stop"

    @property
    def encoded_size(self) -> int:
        """Pixels per side when encoding."""
        return self.test_size or self.size_end or self.size


@dataclass(frozen=True)
class Encoder:
    """The network that computes embeddings."""

    name: Annotated[
        str,
        "convnet, resnet18 …, vit-s4 … vit-b16, bert-tiny … bert-base; pretrained: bert:FOLDER, "
        "transformers:NAME, sentence-transformers:NAME, open_clip:NAME; or timm:MODEL",
    ] = "convnet"
    dim: Annotated[int, "dimensions d of the embedding, by a linear projection; 0 is the network's own"] = 0
    depth: Annotated[int, "layers kept of a BERT or ViT, the first ones; 0 keeps all"] = 0
    layers: Annotated[
        Ints,
        "numbers of layers of a BERT or ViT after which the embedding is trained too, for example 2,4 of 6. Encoding "
        "may then stop there. Each adds a loss, and about its share of the layers to the backward pass",
    ] = ()
    stem: Annotated[Literal["imagenet", "small"], "first layers of a ResNet: small suits 32 to 64 px"] = "imagenet"
    blurpool: Annotated[bool, "low-pass filter before the strided convolutions of a ResNet"] = False
    norm: Annotated[Literal["batch", "group"], "the normalisation layers"] = "batch"
    pretrained: Annotated[bool, "start a timm model from its published weights"] = False
    widths: Annotated[Floats, "shares of channels that a ResNet is trained at (head.kind slimmable)"] = (
        0.25, 0.5, 0.75, 1.0,
    )  # fmt: skip
    neck: Annotated[
        Literal["none", "batch", "layer", "linear", "linear+batch", "linear+layer"],
        "between encoder and nesting: a norm (batch, layer), a matrix that starts orthogonal (linear), or both. "
        "batch helps every small dim",
    ] = "none"
    whiten: Annotated[
        Literal["none", "centre", "within"],
        "after training, an affine map that keeps every prefix and every logit and improves cosines. centre: subtract "
        "the mean of the training split; within: also divide by the spread within classes",
    ] = "none"
    pooling: Annotated[
        Literal["", "mean", "cls", "last"], "how a transformer's tokens become one vector; empty is the model's default"
    ] = ""
    dropout: Annotated[float, "dropout of a transformer; below 0 is the model's default"] = -1.0
    drop_path: Annotated[float, "stochastic depth of a ViT: share of dropped branches in the last layer"] = 0.0


@dataclass(frozen=True)
class Text:
    """How texts are read, and the text encoder beside an image encoder."""

    encoder: Annotated[str, "the text encoder for pairs of images and texts, for example bert-small"] = ""
    tokenizer: Annotated[
        str,
        "a tokenizer.json or its folder; empty uses the pretrained encoder's, or trains one on the training split",
    ] = ""
    vocabulary: Annotated[int, "vocabulary size of a tokenizer trained here"] = 8192
    lowercase: Annotated[bool, "a tokenizer trained here ignores case and accents"] = True
    length: Annotated[int, "largest number of tokens per text, including the special ones at both ends"] = 64


@dataclass(frozen=True)
class Objective:
    """The objective of training."""

    kind: Annotated[
        Literal["classify", "masked", "pairs", "distil"],
        "classify: predict classes; masked: predict masked words; pairs: contrastive learning of pairs, or of items "
        "with the same label; distil: imitate the similarities of a teacher",
    ] = "classify"
    temperature: Annotated[float, "divisor of the cosine similarities (pairs, distil)"] = 0.05
    learn_temperature: Annotated[bool, "learn the temperature, starting from that value (pairs)"] = False
    symmetric: Annotated[bool, "add the loss from candidates to queries (pairs)"] = True
    negatives: Annotated[bool, "use the hard negatives of the pairs, if there are any"] = True
    gather: Annotated[bool, "under torchrun, use the candidates of all processes as negatives (pairs)"] = True
    mask: Annotated[float, "share of the tokens that are masked (masked)"] = 0.15
    gain: Annotated[float, "initial weight of the last norm; more than 1 helps small dims (masked)"] = 1.0
    teacher: Annotated[str, "a run folder, or an encoder such as sentence-transformers:NAME (distil, pairs)"] = ""
    distil: Annotated[float, "weight of the distillation loss beside the contrastive loss; 0 is none (pairs)"] = 0.0


@dataclass(frozen=True)
class Head:
    """The nesting and the classifiers on it. Models of pairs have no classifiers: every kind but fixed is nested."""

    kind: Annotated[
        Literal["separate", "tied", "fixed", "slimmable"],
        "separate: one head per dim (MRL); tied: one shared head (MRL-E); fixed: one dim only; slimmable: one head "
        "shared by the widths of a slimmable network",
    ] = "separate"
    dims: Annotated[Ints, "the dims; empty is d halved down to 8 (fixed: d; slimmable: d at each width)"] = ()
    weights: Annotated[Floats, "the weights of the losses, one per dim; empty is 1 each"] = ()
    balance: Annotated[
        Literal["equal", "ends"],
        "the weights if head.weights is empty. equal: 1 each; ends: 1 for the largest dim, 1/5 for the next one and "
        "the smallest, 1/10 for those between",
    ] = "equal"
    weigh: Annotated[
        Literal["loss", "encoder"],
        "what the weights scale: the whole loss; or only the gradient of the encoder, so that each separate head "
        "learns as it would alone. With sgd, weight decay otherwise holds back the heads of small weights",
    ] = "loss"
    smoothing: Annotated[Floats, "label smoothing at each dim; empty is optim.label_smoothing at every dim"] = ()
    layer_dims: Annotated[
        Ints, "the dim trained after each of encoder.layers, which trains no other (Starbucks); empty trains all dims"
    ] = ()
    layer_weight: Annotated[
        float, "weight of each loss after fewer layers; below 1 keeps more of the whole model's quality"
    ] = 1.0
    self_distil: Annotated[
        float,
        "share of the loss of the smaller dims that imitates the model's own probabilities at a larger dim, and of "
        "every dim after fewer layers that imitates those of the whole model (classify, pairs)",
    ] = 0.0
    self_distil_from: Annotated[Literal["full", "next"], "that larger dim: full, or the next larger one"] = "full"
    self_distil_temperature: Annotated[float, "divides the logits for these probabilities"] = 1.0
    blend: Annotated[
        float,
        "after training, each separate head becomes (1 - blend) of its own and blend of the mean of the heads at its "
        "dim and at all smaller dims",
    ] = 0.0
    join: Annotated[float, "share of the steps after which the smaller dims join the largest; 0: from the start"] = 0.0
    bias: Annotated[bool, "give the heads a bias"] = True


@dataclass(frozen=True)
class Augment:
    """Augmentation of training images. It depends only on seed, epoch and image."""

    crop: Annotated[
        Literal["none", "pad", "resized", "affine"],
        "none; pad and crop; random resized crop; or a random affine map of the whole image",
    ] = "pad"
    pad: Annotated[int, "pixels of reflected padding for crop = pad"] = 4
    scale: Annotated[Floats, "smallest and largest share of the area (resized), or zoom (affine)"] = (0.08, 1.0)
    rotate: Annotated[float, "largest rotation in degrees, for affine"] = 0.0
    shift: Annotated[float, "largest shift, as a share of the side, for affine"] = 0.0
    flip: Annotated[bool, "mirror images horizontally with probability 0.5"] = True
    colour: Annotated[float, "strength of the random brightness, contrast and channel mixing"] = 0.0
    grey: Annotated[float, "share of the images turned grey"] = 0.0
    invert: Annotated[float, "share of the images turned into their negative"] = 0.0
    outline: Annotated[float, "share of the images reduced to their outlines"] = 0.0


@dataclass(frozen=True)
class Optim:
    """The optimiser and the learning-rate schedule."""

    name: Annotated[Literal["sgd", "adamw", "adafactor", "muon"], "the optimiser"] = "sgd"
    lr: Annotated[float, "peak learning rate for a global batch of lr_batch"] = 0.1
    lr_batch: Annotated[int, "the global batch that lr is for; lr scales with the actual one; 0: no scaling"] = 0
    schedule: Annotated[Literal["triangular", "cosine"], "decay from the peak to zero: linear or half a cosine"] = (
        "triangular"
    )
    peak: Annotated[float, "epochs of linear warm-up to the peak"] = 2.0
    warmup: Annotated[int, "steps of linear warm-up; 0 uses the epochs of optim.peak instead"] = 0
    momentum: Annotated[float, "momentum of sgd, or beta1 of adamw (also beside muon)"] = 0.9
    beta2: Annotated[float, "beta2 of adamw (also beside muon)"] = 0.999
    nesterov: Annotated[bool, "Nesterov momentum"] = False
    weight_decay: Annotated[float, "weight decay; normalisation layers have none"] = 1e-4
    decay: Annotated[
        Literal["most", "matrices"],
        "parameters with weight decay: most is all but norms; matrices also excludes biases and embeddings",
    ] = "most"
    encoder_share: Annotated[float, "learning rate of the encoder, as a share of that of the head"] = 1.0
    clip: Annotated[
        float, "largest gradient norm; without batch norm, a step whose norm is not finite is skipped; 0: no clipping"
    ] = 0.0
    label_smoothing: Annotated[float, "probability mass spread over all classes"] = 0.0
    ema: Annotated[float, "decay of the moving average of the weights (EMA), which becomes the model; 0: none"] = 0.0


@dataclass(frozen=True)
class Loop:
    """Length, batch size, device and logging of the training."""

    epochs: Annotated[
        int, "passes over the training split; 0 keeps a pretrained encoder unchanged (pairs, with a fixed head)"
    ] = 30
    steps: Annotated[int, "number of steps, instead of loop.epochs; 0 counts epochs"] = 0
    batch: Annotated[int, "items per step and process (GPU)"] = 256
    parts: Annotated[int, "number of parts in which a batch is computed, to save memory (classify, masked)"] = 1
    seed: Annotated[int, "seed of the initial weights, the order and the augmentation"] = 0
    device: Annotated[str, "auto, cpu, cuda or cuda:N"] = "auto"
    precision: Annotated[Literal["bf16", "fp32"], "autocast to bfloat16, or plain float32"] = "bf16"
    compile: Annotated[bool, "torch.compile the encoder"] = False
    graph: Annotated[bool, "on one GPU with sgd, record the step as a CUDA graph and replay it"] = True
    test_every: Annotated[int, "epochs between two tests; 0: test at the end only"] = 0
    log_every: Annotated[int, "steps between two lines of metrics.jsonl"] = 20
    checkpoint_seconds: Annotated[float, "seconds between two checkpoints"] = 60.0


@dataclass(frozen=True)
class Finetune:
    """Start from trained weights."""

    start: Annotated[str, "a run folder or .safetensors file with the encoder's weights; empty: from scratch"] = ""
    unfreeze: Annotated[
        str, "first module of the encoder to train, for example layer4.2.conv2; empty: all of it; none: only the heads"
    ] = ""


@dataclass(frozen=True)
class Recipe:
    """All settings of a training."""

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
        """The kind of head, or ``nested`` for a nested model without one: part of the model's name."""
        headless = self.objective.kind in ("pairs", "distil") and self.head.kind != "fixed"
        return "nested" if headless else self.head.kind

    @property
    def pretrained(self) -> bool:
        """Whether an encoder starts from pretrained weights."""
        libraries = ("bert:", "transformers:", "sentence-transformers:", "open_clip:")
        named = any(name.startswith(libraries) for name in (self.encoder.name, self.text.encoder))
        return named or self.encoder.pretrained or bool(self.finetune.start)

    @property
    def trains(self) -> bool:
        """Whether anything is trained; a run of 0 epochs keeps a pretrained encoder unchanged, for comparison."""
        return self.loop.epochs > 0 or self.loop.steps > 0

    def nesting(self, dim: int) -> Nesting:
        """The nesting of an encoder with ``dim`` dimensions."""
        by_kind = {
            "fixed": (dim,),
            "slimmable": tuple(round(width * dim) for width in self.encoder.widths),
        }
        default = by_kind.get(self.head.kind) or Nesting.halving(dim, min(8, dim)).dims
        dims = self.head.dims or default
        nesting = Nesting(dims, self.head.weights or self._balance(len(dims)))
        if nesting.dim > dim:
            narrow = f"; encoder.dim is {dim}, and --encoder.dim 0 uses the encoder's own" if self.encoder.dim else ""
            raise NestingError(
                f"head.dims must not exceed the {dim} dimensions of the encoder",
                got=nesting.dims,
                cure=f"use --head.dims '' for the default dims{narrow}",
            )
        return nesting

    def smoothing(self, nesting: Nesting | Iterable[int]) -> tuple[float, ...]:
        """The label smoothing at each dim."""
        nesting = as_nesting(nesting)
        given = self.head.smoothing or (self.optim.label_smoothing,) * len(nesting)
        if len(given) != len(nesting):
            rule, cure = "head.smoothing needs one number per dim", f"give {len(nesting)}, for {nesting.dims}"
            raise RecipeError(rule, got=given, cure=cure)
        return given

    def _balance(self, dims: int) -> tuple[float, ...] | None:
        if self.head.balance == "equal":
            return None
        return tuple(1.0 if i == dims - 1 else 0.2 if i in (0, dims - 2) else 0.1 for i in range(dims))

    def to_toml(self) -> str:
        """The whole recipe as TOML, which :func:`load_recipe` can read."""
        import tomli_w

        return tomli_w.dumps(dataclasses.asdict(self))


"""Build the model of a recipe, load its initial weights, and freeze layers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from matryo.encoders import Dual, DualEncoder, Projected, SlimmableLinear, build_encoder, save_shape
from matryo.errors import RecipeError, RunError
from matryo.heads import NestedLinear
from matryo.losses import SelfDistil
from matryo.training.objectives.classify import Classifier
from matryo.training.objectives.depths import depths_of
from matryo.training.objectives.masked import MaskedModel
from matryo.training.objectives.pairs import DistilledModel, PairModel
from matryo.training.recipe.against_data import check_length
from matryo.training.run.checkpoint import load_weights
from matryo.training.run.paths import RunFolder

if TYPE_CHECKING:
    from matryo.nesting import Nesting
    from matryo.training.objectives.base import NestedModel
    from matryo.training.recipe.fields import Recipe

_SAME_ENCODER = "use the encoder settings of the run it came from, or the folder of a BERT: --encoder.name bert:FOLDER"
_HEADS = ("fc.", "head.", "heads.", "classifier.", "cls.", "pooler.")


def build_model(
    recipe: Recipe, classes: int = 0, *, vocabulary: int = 0, shapes: Path | None = None, finished: bool = False
) -> NestedModel:
    """A newly initialised model. The seed decides the weights; the global random state is not changed.

    ``vocabulary`` is the number of tokens. Pretrained encoders are read from the source in the recipe, or built without
    weights from ``shapes``, a folder of :func:`save_shapes`. A ``finished`` model has the map of encoder.whiten.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(recipe.loop.seed)   # torch.manual_seed would seed every GPU too
        encoder = _encoder(recipe, vocabulary, shapes)
        if finished and recipe.encoder.whiten != "none":
            encoder = Projected.mapped(encoder)
        nesting = recipe.nesting(int(encoder.dim))   # type: ignore[arg-type]
        model = _objective(recipe, encoder, nesting, classes)
        model.depths = depths_of(recipe, nesting, encoder)
    return model


def _objective(recipe: Recipe, encoder: nn.Module, nesting: Nesting, classes: int) -> NestedModel:
    wanted = recipe.head
    distil = SelfDistil(wanted.self_distil, wanted.self_distil_from, wanted.self_distil_temperature)
    if recipe.objective.kind == "masked":
        return MaskedModel(encoder, nesting, recipe.objective.gain)
    if recipe.objective.kind == "pairs":
        return PairModel(encoder, nesting, recipe.objective, distil)
    if recipe.objective.kind == "distil":
        return DistilledModel(encoder, nesting, recipe.objective)
    head = (
        SlimmableLinear(nesting, classes, bias=wanted.bias)
        if wanted.kind == "slimmable"
        else NestedLinear(nesting, classes, tied=wanted.kind == "tied", bias=wanted.bias)
    )
    if wanted.weigh == "encoder":
        head.weigh_encoder_only()
    return Classifier(encoder, head, recipe.smoothing(nesting), distil)


def _encoder(recipe: Recipe, vocabulary: int, shapes: Path | None) -> nn.Module:
    """The encoder; with text.encoder a dual one, whose queries are images and whose candidates are texts."""
    dim = 0 if recipe.text.encoder else recipe.encoder.dim   # a dual encoder has its own projections
    main = _build(recipe, recipe.encoder.name, vocabulary, shapes, "main", dim)
    if not recipe.text.encoder:
        return main
    if isinstance(main, DualEncoder):
        raise RecipeError(
            "an encoder of images and texts needs no text.encoder",
            got=f"{recipe.encoder.name} and text.encoder {recipe.text.encoder}",
            cure="leave text.encoder empty",
        )
    texts = _build(recipe, recipe.text.encoder, vocabulary, shapes, "text", 0)
    return Dual(main, texts, recipe.encoder.dim, temperature=recipe.objective.temperature)


def _build(recipe: Recipe, name: str, vocabulary: int, shapes: Path | None, part: str, dim: int) -> nn.Module:
    options, data = recipe.encoder, recipe.data
    shape = shapes / part if shapes is not None and (shapes / part).is_dir() else None
    encoder = build_encoder(
        name,
        dim=dim,
        depth=options.depth if part == "main" else 0,
        neck=options.neck,
        stem=options.stem,
        blurpool=options.blurpool,
        norm=options.norm,
        pretrained=options.pretrained and shapes is None and name.startswith("timm:"),
        widths=options.widths if recipe.head.kind == "slimmable" else (),
        size=data.size_end or data.size,
        pooling=options.pooling,
        dropout=options.dropout if options.dropout >= 0 else None,
        drop_path=options.drop_path,
        vocabulary=vocabulary,
        length=recipe.text.length,
        shape=shape,
    )
    if vocabulary and shapes is None:   # a stored run was checked before its training
        check_length(recipe, encoder, name)
    return encoder


def save_shapes(encoder: nn.Module, folder: Path) -> None:
    """Write to ``folder`` what :func:`build_model` needs to rebuild pretrained encoders without their source."""
    parts: dict[str, nn.Module] = {"main": encoder}
    if isinstance(encoder, Dual):
        parts = {"main": encoder.queries, "text": encoder.candidates}
    for name, part in parts.items():
        save_shape(part, folder / name)


def freeze_before(encoder: nn.Module, name: str) -> list[nn.Module]:
    """Freeze the encoder before the module ``name``; returns the layers to keep in eval mode.

    An empty name freezes nothing, ``none`` freezes the whole encoder.
    """
    if not name:
        return []
    modules = dict(encoder.named_modules())
    if name != "none" and (name not in modules or not list(modules[name].parameters())):
        layers = [key for key, module in modules.items() if key and list(module.parameters(recurse=False))]
        raise RecipeError(
            "finetune.unfreeze must be a module of the encoder",
            got=repr(name),
            cure=f"use none, or for example {', '.join(layers[-4:])}",
        )
    frozen, reached = [], False
    for key, module in modules.items():   # registration order is the order of computation in every encoder here
        reached = reached or key == name
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad_(reached)
        if not reached and not list(module.children()):
            frozen.append(module)   # so that the running statistics of a frozen norm do not change
    for module in modules.values():   # without dropout, which attention and blocks apply themselves
        own = list(module.parameters())
        if own and not any(parameter.requires_grad for parameter in own):
            frozen.append(module)
    return frozen


def start_from(encoder: nn.Module, path: Path) -> None:
    """Load the encoder's weights from a run folder or a safetensors file, which may be that of a BERT."""
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise RunError("finetune.start must be a run folder or a .safetensors file", got=path, cure="check the path")
    if RunFolder(path).complete:
        RunFolder(path).digest   # noqa: B018 - raises if a file is damaged
    stored = load_weights(file)
    wanted = encoder.state_dict()
    # Names may start with "encoder." (a run; twice, if it has a projection), "bert." (a BERT with a head) or neither.
    # The best match is used.
    readings = [
        {name.removeprefix(prefix): value for name, value in stored.items() if name.startswith(prefix)}
        for prefix in ("encoder.", "", "bert.", "encoder.encoder.")
    ]
    values = max(readings, key=lambda reading: len(wanted.keys() & reading.keys()))
    given = {name: values[name] for name in wanted if name in values}
    surplus = [name for name in values if name not in wanted and not _is_irrelevant(name, values[name])]
    wrong = [name for name, value in wanted.items() if name in given and given[name].shape != value.shape]
    missing = [name for name in wanted if name not in given and not name.endswith("num_batches_tracked")]
    if missing or wrong:
        other_length = not missing and all(name.endswith("position_embeddings.weight") for name in wrong)
        raise RunError(
            "finetune.start must hold every weight of the encoder",
            got=f"{len(missing)} missing and {len(wrong)} of another shape, the first is {[*missing, *wrong][0]}",
            cure=f"use its text.length: --text.length {len(given[wrong[0]])}" if other_length else _SAME_ENCODER,
        )
    if surplus:   # without them, the encoder would be another model
        raise RunError(
            "finetune.start must hold only weights of this encoder",
            got=f"{len(surplus)} others, the first is {surplus[0]}",
            cure=_SAME_ENCODER,
        )
    encoder.load_state_dict(given, strict=False)


def _is_irrelevant(name: str, value: torch.Tensor) -> bool:
    """Whether a weight does not affect the embedding: those of heads, and a bias of zeros."""
    no_bias = name.endswith("bias") and not value.any()
    return no_bias or name.startswith(_HEADS) or name.endswith(("num_batches_tracked", "position_ids"))

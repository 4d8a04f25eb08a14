"""A transformers model of texts or images as an encoder: the embedding is its pooled last layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from matryo.encoders.tokens import Tokens, check_pooling, pool
from matryo.errors import InputError, MissingExtra
from matryo.files import is_plain_name, parse_json

_POOLERS = ("pooler", "head")   # a base model of transformers has a head only to pool, as SigLIP


class TransformersEncoder(nn.Module):
    """A transformers model followed by a pooling of its last layer.

    ``colours`` is the mean and std normalisation of images that the pretrained weights expect; None if unknown.
    """

    def __init__(self, model: nn.Module, dim: int, pooling: str, colours: Any = None) -> None:
        super().__init__()
        check_pooling(pooling)
        self.model, self.dim, self.pooling, self.colours = model, dim, pooling, colours
        freeze_poolers(model)

    @property
    def words(self) -> Tensor:
        """The token embedding matrix, [vocabulary, d], to which masked prediction is tied."""
        return self.model.get_input_embeddings().weight   # type: ignore[operator]

    def hidden(self, inputs: Tokens | Tensor) -> Tensor:
        """The output of the last layer for each token or patch, [batch, length, d]."""
        if isinstance(inputs, Tokens):
            mask = None if inputs.mask is None else inputs.mask.long()
            out = self.model(input_ids=inputs.ids, attention_mask=mask)
        else:
            out = self.model(pixel_values=inputs)
        return out.last_hidden_state

    def forward(self, inputs: Tokens | Tensor) -> Tensor:
        """Tokens, or images [batch, 3, height, width] → [batch, dim]."""
        return pool(self.hidden(inputs), inputs.mask if isinstance(inputs, Tokens) else None, self.pooling)

    def save(self, folder: str | Path) -> None:
        """Write the model for ``AutoModel.from_pretrained``. Save its tokenizer to the same folder separately."""
        self.model.save_pretrained(str(folder))   # type: ignore[operator]

    def save_shape(self, folder: str | Path) -> None:
        """Write the config, from which ``from_transformers(folder, pretrained=False)`` rebuilds the model."""
        self.model.config.save_pretrained(str(folder))   # type: ignore[union-attr, operator]


def cannot_load(
    rule: str, name: str | Path, error: Exception, cure: str = "check the name or the folder"
) -> InputError:
    """The error for a model that another library failed to load, with the first line of that library's message."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return InputError(rule, got=f"{name}: {reason}", cure=cure)


def freeze_poolers(model: nn.Module) -> None:
    """Exclude poolers (layers after the last) from training: they are unused and would get no gradient.

    They stay in the model, so that it is exported complete.
    """
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in _POOLERS:
            module.requires_grad_(False)


def check_folder(name: str | Path) -> None:
    """Raise if ``name`` is a folder of an adapter alone, or one whose weights are in files outside of it."""
    folder = Path(name)
    if (folder / "adapter_config.json").is_file():
        raise _not_merged(name)
    for path in folder.glob("*.index.json") if folder.is_dir() else ():
        try:
            shards = set(parse_json(path.read_text(encoding="utf-8"))["weight_map"].values())
            outside = [shard for shard in shards if not is_plain_name(shard)]
        except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:
            raise cannot_load(f"{path.name} must map the weights to files", name, error) from error
        if outside:
            rule, cure = f"{path.name} must name files in its own folder", "download the folder again"
            raise InputError(rule, got=min(outside), cure=cure)


def _not_merged(name: str | Path) -> InputError:
    return InputError(
        "a pretrained encoder must be a whole model, not a PEFT adapter",
        got=name,
        cure=f"merge it: AutoPeftModel.from_pretrained({str(name)!r}).merge_and_unload().save_pretrained('merged'), "
        "copy the tokenizer files to merged, and use that folder",
    )


def from_transformers(
    name: str | Path, *, pooling: str = "mean", pretrained: bool = True, size: int = 0, **options: Any
) -> TransformersEncoder:
    """Load the model ``name`` of a hub or folder as an encoder; ``options`` go to ``AutoModel``.

    ``pretrained=False`` reads only the config and initialises new weights. With ``size``, the side of the images in
    pixels, a model that reads images of another size only is refused.
    """
    with MissingExtra.unless_installed("transformers", "transformers"):
        import transformers
    check_pooling(pooling)
    auto: Any = transformers.AutoModel
    if pretrained:
        check_folder(name)
    try:
        if pretrained:
            model = auto.from_pretrained(str(name), **options)
        else:
            model = auto.from_config(transformers.AutoConfig.from_pretrained(str(name), **options))
    except (OSError, ValueError) as error:
        raise cannot_load("transformers cannot load the model", name, error) from error
    if getattr(model, "_hf_peft_config_loaded", False):   # an adapter of a hub, with its base model
        raise _not_merged(name)
    width = getattr(model.config, "hidden_size", None)
    has_decoder = hasattr(model, "encoder") and hasattr(model, "decoder")
    if width is None or has_decoder:
        raise InputError(
            "a transformers model must output one vector of hidden_size per token or patch",
            got=f"{name}, a {type(model).__name__}",
            cure="use sentence-transformers:NAME, which runs only the encoder of a T5" if has_decoder
            else "use timm:MODEL for convolutional networks, open_clip:NAME for CLIP",
        )  # fmt: skip
    of_images = model.main_input_name == "pixel_values"
    if of_images and size:
        _check_size(model, name, size)
    colours = _colours(name) if of_images and pretrained else None
    return TransformersEncoder(model.float(), int(width), pooling, colours)


def _check_size(model: Any, name: str | Path, size: int) -> None:
    """Run one black image, because only some models accept other sizes than that of their config."""
    own = getattr(model.config, "image_size", size)
    if own in (size, [size, size], (size, size)):
        return
    try:
        with torch.no_grad():
            model.float().eval()(pixel_values=torch.zeros(1, 3, size, size))
    except (RuntimeError, ValueError) as error:
        rule = f"this transformers model takes images of {own} px only"
        cure = f"use --data.size {own} (also size_end and test_size)"
        raise InputError(rule, got=f"{name} at {size} px", cure=cure) from error


def _colours(name: str | Path) -> tuple[list[float], list[float]] | None:
    """The mean and std normalisation of images of 0…1 in preprocessor_config.json; None without such a file."""
    import transformers

    auto: Any = transformers.AutoImageProcessor
    try:
        processor = auto.from_pretrained(str(name))
    except (OSError, ValueError) as error:
        if (Path(name) / "preprocessor_config.json").exists():
            raise cannot_load("transformers cannot read preprocessor_config.json", name, error) from error
        return None
    given = processor.to_dict()
    # The processor computes (255 · factor · x − mean) / std for x in 0…1, and either step may be switched off.
    scale = 255 * (given.get("rescale_factor") or 1 / 255) if given.get("do_rescale", True) else 255.0
    plain = not given.get("do_normalize", True)
    mean, std = ([0.0] * 3, [1.0] * 3) if plain else (given.get("image_mean"), given.get("image_std"))
    return (_scaled(mean, scale), _scaled(std, scale)) if mean and std else None


def _scaled(values: Any, scale: float) -> list[float]:
    channels = values if isinstance(values, list | tuple) else [values] * 3
    return [float(value) / scale for value in channels]

"""A timm model as an encoder: the embedding is its pooled features."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from matryo.encoders.adapters.transformers import cannot_load
from matryo.encoders.weights import write_weights
from matryo.errors import InputError, MissingExtra

# For these timm modules, weights without a head look like an old checkpoint and are renamed on loading. An empty head
# in the saved file prevents that.
_RENAMED = ("davit", "nextvit", "swin_transformer", "swin_transformer_v2")
_TIMM_ERRORS = (ArithmeticError, AssertionError, LookupError, OSError, RuntimeError, ValueError)


class TimmEncoder(nn.Module):
    """A timm model without its classifier.

    Args:
        model: a model of ``timm.create_model``.
        dim: the number of output features.
        settings: further arguments that the model was built with, such as ``img_size``.
        colours: the mean and std normalisation that the pretrained weights expect; None without such weights.
    """

    def __init__(
        self, model: nn.Module, dim: int, settings: dict[str, Any] | None = None, colours: Any = None
    ) -> None:
        super().__init__()
        self.model, self.dim, self.settings, self.colours = model, dim, settings or {}, colours

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 3, height, width] → [batch, dim]."""
        patches: Any = getattr(self.model, "patch_embed", None)
        if getattr(patches, "strict_img_size", False) and tuple(patches.img_size) != tuple(x.shape[-2:]):
            own, (height, width) = patches.img_size[0], x.shape[-2:]
            cure = f"use --data.size {own} (also size_end and test_size), or in Python from_timm(…, size={width})"
            raise InputError(f"this timm model takes images of {own} px only", got=f"{height} × {width} px", cure=cure)
        return self.model(x)

    def save(self, folder: str | Path) -> None:
        """Write the model for ``timm.create_model("local-dir:FOLDER", pretrained=True)``."""
        self.save_shape(folder)
        head = {"head.fc.weight": torch.zeros(0, self.dim)} if self._is_renamed else {}
        write_weights(Path(folder) / "model.safetensors", self.model.state_dict() | head)

    def save_shape(self, folder: str | Path) -> None:
        """Write the config, from which ``from_timm("local-dir:FOLDER")`` rebuilds the model."""
        from timm.models._hub import save_config_for_hf

        Path(folder).mkdir(parents=True, exist_ok=True)
        # timm drops the stored head if its number of classes differs from the requested one; −1 always differs.
        head, requested = ({"num_classes": -1}, {"num_classes": 0}) if self._is_renamed else ({}, {})
        save_config_for_hf(self.model, Path(folder) / "config.json", head, self.settings | requested)

    @property
    def _is_renamed(self) -> bool:
        return type(self.model).__module__.rpartition(".")[2] in _RENAMED


def from_timm(name: str, *, pretrained: bool = False, size: int = 0, **options: Any) -> TimmEncoder:
    """Load the timm model ``name`` as an encoder; ``options`` go to ``timm.create_model``.

    Args:
        name: one of ``timm.list_models()``, ``local-dir:FOLDER`` (written by :meth:`TimmEncoder.save`) or
            ``hf-hub:OWNER/NAME``.
        pretrained: load the published weights, which timm downloads, or those of the folder; else they are random.
        size: the side of the images in pixels, for models built for one size; 0 keeps the published one. timm
            resamples the position embeddings of published weights.
    """
    with MissingExtra.unless_installed("timm", "timm"):
        import timm
    _check_name(name)
    other = 0   # set to a size that the model was not published for
    try:
        own, settings = _published(name)
        if own and size and "img_size" not in options:
            settings["img_size"], other = size, size if size != own else 0
        settings |= options
        model = timm.create_model(name, pretrained=pretrained, num_classes=0, **settings)
        if other:
            _check_runs(model, other)
    except _TIMM_ERRORS as error:
        if other and not isinstance(error, OSError):
            rule = f"timm cannot build the model for images of {other} px"
            raise cannot_load(rule, name, error, f"use --data.size {own}") from error
        raise cannot_load("timm cannot load the model", name, error) from error
    shaping = settings.keys() - inspect.signature(timm.create_model).parameters   # the others only locate weights
    # In some models ``num_features`` is the width before pooling; ``head_hidden_size`` is that of the output.
    dim = int(getattr(model, "head_hidden_size", model.num_features))
    colours = (model.pretrained_cfg["mean"], model.pretrained_cfg["std"]) if pretrained else None
    return TimmEncoder(model, dim, {key: settings[key] for key in sorted(shaping)}, colours)


def _check_name(name: str) -> None:
    import timm

    names = timm.list_models()
    if ":" in name or name in names or name.split(".")[0] in names:
        return
    near = timm.list_models(f"*{name.split('_')[0]}*")[:5]
    cure = "use " + " or ".join(near) if near else "choose one of timm.list_models()"
    raise InputError("unknown timm model", got=repr(name), cure=cure)


def _published(name: str) -> tuple[int, dict[str, Any]]:
    """The image size that a model is built for (0 if any), and the settings stored in its folder."""
    from timm.models import _hub, get_pretrained_cfg, parse_model_name

    source, location = parse_model_name(name)
    if source in ("hf-hub", "local-dir"):
        read = _hub.load_model_config_from_hf if source == "hf-hub" else _hub.load_model_config_from_path
        config, _, settings = read(location)
    else:
        published, settings = get_pretrained_cfg(location), {}
        config = {} if published is None else published.to_dict()
    settings = {key: value for key, value in (settings or {}).items() if key != "num_classes"}   # always 0 here
    if not config.get("fixed_input_size"):
        return 0, settings
    size = settings.get("img_size", config["input_size"])
    return size if isinstance(size, int) else size[-1], settings


def _check_runs(model: nn.Module, size: int) -> None:
    """Run one black image: some models accept any size when built, but fail at the first image."""
    with torch.no_grad():
        model.eval()(torch.zeros(1, 3, size, size))
    model.train()

"""Any timm model as an encoder: its pooled features are the embedding."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from matryo.encoders.weights import write_weights
from matryo.errors import InputError, MissingExtra

__all__ = ["TimmEncoder", "from_timm"]

# Modules of timm that take weights without a head for old ones, and rename them: theirs get an empty head.
_RENAMED = ("davit", "nextvit", "swin_transformer", "swin_transformer_v2")
_WRONG = (ArithmeticError, AssertionError, LookupError, OSError, RuntimeError, ValueError)   # what timm raises


class TimmEncoder(nn.Module):
    """A timm model without its classifier.

    Args:
        model: what ``timm.create_model`` gives.
        dim: how many features come out of it.
        settings: what it was built with besides its name, such as ``img_size``.
        colours: mean and deviation by which the images that its weights know were normalised, if it has such weights.
    """

    def __init__(
        self, model: nn.Module, dim: int, settings: dict[str, Any] | None = None, colours: Any = None
    ) -> None:
        super().__init__()
        self.model = model
        self.dim = dim
        self.settings = settings or {}
        self.colours = colours

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 3, height, width] → [batch, dim]."""
        patches: Any = getattr(self.model, "patch_embed", None)
        if getattr(patches, "strict_img_size", False) and tuple(patches.img_size) != tuple(x.shape[-2:]):
            own, other = patches.img_size[0], x.shape[-1]
            raise InputError(
                f"this model of timm reads images of {own} px alone",
                got=f"{x.shape[-2]} × {other} px",
                cure=f"use --data.size {own}, and no other size_end or test_size; in Python from_timm(…, size={other})",
            )
        features: Tensor = self.model(x)
        return features

    def save(self, folder: str | Path) -> None:
        """Write the model as timm does: ``timm.create_model("local-dir:FOLDER", pretrained=True)`` loads it."""
        self.save_shape(folder)
        head = {"head.fc.weight": torch.zeros(0, self.dim)} if self._is_renamed else {}
        write_weights(Path(folder) / "model.safetensors", self.model.state_dict() | head)

    def save_shape(self, folder: str | Path) -> None:
        """Write its config, from which ``from_timm("local-dir:FOLDER")`` builds it again."""
        from timm.models._hub import save_config_for_hf

        Path(folder).mkdir(parents=True, exist_ok=True)
        # timm drops a head of another number of classes than is asked for: −1 is another than any.
        head, asked = ({"num_classes": -1}, {"num_classes": 0}) if self._is_renamed else ({}, {})
        save_config_for_hf(self.model, Path(folder) / "config.json", head, self.settings | asked)

    @property
    def _is_renamed(self) -> bool:
        return type(self.model).__module__.rpartition(".")[2] in _RENAMED


def from_timm(name: str, *, pretrained: bool = False, size: int = 0, **options: Any) -> TimmEncoder:
    """The timm model ``name`` as an encoder; ``options`` go to ``timm.create_model``.

    Args:
        name: one of ``timm.list_models()``, ``local-dir:FOLDER`` (which :meth:`TimmEncoder.save` writes) or
            ``hf-hub:OWNER/NAME``.
        pretrained: begin with the published weights, which timm downloads, or with those of the folder; else they are
            drawn.
        size: pixels a side of the images, for models that are built for one size; 0 is their own. The position
            embeddings of published weights are resampled by timm.
    """
    with MissingExtra.unless_installed("timm", "timm"):
        import timm
    _check_name(name)
    other = 0   # a size that the model was not published for
    try:
        own, settings = _published(name)
        if own and size and "img_size" not in options:
            settings["img_size"], other = size, size if size != own else 0
        settings |= options
        model = timm.create_model(name, pretrained=pretrained, num_classes=0, **settings)
        if other:
            _try(model, other)
    except _WRONG as error:
        rule, cure = "timm must be able to load the model", "check the name or the folder"
        if other and not isinstance(error, OSError):
            rule, cure = f"timm must be able to build the model for images of {other} px", f"use --data.size {own}"
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(rule, got=f"{name}: {why}", cure=cure) from error
    shaping = settings.keys() - inspect.signature(timm.create_model).parameters   # the rest says where weights are
    # ``num_features`` is the width before pooling for some models; ``head_hidden_size`` is what comes out.
    dim = int(getattr(model, "head_hidden_size", model.num_features))
    colours = (model.pretrained_cfg["mean"], model.pretrained_cfg["std"]) if pretrained else None
    return TimmEncoder(model, dim, {key: settings[key] for key in sorted(shaping)}, colours)


def _check_name(name: str) -> None:
    import timm

    known = timm.list_models()
    if ":" in name or name in known or name.split(".")[0] in known:
        return
    near = timm.list_models(f"*{name.split('_')[0]}*")[:5]
    raise InputError(
        "timm has no such model",
        got=repr(name),
        cure="try " + ", ".join(near) if near else "timm.list_models() prints the names",
    )


def _published(name: str) -> tuple[int, dict[str, Any]]:
    """The one size that a model is built for (0: it reads any), and the settings that its folder holds."""
    from timm.models import _hub, get_pretrained_cfg, parse_model_name

    source, place = parse_model_name(name)
    if source in ("hf-hub", "local-dir"):
        read = _hub.load_model_config_from_hf if source == "hf-hub" else _hub.load_model_config_from_path
        seen, _, settings = read(place)
    else:
        known, settings = get_pretrained_cfg(place), {}
        seen = {} if known is None else known.to_dict()
    settings = {key: value for key, value in (settings or {}).items() if key != "num_classes"}   # here always 0
    if not seen.get("fixed_input_size"):
        return 0, settings
    size = settings.get("img_size", seen["input_size"])
    return size if isinstance(size, int) else size[-1], settings


def _try(model: nn.Module, size: int) -> None:
    """Read one black image: some models are built for any size, and stop at the first image."""
    with torch.no_grad():
        model.eval()(torch.zeros(1, 3, size, size))
    model.train()

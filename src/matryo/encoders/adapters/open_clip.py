"""An open_clip model as a dual encoder: images are queries, texts are candidates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from matryo.encoders.dual import DualEncoder, temperature_of
from matryo.encoders.tokens import Tokens
from matryo.encoders.weights import write_weights
from matryo.errors import InputError, MissingExtra
from matryo.files import write_json

__all__ = ["OpenClip", "from_open_clip"]


class OpenClip(DualEncoder):
    """A model of open_clip with its own projections and temperature.

    Args:
        model: what ``open_clip.create_model`` gives.
        settings: what open_clip_config.json says of it (``model_cfg`` and ``preprocess_cfg``).
        colours: mean and deviation by which the images that its weights know were normalised, if it has such weights.
    """

    def __init__(self, model: nn.Module, settings: dict[str, Any], colours: Any = None) -> None:
        super().__init__()
        inside: Any = model
        self.model, self.settings = inside, settings
        self.dim = int(settings["model_cfg"]["embed_dim"])
        self.colours = colours

    def embed_queries(self, inputs: Tensor) -> Tensor:
        """Images → [batch, dim]."""
        z: Tensor = self.model.encode_image(inputs)
        return z

    def embed_candidates(self, inputs: Tokens) -> Tensor:
        """Texts, as its own tokenizer (``open_clip.get_tokenizer``) numbers them → [batch, dim]."""
        missing = self.model.context_length - inputs.ids.shape[1]
        if missing < 0:
            rule = f"a text must not exceed the {self.model.context_length} positions of the model"
            raise InputError(rule, got=inputs.ids.shape[1], cure="cut it")
        pad = int(self.settings["model_cfg"]["text_cfg"].get("pad_id", 0))
        ids = inputs.ids if inputs.mask is None else inputs.ids.masked_fill(~inputs.mask, pad)
        z: Tensor = self.model.encode_text(F.pad(ids, (0, missing), value=pad))   # it reads texts of this length only
        return z

    @property
    def temperature(self) -> Tensor:
        """What cosines are divided by."""
        return temperature_of(self.model.logit_scale)

    def save(self, folder: str | Path) -> None:
        """Write the model as open_clip does: ``open_clip.create_model("local-dir:FOLDER")`` loads it."""
        self.save_shape(folder)
        write_weights(Path(folder) / "open_clip_model.safetensors", self.model.state_dict())

    def save_shape(self, folder: str | Path) -> None:
        """Write its settings alone: published weights are not asked for again where others take their place."""
        write_json(Path(folder) / "open_clip_config.json", self.settings)


def from_open_clip(name: str, pretrained: str | None = None, **options: Any) -> OpenClip:
    """The open_clip model ``name`` as a dual encoder; ``options`` go to ``open_clip.create_model``.

    ``pretrained`` names published weights, or a file of them; without it they are drawn, unless ``name`` is
    ``local-dir:FOLDER`` (which :meth:`OpenClip.save` writes) or ``hf-hub:OWNER/NAME``.
    """
    with MissingExtra.unless_installed("open_clip", "open_clip"):
        import open_clip
    try:
        config = open_clip.get_model_config(name)
    except OSError as error:
        raise InputError(
            "open_clip must be able to load the model", got=f"{name}: {error}", cure="check the name or the folder"
        ) from error
    if config is None:
        cure = "open_clip.list_models() prints the names"
        raise InputError("open_clip must have a model of that name", got=repr(name), cure=cure)
    model = open_clip.create_model(name, pretrained=pretrained, **options)
    seen = open_clip.get_model_preprocess_cfg(model)
    kept = {key: seen[key] for key in ("mean", "std", "interpolation", "resize_mode") if key in seen}
    known = ":" in name or open_clip.get_pretrained_cfg(name, pretrained or "")   # of a file of weights nothing is
    colours = (kept["mean"], kept["std"]) if known and {"mean", "std"} <= kept.keys() else None
    return OpenClip(model, {"model_cfg": config, "preprocess_cfg": kept}, colours)

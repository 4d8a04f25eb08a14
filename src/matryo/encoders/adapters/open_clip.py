"""An open_clip model as a dual encoder: images are queries, texts are candidates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from matryo.encoders.adapters.transformers import cannot_load
from matryo.encoders.dual import DualEncoder, temperature_of
from matryo.encoders.tokens import Tokens
from matryo.encoders.weights import write_weights
from matryo.errors import InputError, MissingExtra
from matryo.files import write_json


class OpenClip(DualEncoder):
    """An open_clip model with its own projections and temperature.

    Args:
        model: a model of ``open_clip.create_model``.
        settings: the contents of open_clip_config.json (``model_cfg`` and ``preprocess_cfg``).
        colours: the mean and std normalisation that the pretrained weights expect; None without such weights.
    """

    def __init__(self, model: nn.Module, settings: dict[str, Any], colours: Any = None) -> None:
        super().__init__()
        self.model: Any = model
        self.settings = settings
        self.dim = int(settings["model_cfg"]["embed_dim"])
        self.colours = colours

    def embed_queries(self, inputs: Tensor) -> Tensor:
        """Embed images, [batch, dim]."""
        return self.model.encode_image(inputs)

    def embed_candidates(self, inputs: Tokens) -> Tensor:
        """Embed texts tokenised with the model's tokenizer (``open_clip.get_tokenizer``), [batch, dim]."""
        missing = self.model.context_length - inputs.ids.shape[1]
        if missing < 0:
            rule = f"a text must have at most {self.model.context_length} tokens"
            raise InputError(rule, got=inputs.ids.shape[1], cure="truncate it")
        pad = int(self.settings["model_cfg"]["text_cfg"].get("pad_id", 0))
        ids = inputs.ids if inputs.mask is None else inputs.ids.masked_fill(~inputs.mask, pad)
        return self.model.encode_text(F.pad(ids, (0, missing), value=pad))   # texts must have exactly this length

    @property
    def temperature(self) -> Tensor:
        """The divisor of the cosines."""
        return temperature_of(self.model.logit_scale)

    def save(self, folder: str | Path) -> None:
        """Write the model for ``open_clip.create_model("local-dir:FOLDER")``."""
        self.save_shape(folder)
        write_weights(Path(folder) / "open_clip_model.safetensors", self.model.state_dict())

    def save_shape(self, folder: str | Path) -> None:
        """Write the settings only, from which the model is rebuilt without downloading published weights."""
        write_json(Path(folder) / "open_clip_config.json", self.settings)


def from_open_clip(name: str, pretrained: str | None = None, **options: Any) -> OpenClip:
    """Load the open_clip model ``name`` as a dual encoder; ``options`` go to ``open_clip.create_model``.

    ``pretrained`` is the name of published weights, or a file. Without it the weights are random, unless ``name`` is
    ``local-dir:FOLDER`` (written by :meth:`OpenClip.save`) or ``hf-hub:OWNER/NAME``.
    """
    with MissingExtra.unless_installed("open_clip", "open_clip"):
        import open_clip
    try:
        config = open_clip.get_model_config(name)
    except OSError as error:
        raise cannot_load("open_clip cannot load the model", name, error) from error
    if config is None:
        cure = "choose one of open_clip.list_models()"
        raise InputError("unknown open_clip model", got=repr(name), cure=cure)
    model = open_clip.create_model(name, pretrained=pretrained, **options)
    stored = open_clip.get_model_preprocess_cfg(model)
    preprocess = {key: stored[key] for key in ("mean", "std", "interpolation", "resize_mode") if key in stored}
    # Nothing is known about the normalisation of a plain file of weights.
    published = ":" in name or open_clip.get_pretrained_cfg(name, pretrained or "")
    colours = (preprocess["mean"], preprocess["std"]) if published and {"mean", "std"} <= preprocess.keys() else None
    return OpenClip(model, {"model_cfg": config, "preprocess_cfg": preprocess}, colours)

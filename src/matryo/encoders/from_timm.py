"""Any timm model as an encoder: its pooled features are the embedding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from matryo.errors import InputError, MissingExtra

__all__ = ["TimmEncoder", "from_timm"]


class TimmEncoder(nn.Module):
    """A timm model without its classifier."""

    def __init__(self, model: nn.Module, dim: int) -> None:
        super().__init__()
        self.model = model
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 3, height, width] → [batch, dim]."""
        features: Tensor = self.model(x)
        return features

    def save(self, folder: str | Path) -> None:
        """Write the model as timm does: ``timm.create_model("local-dir:FOLDER")`` loads it."""
        from timm.models import save_for_hf

        save_for_hf(self.model, str(folder), safe_serialization=True)


def from_timm(name: str, *, pretrained: bool = False, **options: Any) -> TimmEncoder:
    """The timm model ``name`` as an encoder; ``options`` go to ``timm.create_model``.

    ``pretrained=True`` downloads weights as timm does.
    """
    try:
        import timm
    except ImportError as error:
        raise MissingExtra("timm", "timm") from error
    if name not in timm.list_models() and name.split(".")[0] not in timm.list_models():
        near = timm.list_models(f"*{name.split('_')[0]}*")[:5]
        raise InputError(
            "timm has no such model",
            got=repr(name),
            cure="try " + ", ".join(near) if near else "timm.list_models() prints the names",
        )
    model = timm.create_model(name, pretrained=pretrained, num_classes=0, **options)
    # ``num_features`` is the width before pooling for some models; ``head_hidden_size`` is what comes out.
    return TimmEncoder(model, int(getattr(model, "head_hidden_size", model.num_features)))

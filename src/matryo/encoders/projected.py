"""An encoder followed by a linear projection, a norm, or both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from matryo.arguments import as_integer, checked
from matryo.encoders.layered import Layered, depth_of, sharing
from matryo.errors import InputError

Neck = Literal["none", "batch", "layer", "linear", "linear+batch", "linear+layer"]


class Projected(Layered):
    """An encoder followed by a linear map to ``dim`` dimensions, or by a *neck*.

    A neck of ``batch`` or ``layer`` is that norm: every dimension starts with its share of the variance, and so does
    every prefix. ``linear`` is a map without bias that starts orthogonal; ``linear+batch`` is both.
    """

    @checked
    def __init__(self, encoder: nn.Module, dim: int, *, bias: bool = True, neck: Neck = "none") -> None:
        super().__init__()
        if neck not in get_args(Neck):
            rule = f"neck must be one of {', '.join(get_args(Neck))}"
            raise InputError(rule, got=repr(neck), cure='use "batch", or "none"')
        width = int(encoder.dim)   # type: ignore[arg-type]
        self.encoder, self.dim = encoder, as_integer(dim, "dim", 1)
        kind, _, norm = neck.rpartition("+") if neck not in ("linear", "none") else (neck, "", "")
        self.projection: nn.Linear | None = None
        if kind or width != dim:   # a norm alone needs no map, unless the size changes
            self.projection = nn.Linear(width, dim, bias=bias and kind == "none")
            if kind != "none":
                nn.init.orthogonal_(self.projection.weight)
        self.norm: nn.Module | None = None
        if norm:
            self.norm = (nn.BatchNorm1d if norm == "batch" else nn.LayerNorm)(dim)

    @property
    def depth(self) -> int:
        """The number of layers of the encoder; 0 if it cannot be cut."""
        return depth_of(self.encoder)

    def cut(self, layers: int) -> Projected:
        """The map after only the first ``layers`` of the encoder; it shares the weights."""
        return sharing(self, encoder=cast("Layered", self.encoder).cut(layers))

    def forward(self, x: Any, layers: Sequence[int] = ()) -> Tensor:
        """[batch, …] → [batch, dim]; after several numbers of ``layers``: [number, batch, dim]."""
        z: Tensor = self.encoder(x, layers) if layers else self.encoder(x)
        if self.projection is not None:
            z = self.projection(z)
        return z if self.norm is None else self.norm(z)

    @classmethod
    @torch.no_grad()
    def mapped(cls, encoder: nn.Module) -> Projected:
        """``encoder`` followed by an exact affine map, which is the identity, or that of a :class:`Projected` encoder.

        The map is computed in float32 even under autocast, because it may subtract a large mean.
        """
        dim = int(encoder.dim)   # type: ignore[arg-type]
        inner, (weight, bias) = encoder, (torch.eye(dim), None)
        if isinstance(encoder, Projected):
            inner, (weight, bias) = encoder.encoder, encoder.folded()
        other = cls(inner, dim)
        device = next((parameter.device for parameter in inner.parameters()), None)
        other.projection = _Exact(weight.shape[1], dim, device=device)
        other.projection.weight.copy_(weight)
        other.projection.bias.copy_(torch.zeros(dim) if bias is None else bias)
        return other

    @torch.no_grad()
    def append(self, weight: Tensor, bias: Tensor) -> None:
        """Apply one more affine map, weight [m, m] and bias [m], to the first m columns of an encoder from `mapped`."""
        assert isinstance(self.projection, _Exact)
        rows = slice(len(weight))
        own, start = self.projection.weight[rows].to(weight), self.projection.bias[rows].to(weight)
        self.projection.weight[rows] = (weight @ own).to(self.projection.weight)
        self.projection.bias[rows] = (weight @ start + bias).to(self.projection.bias)

    @torch.no_grad()
    def folded(self) -> tuple[Tensor, Tensor | None]:
        """Weight [dim, encoder's dim] and bias [dim] of the one linear map that equals this map and its batch norm."""
        norm = self.norm
        if isinstance(norm, nn.LayerNorm):
            cure = "train with encoder.neck batch"
            raise InputError("a layer norm after the encoder cannot be exported", got="encoder.neck layer", cure=cure)
        weight, bias = torch.eye(self.dim), None
        if self.projection is not None:
            weight, bias = self.projection.weight, self.projection.bias
        if not isinstance(norm, nn.BatchNorm1d):
            return weight, bias
        assert norm.running_mean is not None and norm.running_var is not None   # those of a default batch norm
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        start = norm.bias - norm.running_mean * scale
        return scale[:, None] * weight.to(scale), start if bias is None else start + scale * bias


class _Exact(nn.Linear):
    def forward(self, z: Tensor) -> Tensor:
        with torch.autocast(z.device.type, enabled=False):
            return super().forward(z.float())

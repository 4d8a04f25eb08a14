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
    def innermost(self) -> nn.Module:
        """The encoder before all projections."""
        return self.encoder.innermost if isinstance(self.encoder, Projected) else self.encoder

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
    def mapped(cls, encoder: nn.Module, weight: Tensor | None = None, bias: Tensor | None = None) -> Projected:
        """``encoder`` followed by the affine map weight [m, m], bias [m] of its first m columns; others are kept.

        Without a map, it is the identity, to be loaded. It is computed in float32, as it may subtract a large mean.
        """
        other = cls(encoder, int(encoder.dim))   # type: ignore[arg-type]
        device = next((parameter.device for parameter in encoder.parameters()), None)
        other.projection = own = _Exact(other.dim, other.dim, device=device)
        nn.init.eye_(own.weight)
        nn.init.zeros_(own.bias)
        if weight is not None and bias is not None:
            own.weight[: len(weight), : len(weight)], own.bias[: len(bias)] = weight.to(own.weight), bias.to(own.bias)
        return other

    @torch.no_grad()
    def folded(self) -> tuple[Tensor, Tensor | None]:
        """Weight [dim, d] and bias [dim] of the one linear map that equals everything after :attr:`innermost`."""
        norm = self.norm
        if isinstance(norm, nn.LayerNorm):
            cure = "train with encoder.neck batch"
            raise InputError("a layer norm after the encoder cannot be exported", got="encoder.neck layer", cure=cure)
        weight: Tensor = torch.eye(self.dim)
        bias: Tensor | None = None
        if self.projection is not None:
            weight, bias = self.projection.weight, self.projection.bias
        if isinstance(norm, nn.BatchNorm1d):
            weight, bias = _after_norm(weight, bias, norm)
        if not isinstance(self.encoder, Projected):
            return weight, bias
        first, start = self.encoder.folded()
        if start is not None:
            bias = weight @ start.to(weight) + (0 if bias is None else bias)
        return weight @ first.to(weight), bias


def _after_norm(weight: Tensor, bias: Tensor | None, norm: nn.BatchNorm1d) -> tuple[Tensor, Tensor]:
    """The linear map followed by ``norm``, as one map."""
    assert norm.running_mean is not None and norm.running_var is not None   # those of a default batch norm
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    start = norm.bias - norm.running_mean * scale
    return scale[:, None] * weight.to(scale), start if bias is None else start + scale * bias


class _Exact(nn.Linear):
    def forward(self, z: Tensor) -> Tensor:
        with torch.autocast(z.device.type, enabled=False):
            return super().forward(z.float())

"""Vision transformers without a classifier. Parameter names are those of timm, so public weights load."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from matryo.arguments import as_integer, as_number, checked
from matryo.encoders.layered import Layered, sharing
from matryo.errors import InputError

# Width, number of layers, number of heads.
_SIZES = {"ti": (192, 12, 3), "s": (384, 12, 6), "b": (768, 12, 12), "l": (1024, 24, 16)}
VITS = tuple(f"vit-{size}{patch}" for size in _SIZES for patch in (4, 8, 16, 32))
_EPS = 1e-6
_POOLINGS = ("cls", "mean")


@checked
def vit(name: str, *, size: int = 224, pooling: str = "cls", dropout: float = 0.0, drop_path: float = 0.0) -> ViT:
    """Build the vision transformer ``name``: ``vit-b16`` is ViT-B with patches of 16 px, for images of ``size`` px.

    >>> vit("vit-ti4", size=32).dim
    192
    """
    match = re.fullmatch(r"vit-([a-z]+)(\d+)", name)
    if match is None or match[1] not in _SIZES:
        raise InputError("unknown vision transformer", got=repr(name), cure=f"choose one of {', '.join(VITS)}")
    width, depth, heads = _SIZES[match[1]]
    patch = int(match[2])
    return ViT(width, depth, heads, patch=patch, size=size, pooling=pooling, dropout=dropout, drop_path=drop_path)


class ViT(Layered):
    """The vision transformer of Dosovitskiy et al., from image to pooled features.

    Args:
        dim: the width.
        depth: the number of layers.
        heads: attention heads per layer.
        patch: the side of a patch in pixels.
        size: the side of the training images in pixels. For other sizes, the position embeddings are interpolated, as
            for fine-tuning at a higher resolution.
        pooling: ``cls`` uses a class token; ``mean`` averages the patches and has no class token.
        dropout: the dropout rate after each linear layer.
        drop_path: the stochastic-depth rate of the last layer; it grows linearly from 0 at the first layer.
    """

    @checked
    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        *,
        patch: int = 16,
        size: int = 224,
        pooling: str = "cls",
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        for name, count in {"dim": dim, "depth": depth, "heads": heads, "patch": patch, "size": size}.items():
            as_integer(count, name, 1)
        for name, rate in {"dropout": dropout, "drop_path": drop_path}.items():
            as_number(rate, name, 0, 1, cure=f"pass {name}=0")
        if pooling not in _POOLINGS:
            raise InputError("unknown pooling", got=repr(pooling), cure=f"choose one of {', '.join(_POOLINGS)}")
        if dim % heads:
            got, cure = f"dim={dim}, heads={heads}", "change one of them"
            raise InputError("dim must be a multiple of heads", got=got, cure=cure)
        if size % patch:
            cure = f"use images of {max(1, round(size / patch)) * patch} px: --data.size, --data.test_size"
            raise InputError(f"the image size must be a multiple of the patch size {patch}", got=size, cure=cure)
        self.dim, self.heads, self.patch, self.pooling, self.grid = dim, heads, patch, pooling, size // patch
        self.patch_embed = PatchEmbed(dim, patch)
        extra = 1 if pooling == "cls" else 0
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim)) if extra else None
        self.pos_embed = nn.Parameter(torch.zeros(1, extra + self.grid**2, dim))
        self.pos_drop = nn.Dropout(dropout)
        rates = [drop_path * i / max(1, depth - 1) for i in range(depth)]
        self.blocks = nn.Sequential(*(Block(dim, heads, dropout, rate) for rate in rates))
        self.norm = nn.LayerNorm(dim, eps=_EPS)
        self._initialise()

    @property
    def depth(self) -> int:
        """The number of layers."""
        return len(self.blocks)

    def cut(self, layers: int) -> ViT:
        """This ViT with only its first ``layers`` and its last norm; they share their weights with it."""
        return sharing(self, blocks=self.blocks[:layers])

    def forward(self, x: Tensor, layers: Sequence[int] = ()) -> Tensor:
        """[batch, 3, height, width] → [batch, dim]; after several numbers of ``layers``: [number, batch, dim].

        The last norm is applied after whichever layer is the last.
        """
        rows, columns = x.shape[-2] // self.patch, x.shape[-1] // self.patch
        if (rows * self.patch, columns * self.patch) != tuple(x.shape[-2:]):
            rule = f"the image size must be a multiple of the patch size {self.patch}"
            raise InputError(rule, got=f"{x.shape[-2]} × {x.shape[-1]} px", cure="resize them")
        x = self.patch_embed(x)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.to(x.dtype).expand(x.shape[0], -1, -1), x], 1)
        x, reached = self.pos_drop(x + self._positions(rows, columns)), []
        for number, block in enumerate(self.blocks, 1):
            x = block(x)
            if number in layers:
                reached.append(x)
        x = self.norm(torch.stack(reached) if layers else x)
        return x[..., 0, :] if self.cls_token is not None else x.mean(-2)

    def _positions(self, rows: int, columns: int) -> Tensor:
        """The position embeddings for a grid of ``rows`` × ``columns`` patches."""
        if (rows, columns) == (self.grid, self.grid):
            return self.pos_embed
        extra = self.pos_embed.shape[1] - self.grid**2
        grid = self.pos_embed[:, extra:].float().unflatten(1, (self.grid, self.grid)).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, (rows, columns), mode="bicubic", antialias=True).flatten(2).transpose(1, 2)
        return torch.cat([self.pos_embed[:, :extra], grid.to(self.pos_embed.dtype)], 1)

    def _initialise(self) -> None:
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        if self.cls_token is not None:
            nn.init.normal_(self.cls_token, std=1e-6)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)


class PatchEmbed(nn.Module):
    """A linear map of each patch: a convolution whose stride equals its kernel size."""

    def __init__(self, dim: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 3, height, width] → [batch, patches, d]."""
        return self.proj(x).flatten(2).transpose(1, 2)


class Block(nn.Module):
    """A pre-norm transformer block: attention and an MLP, each with a residual connection."""

    def __init__(self, dim: int, heads: int, dropout: float, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=_EPS)
        self.attn = Attention(dim, heads, dropout)
        self.norm2 = nn.LayerNorm(dim, eps=_EPS)
        self.mlp = Mlp(dim, dropout)
        self.drop_path = drop_path

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, d] → [batch, length, d]."""
        x = x + self._drop(self.attn(self.norm1(x)))
        return x + self._drop(self.mlp(self.norm2(x)))

    def _drop(self, branch: Tensor) -> Tensor:
        """Stochastic depth: drop the branch for a random part of the images and scale up the rest."""
        if not self.training or not self.drop_path:
            return branch
        kept = torch.rand(branch.shape[0], 1, 1, device=branch.device) >= self.drop_path
        return branch * (kept.to(branch.dtype) / (1 - self.drop_path))


class Attention(nn.Module):
    """Multi-head scaled dot-product attention."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, d] → [batch, length, d]."""
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(-2)
        return self.proj_drop(self.proj(mixed))


class Mlp(nn.Module):
    """An MLP with a hidden layer of 4 · dim."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.drop1 = nn.Dropout(dropout)
        self.fc2 = nn.Linear(4 * dim, dim)
        self.drop2 = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, d] → [batch, length, d]."""
        return self.drop2(self.fc2(self.drop1(F.gelu(self.fc1(x)))))

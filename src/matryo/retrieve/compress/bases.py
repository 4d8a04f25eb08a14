"""Bases: the rotations that a codec may be fitted in, from the rungs of retrofit, and the codecs in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from matryo.retrieve.compress.codes.codecs import Bits, Product, Scalars
from matryo.retrieve.compress.codes.fitted import Fitted
from matryo.retrofit import rungs

if TYPE_CHECKING:
    from matryo.arrays import Doubles
    from matryo.retrieve.compress.sample import Sample
    from matryo.retrofit import Moments, Retrofit


def turned(sample: Sample, name: str, retrofit: Retrofit | None = None, queries: Moments | None = None) -> Doubles:
    """Return the axes of a rung [d, d]: ``identity``, ``pca``, ``centred``, ``queries``, or ``map`` (``retrofit``)."""
    from matryo.retrofit.fitting import sensible_nesting

    moments = sample.moments
    if name == "identity":
        return np.eye(sample.dim)
    if name == "map":
        assert retrofit is not None
        return retrofit.axes.astype(np.float64)
    if name == "queries":
        assert queries is not None
        return rungs.query_aware(moments.second, queries.second, sensible_nesting(sample.dim))
    return rungs.leading(moments.second if name == "pca" else moments.covariance)


def in_scalars(axes: Doubles, name: str, dim: int, bits: Bits, metric: str, seed: int) -> Fitted:
    """The first ``dim`` axes in numbers of ``bits``.

    Numbers of few bits share one unit per row. A random rotation of the kept columns gives all of them the same
    variance, so that none is cut off and none is lost below the unit. Without a rotation, columns stay as they are.
    """
    kept = axes[:, :dim]
    if bits < 16 and name != "identity":
        normal = np.random.default_rng(seed).standard_normal((dim, dim))
        kept = kept @ np.linalg.qr(normal)[0]
    return Fitted(name, np.asarray(kept, np.float32), None, Scalars(dim, bits, metric != "cosine"))


def in_product(
    sample: Sample, axes: Doubles, name: str, count: int, seed: int, columns: int | None = None
) -> Fitted:
    """``count`` bytes of a product code around the mean, of at most so many ``columns``."""
    covariance, mean = sample.moments.covariance, sample.moments.mean.astype(np.float32)
    variances = np.einsum("ij,ij->j", axes, covariance @ axes)
    order = np.argsort(-variances, kind="stable")[:columns]
    turned_axes = np.ascontiguousarray(axes[:, order], np.float32)
    coordinates = np.asarray((sample.vectors - mean) @ turned_axes, np.float32)
    codec = Product.fit(coordinates, variances[order], min(count, len(order)), seed)
    return Fitted(name, np.ascontiguousarray(turned_axes[:, : codec.dim]), mean, codec)

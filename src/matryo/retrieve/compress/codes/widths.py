"""How many columns share one byte: the blocks of a product code that lose the least for a number of bytes.

A byte for a block of w Gaussian columns with variances λ leaves about w · (Π λ)^(1/w) · 4^(−8/w) of their squares (the
rate–distortion bound), and somewhat more with 256 centroids. Columns without a byte lose all. Dynamic programming over
the blocks finds the least sum; blocks are contiguous and columns come in the order of their variance.

>>> widths_of(np.array([8.0, 4, 2, 1, 0.5, 0.25, 0.1, 0.1]), 3)
[2, 2, 4]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matryo.arrays import Doubles

_WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512)
_EXCESS = {1: 2.7, 2: 1.6}   # of k-means over the bound; wider blocks are nearer to it
_WIDE = 1.3


def widths_of(variances: Doubles, count: int) -> list[int]:
    """Return the widths of ``count`` blocks; together they may leave out columns at the end."""
    floor = max(float(variances.max(initial=0)), np.finfo(float).tiny) * 1e-12
    squares = np.maximum(np.asarray(variances, np.float64), floor)
    columns = len(squares)
    logs, sums = (np.concatenate([[0], np.cumsum(each)]) for each in (np.log(squares), squares))
    least = np.full((columns + 1, count + 1), np.inf)   # [columns so far, blocks so far]
    taken = np.zeros((columns + 1, count + 1), np.int32)
    least[0, 0] = 0
    for high in range(1, columns + 1):
        for width in (width for width in _WIDTHS if width <= high):
            low = high - width
            whole = sums[high] - sums[low]
            rest = width * np.exp((logs[high] - logs[low]) / width) * 4.0 ** (-8 / width)
            loss = least[low, :-1] + min(rest * _EXCESS.get(width, _WIDE), whole)
            better = loss < least[high, 1:]
            least[high, 1:][better], taken[high, 1:][better] = loss[better], width
    high = int((least[:, count] + sums[-1] - sums).argmin())
    widths: list[int] = []
    for left in range(count, 0, -1):
        widths.append(int(taken[high, left]))
        high -= widths[-1]
    return widths[::-1]

"""The length of a vector, with the same bits on different machines.

Replicas stay equal because all of them make the same steps of the same sums. A step that depends on a sum over the
vector's own numbers, as clipping does, is the same only if all add in the same order; and libraries choose the order by
the machine: by the number of multiprocessors of a GPU, by the width of a CPU's registers. Here the second half is added
to the first until one number is left: nothing but element by element, of which IEEE 754 says what comes out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def length(vector: Tensor) -> Tensor:
    """The square root of the sum of squares, on the vector's device.

    >>> float(length(torch.tensor([3.0, 0.0, 4.0])))
    5.0
    """
    # Half precision cannot hold the square of 256, or the sum of many.
    squares = (vector.float() if vector.element_size() < 4 else vector).square()
    left = len(squares)
    while left > 1:
        half = (left + 1) // 2
        squares[: left - half].add_(squares[half:left])
        left = half
    total = squares[:1].sum()
    # In double precision, which both round as IEEE 754 says: torch's square root on a CPU may be off by the last bit.
    if total.device.type == "cpu":
        return torch.tensor(math.sqrt(float(total)), dtype=total.dtype)
    return total.double().sqrt().to(total.dtype)


__all__ = ["length"]

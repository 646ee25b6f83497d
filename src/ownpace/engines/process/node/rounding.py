"""Do processors round alike, and may rounding be why replicas differ?

Replicas step with the same sums, each on its own processor. One with fused multiply-add rounds once where another
rounds twice, vector instructions of another width add up in another order, and a GPU divides otherwise: so the last
bits of a step may differ. Since the next gradient is again the same sum for all, whatever point each worker computed
its part at, such differences are only added up, step by step; training does not multiply them.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from ownpace.core.learning.layout import Layout

ROUNDINGS = 32
"""Of a layer's largest number, in one update: more than those of a step of SGD or Adam with decay add up to, even where
those of earlier steps are still in their memory. They go up as often as down, so n updates have √n times as many."""
MOST = 1 / 8
"""In half precision, many updates would explain anything."""
BEYOND = 1e30
"""How far apart parameters are if one of them is not finite: what is told to others has to be."""
_SMALL = 0.1
"""A layer smaller than this, next to the model's largest number, counts as this large: it may be about to pass 0."""


def rounding_digest(device: torch.device) -> str:
    """Equal where processors round alike: a digest of what optimizers do, on fixed numbers."""
    # Made where all do the same: whole numbers, and one division in double precision.
    places = torch.arange(1, 1032, dtype=torch.int64)
    values, gradient = (
        (((places * factor) % 65521).double() / 65521 - 0.5).float().to(device) for factor in (40503, 30011)
    )
    squares = torch.addcmul(values.abs(), gradient, gradient, value=0.001)
    results = [
        values.add(gradient, alpha=-0.1),
        values.lerp(gradient, 0.1),
        squares,
        torch.addcdiv(values, gradient, squares.sqrt().add_(1e-8), value=-0.01),
        squares.rsqrt(),
        values.exp(),
        values.sum().reshape(1),
        values.norm().reshape(1),
    ]
    bits = torch.cat(results).cpu().numpy().tobytes()
    return hashlib.blake2b(bits, digest_size=16).hexdigest()


def allowed(updates: int, dtype: torch.dtype) -> float:
    """How far apart rounding may have brought replicas in this many updates, next to a layer's largest number."""
    return min(MOST, ROUNDINGS * math.sqrt(updates) * torch.finfo(dtype).eps / 2)


def distance(mine: Tensor, theirs: Tensor, layout: Layout) -> tuple[float, int]:
    """The largest difference of two replicas in a layer, next to the layer's largest number; and in which layer."""
    apart, sizes = (mine - theirs).abs_(), theirs.abs()
    parts = [(layer.start, layer.stop) for layer in layout.layers]
    filled = [number for number, (start, stop) in enumerate(parts) if stop > start]
    if not filled:
        return 0.0, 0
    most = torch.stack([apart[slice(*parts[number])].amax() for number in filled]).double()
    largest = torch.stack([sizes[slice(*parts[number])].amax() for number in filled]).double()
    ratios = most / largest.clamp_min(_SMALL * float(largest.amax())).clamp_min(1e-30)
    ratios = torch.where(torch.isfinite(ratios), ratios, BEYOND).clamp_max(BEYOND)
    worst = int(ratios.argmax())
    return float(ratios[worst]), filled[worst]


__all__ = ["BEYOND", "allowed", "distance", "rounding_digest"]

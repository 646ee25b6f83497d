"""Is a gradient finite? And if not, where is it not?"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ownpace.core.contract.errors import DivergenceError
from ownpace.core.learning.layout import Layout
from ownpace.engines.ledger import diverged

LARGE = 1_000_000
"""Parameters. Of larger models, looking at the whole gradient takes noticeable time."""


def check_finite(who: str, samples: int, loss: float | None, total: Tensor, layout: Layout, *, all_: bool) -> None:
    """Raise if a gradient is not finite, and say where; None: its loss is not known.

    Of large models, only the first layer is looked at, unless `all_` are to be: what goes wrong in a backward pass ends
    up there, and reading all of it would take a hundredth of the time of computing it.

    Raises:
        DivergenceError: It is not.
    """
    looked_at = total if all_ or total.numel() <= LARGE else total[: layout.layers[0].stop]
    # One pass without a mask: NaN and infinity survive a sum. If only the sum overflows, nothing is found below.
    is_finite = loss is None or math.isfinite(loss)
    if is_finite and math.isfinite(float(looked_at.sum())):
        return
    for layer in layout.layers:
        part = total[layer.start : layer.stop]
        finite = torch.isfinite(part)
        if not bool(finite.all()):
            value = float(part[~finite][0])
            its_loss = "" if loss is None else f" (its loss is {loss:g})"
            raise DivergenceError(
                f"the gradient of layer '{layer.name}' on {who} is {value} at sample {samples}{its_loss}: training "
                "diverged; try a smaller lr"
            )
    if loss is not None and not is_finite:
        raise diverged(f"the loss on {who}", loss, samples)

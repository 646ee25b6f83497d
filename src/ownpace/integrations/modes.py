"""Optimizers with two modes, such as schedule-free's: `eval()` moves the model to an average, `train()` back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.optim import Optimizer


@contextmanager
def back_in_training(optimizer: Optimizer) -> Iterator[None]:
    """Be in training mode afterwards, with the very same parameters: on the way there and back, they are rounded.

    Ranks that evaluate would part from those that do not, and the next batch would find the model elsewhere.
    """
    if not callable(getattr(optimizer, "train", None)):
        yield
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    before = [parameter.detach().clone() for parameter in parameters]
    try:
        yield
    finally:
        optimizer.train()  # type: ignore[attr-defined]  # asked for above
        for parameter, values in zip(parameters, before, strict=True):
            parameter.data.copy_(values)


def go_to_average(optimizer: Optimizer) -> None:
    """Training has ended: the model is to be used."""
    if callable(getattr(optimizer, "eval", None)):
        optimizer.eval()  # type: ignore[attr-defined]  # asked for above

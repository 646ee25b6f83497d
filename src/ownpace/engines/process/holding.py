"""Who holds parameters and steps them: a flat vector with an optimizer of ours, on workers and servers alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from ownpace.core.optimizer import FlatOptimizer, State
from ownpace.core.values import Gradient, Shard


class Holding(Protocol):
    """The parameters of one learner."""

    values: Tensor
    """As they are now. Look, but do not keep: the next step may overwrite them."""

    def snapshot(self) -> Tensor:
        """As they are now, never to change again."""

    def step(self, gradient: Gradient, lr_factor: float) -> None:
        """Take one optimizer step."""

    def peek(self, gradient: Gradient, lr_factor: float) -> Tensor:
        """What a step would make of them."""

    def place(self, values: Tensor, shard: Shard) -> None:
        """Overwrite those of a shard."""

    def rates(self) -> Sequence[float]:
        """The learning rates, if others have to be told of them."""

    def set_rates(self, rates: Sequence[float]) -> None:
        """Use these learning rates from now on."""


class FlatHolding:
    """A flat vector and a `FlatOptimizer`. A step works in place, unless somebody holds a snapshot."""

    def __init__(self, values: Tensor, optimizer: FlatOptimizer, groups: Sequence[int] | None = None) -> None:
        self.values = values
        self._optimizer = optimizer
        self._groups = groups
        self._state: State | None = None
        self._handed_out = False

    def snapshot(self) -> Tensor:
        self._handed_out = True
        return self.values

    def step(self, gradient: Gradient, lr_factor: float) -> None:
        state = self._optimizer.initial_state() if self._state is None else self._state
        self.values, self._state = self._optimizer.step(
            self.values,
            state,
            gradient.total,
            samples=gradient.samples,
            lr_factor=lr_factor,
            donate=True,
            in_place=not self._handed_out,
        )
        self._handed_out = False

    def peek(self, gradient: Gradient, lr_factor: float) -> Tensor:
        state = self._optimizer.initial_state() if self._state is None else self._state
        return self._optimizer.step(self.values, state, gradient.total, samples=gradient.samples, lr_factor=lr_factor)[
            0
        ]

    def place(self, values: Tensor, shard: Shard) -> None:
        if self._handed_out:
            self.values = self.values.clone()
            self._handed_out = False
        self.values[shard.start : shard.stop] = values
        self._state = None

    def rates(self) -> Sequence[float]:
        return ()

    def set_rates(self, rates: Sequence[float]) -> None:
        self._optimizer.rates = list(rates) if self._groups is None else [rates[group] for group in self._groups]

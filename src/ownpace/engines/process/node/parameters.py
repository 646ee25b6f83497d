"""What a learner holds and steps: a flat vector with an optimizer of ours, or a user's model and optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.values import Gradient, Shard
from ownpace.core.learning.flat import Layout
from ownpace.core.learning.optimizer import FlatOptimizer, State


class HeldParameters(Protocol):
    """The parameters of one learner."""

    values: Tensor
    """As they are now, only to look at: the next step may overwrite them."""

    def snapshot(self) -> Tensor:
        """As they are now, never to change again."""

    def step(self, gradient: Gradient, lr_factor: float, memory: int = 0, rates: Sequence[float] = ()) -> None:
        """Take one optimizer step, with one of several optimizer states.

        Args:
            gradient: What to step with.
            lr_factor: Multiplies the learning rates.
            memory: Which optimizer state to use.
            rates: The learning rates that all replicas have agreed on, if they have to.
        """

    def peek(self, gradient: Gradient, lr_factor: float, rates: Sequence[float] = ()) -> Tensor:
        """What a step would make of them."""

    def place(self, values: Tensor, shard: Shard) -> None:
        """Overwrite those of a shard."""

    def overwrite(self, values: Tensor) -> None:
        """Overwrite all of them; the optimizer keeps its state."""

    @property
    def lr(self) -> float:
        """The learning rate, without the schedule's factor (of the first group, where there are several)."""

    def rates(self) -> Sequence[float]:
        """The learning rates, if other nodes must know them."""

    def set_rates(self, rates: Sequence[float]) -> None:
        """Use these learning rates from now on."""


class FlatParameters:
    """A flat vector and a `FlatOptimizer`. A step works in place, unless a snapshot was handed out."""

    def __init__(self, values: Tensor, optimizer: FlatOptimizer, groups: Sequence[int] | None = None) -> None:
        self.values = values
        self._optimizer = optimizer
        self._groups = groups
        self._states: dict[int, State] = {}
        self._handed_out = False

    def snapshot(self) -> Tensor:
        # Not a copy: the next step makes new values instead of overwriting these.
        self._handed_out = True
        return self.values

    def _state(self, memory: int = 0) -> State:
        if memory not in self._states:
            self._states[memory] = self._optimizer.initial_state()
        return self._states[memory]

    def step(self, gradient: Gradient, lr_factor: float, memory: int = 0, rates: Sequence[float] = ()) -> None:
        self.values, self._states[memory] = self._optimizer.step(
            self.values,
            self._state(memory),
            gradient.total,
            samples=gradient.samples,
            lr_factor=lr_factor,
            donate=True,
            in_place=not self._handed_out,
        )
        self._handed_out = False

    def peek(self, gradient: Gradient, lr_factor: float, rates: Sequence[float] = ()) -> Tensor:
        total, samples = gradient.total, gradient.samples
        if not samples:
            return self.snapshot()
        return self._optimizer.step(self.values, self._state(), total, samples=samples, lr_factor=lr_factor)[0]

    def place(self, values: Tensor, shard: Shard) -> None:
        if self._handed_out:
            self.values = self.values.clone()
            self._handed_out = False
        self.values[shard.start : shard.stop] = values
        # A server made these parameters: momentum of earlier local steps does not belong to them.
        self._states = {}

    def overwrite(self, values: Tensor) -> None:
        self.values = values
        self._handed_out = True  # the algorithm that made them may still hold them

    @property
    def lr(self) -> float:
        return float(self._optimizer.rates[0])

    def rates(self) -> Sequence[float]:
        return ()

    def set_rates(self, rates: Sequence[float]) -> None:
        self._optimizer.rates = list(rates) if self._groups is None else [rates[group] for group in self._groups]


class UserParameters:
    """The user's model and optimizer: the parameters are views of one vector, which is updated in place."""

    def __init__(
        self,
        flat: Tensor,
        layout: Layout,
        parameters: Sequence[nn.Parameter],
        optimizer: Optimizer,
        clip_norm: float | None,
    ) -> None:
        self.values = flat
        self.parameters = parameters
        self.optimizer = optimizer
        self.layout = layout
        self.clip_norm = clip_norm
        # The real step: later, `optimizer.step` is what hands the gradient to the algorithm.
        self._inner_step = optimizer.step
        self._mean: Tensor | None = None

    @property
    def has_gradient(self) -> bool:
        """Whether a backward pass has left something in the `.grad`s."""
        return any(parameter.grad is not None for parameter in self.parameters)

    def check_place(self) -> None:
        """Raise if the parameters are no longer views of the vector."""
        for layer, parameter, view in zip(
            self.layout.layers, self.parameters, self.layout.views(self.values), strict=True
        ):
            if parameter.data_ptr() != view.data_ptr():
                raise InputError(
                    f"{layer.name} is no longer where fleet.wrap put it; move or convert the model before fleet.wrap"
                )

    def gather(self, samples: int, out: Tensor | None) -> Tensor:
        """The sum over the samples of their gradients, out of the `.grad`s, which hold the mean."""
        total = torch.empty_like(self.values) if out is None else out
        for parameter, view in zip(self.parameters, self.layout.views(total), strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                torch.mul(parameter.grad, samples, out=view)
        return total

    def clip(self, total: Tensor, samples: int) -> None:
        """Clip the norm of the mean, where the user wants it, in place."""
        if self.clip_norm is not None:
            norm = float(torch.linalg.vector_norm(total)) / samples
            if norm > self.clip_norm:
                total *= self.clip_norm / norm

    def snapshot(self) -> Tensor:
        return self.values.clone()

    def step(self, gradient: Gradient, lr_factor: float, memory: int = 0, rates: Sequence[float] = ()) -> None:
        assert memory == 0, "a user's optimizer has one state"
        # Into the same memory at every step: the gradients that the optimizer sees are views of it.
        mean = self._mean = torch.div(gradient.total, gradient.samples, out=self._mean)
        self.clip(mean, 1)
        for parameter, view in zip(self.parameters, self.layout.views(mean), strict=True):
            parameter.grad = view
        own = [group["lr"] for group in self.optimizer.param_groups]
        used = [rate * lr_factor for rate in map(_agreed, own, rates or own)]
        if used != own:
            self.set_rates(used)
        self._inner_step()
        if used != own:
            # Restored at once: the user's scheduler computes the next rate from the one that it finds.
            self.set_rates(own)

    def set_rates(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def peek(self, gradient: Gradient, lr_factor: float, rates: Sequence[float] = ()) -> Tensor:
        if not gradient.samples:
            return self.snapshot()
        # A copy of the state for this one step, since torch overwrites it; then the optimizer gets its own back.
        values, state = self.values.clone(), self.optimizer.state
        self.optimizer.state = type(state)(
            dict, {p: {k: v.clone() if isinstance(v, Tensor) else v for k, v in s.items()} for p, s in state.items()}
        )
        self.step(gradient, lr_factor, rates=rates)
        self.optimizer.state = state
        peeked = self.values.clone()
        self.values.copy_(values)
        return peeked

    def place(self, values: Tensor, shard: Shard) -> None:
        self.values[shard.start : shard.stop] = values

    def overwrite(self, values: Tensor) -> None:
        self.values.copy_(values)

    @property
    def lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def rates(self) -> Sequence[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]


def flatten(model: nn.Module, optimizer: Optimizer, clip_norm: float | None) -> UserParameters:
    """Make the parameters of a user's model views of one vector.

    Raises:
        InputError: The optimizer is not one over all of them.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    layout = Layout(model)
    theirs = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    missing = [layer.name for layer, p in zip(layout.layers, parameters, strict=True) if id(p) not in theirs]
    if missing or len(theirs) != len(parameters):
        what = f"lacks {missing[0]}" if missing else f"has {len(theirs)} parameters, the model {len(parameters)}"
        raise InputError(f"the optimizer and the model do not fit: it {what}; make it of model.parameters()")
    flat = torch.cat([layer.flatten(p.detach()) for layer, p in zip(layout.layers, parameters, strict=True)])
    for parameter, view in zip(parameters, layout.views(flat), strict=True):
        parameter.data = view
    return UserParameters(flat, layout, parameters, optimizer, clip_norm)


def _agreed(own: float, of_first: float) -> float:
    """The learning rate that all ranks step with: the first one's, since schedulers may not be stepped equally often.

    Rates travel in single precision; where only that makes the difference, the own one is used.
    """
    return own if isinstance(own, Tensor) or np.float32(own) == np.float32(of_first) else of_first

"""A user's model and optimizer, as what a learner holds and steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.values import Gradient, Shard
from ownpace.core.learning.flat import Layout
from ownpace.core.learning.group_settings import GroupSettings
from ownpace.engines.process.node.no_trace import no_trace


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
        self._settings = GroupSettings([optimizer])
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

    def step(self, gradient: Gradient, lr_factor: float, memory: int = 0, settings: Sequence[float] = ()) -> None:
        assert memory == 0, "a user's optimizer has one state"
        # Into the same memory at every step: the gradients that the optimizer sees are views of it.
        mean = self._mean = torch.div(gradient.total, gradient.samples, out=self._mean)
        self.clip(mean, 1)
        own = [parameter.grad for parameter in self.parameters]
        for parameter, view in zip(self.parameters, self.layout.views(mean), strict=True):
            parameter.grad = view
        try:
            with self._settings.applied(settings, lr_factor):
                self._inner_step()
        finally:
            # The user's own again, as after a step in a plain loop.
            for parameter, gradient_ in zip(self.parameters, own, strict=True):
                parameter.grad = gradient_

    def set_settings(self, settings: Sequence[float]) -> None:
        raise AssertionError("only a server is told which settings to use")

    def peek(self, gradient: Gradient, lr_factor: float, settings: Sequence[float] = ()) -> Tensor:
        if not gradient.samples:
            return self.snapshot()
        with no_trace([self.optimizer], self.values):
            self.step(gradient, lr_factor, settings=settings)
            return self.snapshot()

    def place(self, values: Tensor, shard: Shard) -> None:
        self.values[shard.start : shard.stop] = values

    def overwrite(self, values: Tensor) -> None:
        self.values.copy_(values)

    @property
    def lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def settings(self) -> Sequence[float]:
        return self._settings.read()

    def difference(self, mine: Sequence[float], of_first: Sequence[float]) -> str:
        return self._settings.difference(mine, of_first)


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

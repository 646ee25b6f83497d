"""Learning in virtual time: workers in lock-step share their steps; or nothing is learnt, and only time passes."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ownpace.core.contract.values import Gradient, Shard
from ownpace.core.learning.flat import Buffers
from ownpace.core.learning.layout import Layout
from ownpace.core.learning.optimizer import FlatOptimizer, OptimizerSpec, State, clone
from ownpace.core.learning.task import Score, Task


class Replica:
    """Parameters and the optimizer state that belongs to them, never changed once made.

    Workers that hold the same one and take the same step get the same next one: it is computed once. So N
    workers in lock-step cost as much as one.
    """

    __slots__ = ("_next", "holders", "states", "values")

    def __init__(self, values: Tensor, states: dict[int, State] | None = None, holders: int = 1) -> None:
        self.values = values
        self.states = {} if states is None else states
        """The optimizer's, by the number of the memory."""
        self.holders = holders
        # Only the latest step: workers in lock-step ask for the same one, and none goes back to an earlier one.
        self._next: tuple[Gradient, float, Replica] | None = None

    def state(self, optimizer: FlatOptimizer, memory: int = 0) -> State:
        """The optimizer's state; parameters that were just put here have a fresh one."""
        if memory not in self.states:
            self.states[memory] = optimizer.initial_state()
        return self.states[memory]

    def kept(self) -> Replica:
        """The same, to come back to: a step of whoever holds this one leaves its state as it is."""
        # Another object, since this one refers to the step taken from it, which refers to the next, and so on.
        self.holders += 1
        return Replica(self.values, self.states)

    def at(self, values: Tensor) -> Replica:
        """Other parameters with the same state; the caller holds that replica from now on, and not this one."""
        self.holders -= 1
        # Copied while others hold this replica: a step may overwrite the state that it is given.
        states = self.states if self.holders == 0 else {key: clone(state) for key, state in self.states.items()}
        return Replica(values, states)

    def peek(self, optimizer: FlatOptimizer, gradient: Gradient, lr_factor: float) -> Tensor:
        """The parameters after one step that is not taken."""
        state = self.state(optimizer)
        return optimizer.step(self.values, state, gradient.total, samples=gradient.samples, lr_factor=lr_factor)[0]

    def step(self, optimizer: FlatOptimizer, gradient: Gradient, lr_factor: float, memory: int = 0) -> Replica:
        """The replica after one step; the caller holds that one from now on, and not this one."""
        # By identity: all members of a collective get one and the same sum, so no tensors need to be compared.
        if self._next is None or self._next[0] is not gradient or self._next[1] != lr_factor:
            is_mine = self.holders == 1
            values, state = optimizer.step(
                self.values,
                self.state(optimizer, memory),
                gradient.total,
                samples=gradient.samples,
                lr_factor=lr_factor,
                donate=is_mine,
            )
            # Of other memories, too: a later step overwrites them.
            others = {key: each for key, each in self.states.items() if key != memory}
            if not is_mine:
                others = {key: clone(each) for key, each in others.items()}
            self._next = gradient, lr_factor, Replica(values, {**others, memory: state}, 0)
        # Counted only now: as long as this replica has other holders, its state must not be given away.
        following = self._next[2]
        self.holders -= 1
        following.holders += 1
        return following


class Learning(Protocol):
    """What a run needs to know of the model it trains."""

    layout: Layout
    initial: Tensor

    def optimizer(self, spec: OptimizerSpec, shard: Shard) -> FlatOptimizer:
        """The optimizer of one shard."""

    def new_buffers(self) -> Buffers:
        """One worker's buffers."""

    def gradient(self, values: Tensor, buffers: Buffers, indices: Tensor) -> tuple[list[Tensor], float]:
        """The sum of the samples' gradients, layer by layer, and of their losses."""

    def score(self, values: Tensor, buffers: list[Buffers]) -> Score | None:
        """How good the parameters are, with the mean of the workers' buffers."""

    def export(self, values: Tensor, buffers: list[Buffers]) -> dict[str, Tensor]:
        """The model by names, ready to be saved."""


class TimingOnly:
    """No gradients: tensors have sizes but no contents (torch's meta device), and steps change nothing."""

    def __init__(self, task: Task) -> None:
        model = task.model()
        self.layout = Layout(model)
        dtype = next(p.dtype for p in model.parameters() if p.requires_grad)
        self.initial = torch.empty(self.layout.size, dtype=dtype, device="meta")

    def optimizer(self, spec: OptimizerSpec, shard: Shard) -> FlatOptimizer:
        raise AssertionError("where only time is simulated, there are no steps")

    def new_buffers(self) -> Buffers:
        return []

    def gradient(self, values: Tensor, buffers: Buffers, indices: Tensor) -> tuple[list[Tensor], float]:
        raise AssertionError("where only time is simulated, there are no gradients")

    def score(self, values: Tensor, buffers: list[Buffers]) -> None:
        return None

    def export(self, values: Tensor, buffers: list[Buffers]) -> dict[str, Tensor]:
        return {}

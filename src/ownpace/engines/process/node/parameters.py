"""What a learner holds and steps; and the kind that is a flat vector with an optimizer of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from ownpace.core.contract.errors import WireError
from ownpace.core.contract.values import Gradient, Shard
from ownpace.core.learning.optimizer import FlatOptimizer, State


class HeldParameters(Protocol):
    """The parameters of one learner."""

    values: Tensor
    """As they are now, only to look at: the next step may overwrite them."""

    def snapshot(self) -> Tensor:
        """As they are now, never to change again."""

    def step(self, gradient: Gradient, lr_factor: float, memory: int = 0, settings: Sequence[float] = ()) -> None:
        """Take one optimizer step, with one of several optimizer states.

        Args:
            gradient: What to step with.
            lr_factor: Multiplies the learning rates.
            memory: Which optimizer state to use.
            settings: The numbers of the optimizer's groups that all replicas have agreed on, if they have to.
        """

    def peek(self, gradient: Gradient, lr_factor: float, settings: Sequence[float] = ()) -> Tensor:
        """What a step would make of them."""

    def place(self, values: Tensor, shard: Shard) -> None:
        """Overwrite those of a shard."""

    def room(self) -> Tensor:
        """The vector itself, for a server's parameters to be written to it as they arrive."""

    def overwrite(self, values: Tensor) -> None:
        """Overwrite all of them; the optimizer keeps its state."""

    @property
    def lr(self) -> float:
        """The learning rate, without the schedule's factor (of the first group, where there are several)."""

    def settings(self) -> Sequence[float]:
        """The numbers of the optimizer's groups, if other nodes must know them."""

    def difference(self, mine: Sequence[float], of_first: Sequence[float]) -> str:
        """How two such settings differ, in words; empty if they do not."""

    def set_settings(self, settings: Sequence[float]) -> None:
        """Use these from now on."""


class FlatParameters:
    """A flat vector and a `FlatOptimizer`. A step works in place, unless a snapshot was handed out.

    `places`: on a server of a shard, which of a worker's settings are those of the optimizer here.
    """

    def __init__(self, values: Tensor, optimizer: FlatOptimizer, places: Sequence[int] | None = None) -> None:
        self.values = values
        self._optimizer = optimizer
        self._places = places
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

    def step(self, gradient: Gradient, lr_factor: float, memory: int = 0, settings: Sequence[float] = ()) -> None:
        self._look_at_layers(gradient)
        self.values, self._states[memory] = self._optimizer.step(
            self.values,
            self._state(memory),
            gradient.total,
            samples=gradient.samples,
            partial=gradient.partial,
            lr_factor=lr_factor,
            donate=True,
            in_place=not self._handed_out,
        )
        self._handed_out = False

    def peek(self, gradient: Gradient, lr_factor: float, settings: Sequence[float] = ()) -> Tensor:
        total, samples = gradient.total, gradient.samples
        if not samples:
            return self.snapshot()
        self._look_at_layers(gradient)
        return self._optimizer.step(
            self.values, self._state(), total, samples=samples, partial=gradient.partial, lr_factor=lr_factor
        )[0]

    def _look_at_layers(self, gradient: Gradient) -> None:
        if gradient.partial:
            self._states = self._optimizer.by_layer(self._states)

    def layer_states(self) -> State:
        """The optimizer's state, layer by layer."""
        return self._optimizer.layer_states(self._state())

    def take_layer_states(self, states: State) -> None:
        """Go on with this state, layer by layer."""
        self._states = {0: self._optimizer.of_layers(states)}

    def all_states(self) -> dict[str, State]:
        """The optimizer's states, each layer by layer, by the number of the memory."""
        return {str(memory): self._optimizer.layer_states(state) for memory, state in self._states.items()}

    def take_all(self, values: Tensor, states: Mapping[str, State]) -> None:
        """Go on with these parameters and states."""
        self.overwrite(values)
        self._states = {int(memory): self._optimizer.of_layers(state) for memory, state in states.items()}

    def place(self, values: Tensor, shard: Shard) -> None:
        self.room()[shard.start : shard.stop] = values

    def room(self) -> Tensor:
        if self._handed_out:
            self.values = self.values.clone()
            self._handed_out = False
        # A server makes these parameters: momentum of earlier local steps does not belong to them.
        self._states = {}
        return self.values

    def overwrite(self, values: Tensor) -> None:
        self.values = values
        self._handed_out = True  # the algorithm that made them may still hold them

    @property
    def lr(self) -> float:
        return self._optimizer.lr

    def settings(self) -> Sequence[float]:
        return ()

    def difference(self, mine: Sequence[float], of_first: Sequence[float]) -> str:
        return ""

    def set_settings(self, settings: Sequence[float]) -> None:
        if self._places is not None and max(self._places, default=-1) >= len(settings):
            raise WireError(
                f"a worker sent {len(settings)} settings of its optimizer; {max(self._places) + 1} are needed"
            )
        mine = settings if self._places is None else [settings[place] for place in self._places]
        self._optimizer.settings.assign(mine)

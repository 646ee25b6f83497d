"""What a learner holds and steps; and the kind that is a flat vector with an optimizer of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from ownpace.core.contract.errors import WireError
from ownpace.core.contract.values import Gradient, Shard
from ownpace.core.learning.optimizer import FlatOptimizer, SameBits, State
from ownpace.engines.process.node.unfinished import ArrivingLayers, UnfinishedStep


class HeldParameters(Protocol):
    """The parameters of one learner."""

    values: Tensor
    """As they are now, only to look at: the next step may overwrite them."""

    def snapshot(self) -> Tensor:
        """As they are now, never to change again."""

    def step(
        self,
        gradient: Gradient,
        lr_factor: float,
        memory: int = 0,
        settings: Sequence[float] = (),
        *,
        same_bits: SameBits = "everywhere",
    ) -> None:
        """Take one optimizer step, with one of several optimizer states.

        Args:
            gradient: What to step with.
            lr_factor: Multiplies the learning rates.
            memory: Which optimizer state to use.
            settings: The numbers of the optimizer's groups that all replicas have agreed on, if they have to.
            same_bits: Where replicas have to get the same bits from it.
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
        self._values = values
        self._optimizer = optimizer
        self._places = places
        self._states: dict[int, State] = {}
        self._handed_out = False
        self._spare: tuple[Tensor, dict[str, object]] | None = None
        self.unfinished: UnfinishedStep | None = None
        """A step of which layers are still to come."""

    @property
    def values(self) -> Tensor:
        # Whoever looks, for whatever reason: a vector of which some layers are a step behind must never be seen.
        if self.unfinished is not None:
            self.unfinished.finish()
        return self._values

    @values.setter
    def values(self, values: Tensor) -> None:
        self._values = values

    @property
    def needs_whole_gradient(self) -> bool:
        """Whether no step can be made layer by layer."""
        return self._optimizer.needs_whole_gradient

    def begin_step(self, arriving: ArrivingLayers, samples: int, lr_factor: float, on_end: Callable[[], None]) -> bool:
        """Take one optimizer step as its gradient arrives, if that can be done so; returns whether it can.

        Args:
            arriving: The sum of the gradients of the samples, as it comes.
            samples: How many they are.
            lr_factor: Multiplies the learning rates.
            on_end: Called when the step is made.
        """
        steps = self._optimizer.in_ranges((self.values, self._state()), samples, lr_factor)
        if steps is None:
            return False
        spare, self._spare = self._spare, None
        steps.begin(spare)

        def end() -> None:
            self.unfinished = None
            before = self._values, self._states[0][0]
            steps.keep_state()
            # What was before is where the next step is made, unless somebody still looks at it.
            self._spare = None if self._handed_out else before
            self._values, self._states[0], self._handed_out = steps.values, [steps.state], False
            on_end()

        self.unfinished = UnfinishedStep(arriving, steps, end)
        return True

    def drop_step(self) -> None:
        """Be as before a step that is under way: what is still to come of it never will."""
        self.unfinished = None

    def snapshot(self) -> Tensor:
        # Not a copy: the next step makes new values instead of overwriting these.
        values = self.values
        self._handed_out = True
        return values

    def _state(self, memory: int = 0) -> State:
        if memory not in self._states:
            self._states[memory] = self._optimizer.initial_state()
        return self._states[memory]

    def step(
        self,
        gradient: Gradient,
        lr_factor: float,
        memory: int = 0,
        settings: Sequence[float] = (),
        *,
        same_bits: SameBits = "everywhere",
    ) -> None:
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
            same_bits=same_bits,
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
            self._spare = None
            self._states = self._optimizer.by_layer(self._states)

    def layer_states(self) -> State:
        """The optimizer's state, layer by layer."""
        self._settle()
        return self._optimizer.layer_states(self._state())

    def take_layer_states(self, states: State) -> None:
        """Go on with this state, layer by layer."""
        self._settle()
        self._states = {0: self._optimizer.of_layers(states)}

    def all_states(self) -> dict[str, State]:
        """The optimizer's states, each layer by layer, by the number of the memory."""
        self._settle()
        return {str(memory): self._optimizer.layer_states(state) for memory, state in self._states.items()}

    def take_all(self, values: Tensor, states: Mapping[str, State]) -> None:
        """Go on with these parameters and states."""
        self._settle()
        self.overwrite(values)
        self._states = {int(memory): self._optimizer.of_layers(state) for memory, state in states.items()}

    def place(self, values: Tensor, shard: Shard) -> None:
        self.room()[shard.start : shard.stop] = values

    def _settle(self) -> None:
        if self.unfinished is not None:
            self.unfinished.finish()

    def room(self) -> Tensor:
        self._settle()
        if self._handed_out:
            self.values = self.values.clone()
            self._handed_out = False
        # A server makes these parameters: momentum of earlier local steps does not belong to them.
        self._states = {}
        return self.values

    def overwrite(self, values: Tensor) -> None:
        self._settle()
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

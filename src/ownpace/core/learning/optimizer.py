"""Any torch optimizer as a pure function of parameters, state and gradient: that is what makes *peeking* possible."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ownpace.core.contract.errors import InputError, unknown
from ownpace.core.contract.values import Shard
from ownpace.core.learning import fused_sgd
from ownpace.core.learning.group_settings import GroupSettings
from ownpace.core.learning.layout import Layout
from ownpace.core.learning.norms import length
from ownpace.core.learning.optimizer_state import join, split
from ownpace.core.learning.range_steps import RangeSteps, is_plain_sgd
from ownpace.core.learning.schedule import Schedule
from ownpace.core.settings import not_negative, positive

SameBits = Literal["everywhere", "on one GPU", "nowhere"]
"""Where several who make the same step must get the same bits from it: on machines of any kind; on the one GPU that
they share, where any arithmetic will do that adds in a fixed order; or there is one alone, and the fastest will do."""
State = list[dict[str, object]]
"""An optimizer's state: one dictionary per parameter it knows."""
Build = Callable[[Iterable[nn.Parameter]], Optimizer]

ELEMENTWISE: dict[str, Callable[..., Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adamax": torch.optim.Adamax,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "rmsprop": torch.optim.RMSprop,
    "rprop": torch.optim.Rprop,
    "asgd": torch.optim.ASGD,
}
"""Optimizers that treat each number by itself, so that one flat vector may stand for all layers."""
_MOMENTUM = ("sgd", "rmsprop")
_NO_DECAY = ("rprop",)


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """An optimizer by name, and its learning rate over the run."""

    name: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    clip_norm: float | None = None
    """Shorten the gradient of each step to this length, if it is longer (None: never)."""
    schedule: Schedule = field(default_factory=Schedule)
    custom: Build | None = None
    """Makes a torch optimizer of parameters, in place of all of the above but clipping and the schedule."""

    def __post_init__(self) -> None:
        if self.name not in ELEMENTWISE:
            raise unknown("optimizer", self.name, ELEMENTWISE)
        positive(lr=self.lr, clip_norm=self.clip_norm)
        not_negative(momentum=self.momentum, weight_decay=self.weight_decay)
        if self.momentum >= 1:
            raise InputError(f"momentum is {self.momentum}; it must be below 1, as in 0.9")
        if self.momentum and self.name not in _MOMENTUM:
            raise InputError(f"momentum is {self.momentum}, but {self.name} has none; use it with sgd or rmsprop")
        if self.nesterov and not (self.momentum and self.name == "sgd"):
            raise InputError(
                f"nesterov needs sgd with momentum, but the optimizer is {self.name} and momentum is {self.momentum}; "
                "use sgd and a momentum, as in 0.9, or leave nesterov out"
            )
        if self.weight_decay and self.name in _NO_DECAY:
            raise InputError(f"weight_decay is {self.weight_decay}, but {self.name} has none; leave it at 0")

    def build(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """A torch optimizer over these parameters."""
        if self.custom is not None:
            return self.custom(parameters)
        settings: dict[str, float] = {"lr": self.lr}
        if self.momentum:
            settings["momentum"] = self.momentum
        if self.nesterov:
            settings["nesterov"] = True
        if self.weight_decay:
            settings["weight_decay"] = self.weight_decay
        return ELEMENTWISE[self.name](parameters, **settings)


class FlatOptimizer:
    """A torch optimizer over one shard of the flat vector, holding no state of its own between calls.

    An optimizer that treats each number by itself, with one group, sees the shard as a single vector: one
    call a step, whatever the number of layers. Any other sees the layers as they are; and so does every optimizer from
    the first gradient on that some layers have none of (`by_layer`).
    """

    def __init__(
        self, layout: Layout, shard: Shard, like: Tensor, build: Build, *, clip_norm: float | None = None
    ) -> None:
        self._clip_norm = clip_norm
        layers = [layer for layer in layout.layers if shard.start <= layer.start < shard.stop]
        self._layout = Layout.of([(layer.name, layer.shape, layer.channels_last) for layer in layers])
        self._whole = False
        self._parameters = [nn.Parameter(view) for view in self._views(torch.empty_like(like))]
        # Over the layers first: only the optimizer itself knows its groups, and whether layers matter to it.
        self._optimizer = build(self._parameters)
        if isinstance(self._optimizer, torch.optim.LBFGS | torch.optim.SparseAdam):
            raise InputError(
                f"{type(self._optimizer).__name__} cannot be used: it needs more than one dense gradient per step; "
                "use SGD, Adam or another first-order optimizer"
            )
        # The exact class: a subclass may look at a layer as a whole.
        if type(self._optimizer) in ELEMENTWISE.values() and len(self._optimizer.param_groups) == 1:
            self._whole = True
            self._parameters = [nn.Parameter(torch.empty_like(like))]
            self._optimizer = build(self._parameters)
        self.settings = GroupSettings([self._optimizer])
        """The numbers of its groups, which someone else may schedule."""
        self._initial = self._take_state()
        self._let_go()

    @property
    def lr(self) -> float:
        """The learning rate of the first group."""
        return float(self._optimizer.param_groups[0]["lr"])

    @property
    def _is_plain_sgd(self) -> bool:
        return self._whole and is_plain_sgd(self._optimizer)

    def initial_state(self) -> State:
        """The state before the first step."""
        return clone(self._initial)

    def by_layer(self, states: dict[int, State]) -> dict[int, State]:
        """See the layers as they are from now on; returns the states, divided among them."""
        if not self._whole:
            return states
        self._whole = False
        empty = torch.empty(0, dtype=self._parameters[0].dtype, device=self._parameters[0].device)
        self._parameters = [nn.Parameter(empty) for _ in self._layout.layers]
        self._optimizer.param_groups[0]["params"] = self._parameters
        self._initial = split(self._initial[0], self._layout.layers)
        return {memory: split(entry, self._layout.layers) for memory, (entry,) in states.items()}

    def layer_states(self, state: State) -> State:
        """A state as those of the layers, sharing nothing with it."""
        return split(state[0], self._layout.layers) if self._whole else clone(state)

    def of_layers(self, states: State) -> State:
        """The state that has these as those of its layers."""
        whole = join(states, self._layout.layers) if self._whole else None
        if whole is not None:
            return [whole]
        self.by_layer({})
        return states

    def step(
        self,
        values: Tensor,
        state: State,
        total: Tensor,
        *,
        samples: int = 1,
        partial: bool = False,
        lr_factor: float = 1.0,
        donate: bool = False,
        in_place: bool = False,
        same_bits: SameBits = "everywhere",
    ) -> tuple[Tensor, State]:
        """One step from `values` and `state`: returns new ones and leaves `values` as it was.

        Args:
            values: The parameters, flat.
            state: The optimizer's state that belongs to them.
            total: The sum of the gradients of `samples` samples, flat.
            samples: How many they were.
            partial: Whether some layers may have no gradient: those stay as they are. Only after `by_layer`.
            lr_factor: By what the optimizer's learning rates are multiplied.
            donate: `state` may be overwritten, because it is not needed any more.
            in_place: And so may `values`.
            same_bits: Where others have to get the same bits from it.
        """
        if same_bits != "everywhere" and self._whole and fused_sgd.is_possible(self._optimizer, values):
            scale = self._scale(total, samples, Tensor.norm if same_bits == "nowhere" else length)
            return self._fused(values if in_place else values.clone(), state, total, scale, lr_factor, donate)
        total = total if self._clip_norm is None else clipped(total, self._clip_norm * samples)
        if self._is_plain_sgd:
            return self._sgd(values, state, total, samples, lr_factor, donate, in_place)
        values = values if in_place else values.clone()
        self._take_hold(values, total, samples, partial)
        # Torch's optimizers overwrite the state they are given.
        state = state if donate else clone(state)
        for parameter, entry in zip(self._parameters, state, strict=True):
            if entry:
                self._optimizer.state[parameter] = entry
        with self.settings.applied((), lr_factor):
            self._optimizer.step()
        # Recorded CUDA graphs see by a tensor's version whether they must copy it again.
        torch.autograd.graph.increment_version(values)  # `.data` does not count its changes
        self._let_go()
        return values, self._take_state()

    def _take_hold(self, values: Tensor, total: Tensor, samples: int, partial: bool) -> None:
        """Let the optimizer's parameters be these values, and their gradients the mean."""
        assert not (partial and self._whole), "layers are not known any more; call by_layer before"
        absent = self._layout.absent(total) if partial else [False] * len(self._parameters)
        for parameter, view, part, none in zip(
            self._parameters, self._views(values), self._views(total / samples), absent, strict=True
        ):
            parameter.data = view
            parameter.grad = None if none else part

    @property
    def needs_whole_gradient(self) -> bool:
        """Whether the step of one layer depends on the gradients of others."""
        return not self._whole or self._clip_norm is not None

    def in_ranges(self, before: tuple[Tensor, State], samples: int, lr_factor: float) -> RangeSteps | None:
        """The next step from these parameters and this state, range by range; None: all of it depends on all."""
        if self.needs_whole_gradient:
            return None
        steps = RangeSteps(self._optimizer, self.settings, (before[0], before[1][0]), samples, lr_factor)
        return steps if steps.are_possible() else None

    def _sgd(
        self,
        values: Tensor,
        state: State,
        total: Tensor,
        samples: int,
        lr_factor: float,
        donate: bool,
        in_place: bool,
    ) -> tuple[Tensor, State]:
        """SGD, which everything is compared with, written out: the same numbers for half the memory traffic."""
        group = self._optimizer.param_groups[0]
        lr, momentum, decay = group["lr"] * lr_factor, group["momentum"], group["weight_decay"]
        buffer = state[0].get("momentum_buffer") if momentum else None
        if not isinstance(buffer, Tensor):  # before the first step there is none
            buffer = total / samples
        else:
            buffer = buffer.mul_(momentum) if donate else buffer * momentum
            # Divided while it is added: the mean itself is never written to memory.
            buffer.add_(total, alpha=1 / samples)
        if decay:
            # Into the buffer, as in torch: momentum carries the decay along.
            buffer.add_(values, alpha=decay)
        values = values.add_(buffer, alpha=-lr) if in_place else torch.add(values, buffer, alpha=-lr)
        if momentum:
            return values, [{"momentum_buffer": buffer}]
        # A schedule may have set momentum to 0 for now: torch then leaves the buffer as it is.
        return values, state if donate else clone(state)

    def _scale(self, total: Tensor, samples: int, norm: Callable[[Tensor], Tensor]) -> Tensor | float:
        """What makes a sum the mean, clipped if it has to be."""
        if self._clip_norm is None:
            return 1 / samples
        return (self._clip_norm / (norm(total) / samples + 1e-6)).clamp(max=1.0) / samples

    def _fused(
        self, values: Tensor, state: State, total: Tensor, scale: Tensor | float, lr_factor: float, donate: bool
    ) -> tuple[Tensor, State]:
        """SGD in one kernel."""
        state = state if donate else clone(state)
        buffer = state[0].get("momentum_buffer")
        known = buffer if isinstance(buffer, Tensor) else None
        buffer = fused_sgd.step(self._optimizer, values, known, total, scale, lr_factor)
        return values, state if buffer is None else [{"momentum_buffer": buffer}]

    def _views(self, flat: Tensor) -> list[Tensor]:
        return [flat] if self._whole else self._layout.views(flat)

    def _let_go(self) -> None:
        """Keep no memory between calls: parameters and gradients are the caller's."""
        for parameter in self._parameters:
            parameter.data = parameter.data.new_empty(0)
            parameter.grad = None

    def _take_state(self) -> State:
        state = [self._optimizer.state.get(parameter, {}) for parameter in self._parameters]
        self._optimizer.state.clear()
        return state


def clipped(gradient: Tensor, longest: float) -> Tensor:
    """A gradient, shortened to this length if it is longer: as torch's clip_grad_norm_ does it.

    >>> clipped(torch.tensor([3.0, 4.0]), 1.0)
    tensor([0.6000, 0.8000])
    """
    # The factor stays on the device: looking at it would wait for the gradient. Added to, for a gradient of length 0.
    return gradient * (longest / (length(gradient) + 1e-6)).clamp(max=1.0)


def clone(state: State) -> State:
    """A copy of a state, sharing nothing with it."""
    return [
        {key: value.clone() if isinstance(value, Tensor) else copy.copy(value) for key, value in entry.items()}
        for entry in state
    ]

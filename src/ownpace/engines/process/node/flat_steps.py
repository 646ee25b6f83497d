"""Steps of torch's own element-wise optimizers, made over ranges of the vector instead of layer by layer.

Such an optimizer treats every number by itself, so it makes the same bits of them however they are divided among
tensors. Its step is made by a double that has whole ranges of the vector for parameters: one call for a range, where
the optimizer itself makes one for each layer. The layers' states, which the user may look at and save, are views of
the ranges'. Whatever the user does to the optimizer in between (another state, other settings, a hook) is seen before
the next step; where the double could not do the same, the optimizer makes its step itself.
"""

from __future__ import annotations

import inspect
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer
from torch.utils.hooks import RemovableHandle

from ownpace.core.learning.layout import Layer
from ownpace.core.learning.optimizer import ELEMENTWISE
from ownpace.core.learning.optimizer_state import Entry
from ownpace.engines.process.node.flat_range import FlatRange, kind_of

Step = Callable[[Optimizer], object]
_OTHER_BITS = ("fused", "capturable", "differentiable")
"""Options of steps that are not the same for ranges as for layers, or leave more behind than numbers."""
_DTYPES = (torch.float32, torch.float64)
"""In half precision, the last numbers of a tensor are rounded otherwise than the rest."""


def elementwise_step(optimizer: Optimizer) -> Step | None:
    """What an optimizer's step does, without what is wrapped around it; None: this is not known to be element-wise."""
    kind = type(optimizer)
    if kind not in ELEMENTWISE.values():  # the exact class: a subclass may look at a layer as a whole
        return None
    own = inspect.unwrap(kind.step)
    is_torchs = own.__name__ == "step" and own.__module__.startswith("torch.optim.")
    # A scheduler of torch's wraps it to see that it is called, which it hears of anyway; others may do anything.
    found = vars(optimizer).get("step")
    is_free = found is None or (hasattr(found, "_wrapped_by_lr_sched") and inspect.unwrap(found) is own)
    return own if is_torchs and is_free else None


class FlatSteps:
    """One optimizer's steps over its part of the vector."""

    def __init__(
        self,
        optimizer: Optimizer,
        step: Step | None,
        parameters: Sequence[nn.Parameter],
        layers: Sequence[Layer],
        vectors: tuple[Tensor, Tensor],
    ) -> None:
        """Steps of an optimizer.

        Args:
            optimizer: It, as the user has it.
            step: What its step does (None: it is not known to be element-wise).
            parameters: Those that it steps.
            layers: Where they are in the vector.
            vectors: The parameters and the mean gradient; always the same memory.
        """
        self._optimizer = optimizer
        self._parameters = parameters
        self._layers = layers
        self._values, self._mean = vectors
        self._step = step if self._values.dtype in _DTYPES else None
        self._double: Optimizer | None = None
        self._ranges: list[FlatRange] = []
        self._groups: list[object] = []
        self._entries: list[Entry] = []
        self._states: list[object] = []
        self._wholes: list[list[Tensor]] = []
        self._hook: RemovableHandle | None = None

    def are_possible(self) -> bool:
        """Whether the next step may be made so."""
        optimizer = self._optimizer
        if self._step is None or any(any(map(group.get, _OTHER_BITS)) for group in optimizer.param_groups):
            return False
        before, after = torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks
        # A fleet's own looks only at other optimizers.
        hooks = after or any(not getattr(hook, "of_a_fleet", False) for hook in before.values())
        if hooks or optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            return False
        return self._are_still_there() or self._take_over()

    def _are_still_there(self) -> bool:
        """Whether groups and states are those that the ranges were made of."""
        groups, entries = self._optimizer.param_groups, [*self._optimizer.state.values()]
        return (
            _are([group["params"] for group in groups], self._groups)
            and _are(entries, self._entries)
            and _are(_states_in(entries), self._states)
            and all(map(FlatRange.has_its_counts, self._ranges))
        )

    def _take_over(self) -> bool:
        """Make ranges of what the optimizer has now; False: it has something else than is known."""
        optimizer, found = self._optimizer, []
        if not all(isinstance(entry, dict) for entry in optimizer.state.values()):
            return False
        groups = {id(p): number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}
        for layer, parameter in zip(self._layers, self._parameters, strict=True):
            kind = kind_of(optimizer.state.get(parameter) or {}, layer, self._values)
            if kind is None:
                return False
            found.append(((groups[id(parameter)], kind), layer, parameter))
        if self._double is None:
            self._double = type(optimizer)([nn.Parameter(torch.zeros(1))], lr=1.0)  # type: ignore[call-arg]
            self._hook = optimizer.register_state_dict_post_hook(self._own_memory)
        self._double.state = defaultdict(dict)
        self._ranges = []
        for (group, _), alike in groupby(found, key=operator.itemgetter(0)):
            _, layers, parameters = zip(*alike, strict=True)
            self._ranges.append(FlatRange(group, layers, parameters, self._values, self._mean))
        for each in self._ranges:
            each.take(optimizer.state)
            self._double.state[each.whole] = each.state
        self._groups = [group["params"] for group in optimizer.param_groups]
        self._remember()
        self._wholes = [[each.whole for each in self._ranges if each.group == n] for n in range(len(self._groups))]
        return True

    def _remember(self) -> None:
        self._entries = [*self._optimizer.state.values()]
        self._states = _states_in(self._entries)

    def step(self) -> None:
        """Make a step with the mean gradient, which is there; after `are_possible` only."""
        if not self._is_plain_sgd() or not self._step_sgd():
            self._make()
        are_new = [each.show(self._optimizer.state) for each in self._ranges]
        if any(are_new):
            self._remember()

    def peek(self, ahead: Tensor) -> None:
        """Write to a vector what a step would make of the parameters; after `are_possible` only."""
        if self._is_plain_sgd():
            groups = self._optimizer.param_groups
            for each in self._ranges:
                _peek_sgd(groups[each.group], each, ahead[each.start : each.stop])
            return
        with self._elsewhere(ahead):
            self._make()

    def _is_plain_sgd(self) -> bool:
        return type(self._optimizer) is torch.optim.SGD and not any(map(_is_unusual, self._optimizer.param_groups))

    def _step_sgd(self) -> bool:
        """SGD's step written out: torch's own calls, without what it does around them; False: not of this step."""
        groups = self._optimizer.param_groups
        for each in self._ranges:
            group = groups[each.group]
            # The first step makes the buffers. On a GPU, torch's calls for lists have kernels of their own.
            is_first = group["momentum"] and "momentum_buffer" not in each.state
            if is_first or (self._values.is_cuda and group["foreach"] is False):
                return False
        for each in self._ranges:
            _step_sgd(groups[each.group], each)
        return True

    def _make(self) -> None:
        double = self._double
        assert double is not None
        assert self._step is not None
        pairs = zip(self._optimizer.param_groups, self._wholes, strict=True)
        # Anew for every step: schedules change settings, and some replace the groups.
        double.param_groups = [{**group, "params": wholes} for group, wholes in pairs]
        self._step(double)

    @contextmanager
    def _elsewhere(self, values: Tensor) -> Iterator[None]:
        """The double works on a copy of the parameters, which it gets there, and on copies of its states."""
        assert self._double is not None
        state = self._double.state
        try:
            for each in self._ranges:
                each.whole.data = values[each.start : each.stop].copy_(each.whole)
                state[each.whole] = {key: value.clone() for key, value in each.state.items()}
            yield
        finally:
            for each in self._ranges:
                each.whole.data = self._values[each.start : each.stop]
                state[each.whole] = each.state

    def _own_memory(self, optimizer: Optimizer, states: dict[str, Any]) -> None:
        """Let what a state dictionary holds have memory of its own: saved alone, a part would take all along."""
        ours = {id(tensor) for each in self._ranges for tensor in each.shown}
        states["state"] = {
            index: {key: value.clone() if id(value) in ours else value for key, value in entry.items()}
            for index, entry in states["state"].items()
        }

    def release(self) -> None:
        """Give every layer's state memory of its own."""
        for each in self._ranges:
            each.release(self._optimizer.state)
        self._ranges, self._groups = [], []
        if self._hook is not None:
            self._hook.remove()
            self._hook = self._double = None


def _are(found: Sequence[object], known: Sequence[object]) -> bool:
    """Whether these are the very same objects."""
    return [*map(id, found)] == [*map(id, known)]


def _states_in(entries: Sequence[Entry]) -> list[object]:
    return [*chain.from_iterable(map(dict.values, entries))]


def _is_unusual(group: dict[str, object]) -> bool:
    return bool(group["nesterov"] or group["dampening"] or group["maximize"] or isinstance(group["lr"], Tensor))


def _step_sgd(group: dict[str, Any], part: FlatRange) -> None:
    assert part.whole.grad is not None
    values: list[Tensor] = [part.whole]
    moves: list[Tensor] | tuple[Tensor, ...] = [part.whole.grad]
    if group["weight_decay"]:
        moves = torch._foreach_add(moves, values, alpha=group["weight_decay"])
    if group["momentum"]:
        buffers = [part.state["momentum_buffer"]]
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, moves)
        moves = buffers
    torch._foreach_add_(values, moves, alpha=-group["lr"])


def _peek_sgd(group: dict[str, Any], part: FlatRange, ahead: Tensor) -> None:
    """SGD written out: the same bits, without copies of what is not to change."""
    moves, buffer = part.whole.grad, part.state.get("momentum_buffer")
    assert moves is not None
    if group["weight_decay"]:
        moves = moves.add(part.whole, alpha=group["weight_decay"])
    if group["momentum"] and buffer is not None:  # before the first step there is none
        moves = torch.mul(buffer, group["momentum"], out=ahead).add_(moves)
    torch.add(part.whole, moves, alpha=-group["lr"], out=ahead)

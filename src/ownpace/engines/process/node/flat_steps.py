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
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer
from torch.utils.hooks import RemovableHandle

from ownpace.core.learning.flat import Layer
from ownpace.core.learning.optimizer import ELEMENTWISE
from ownpace.core.learning.optimizer_state import Entry

Step = Callable[[Optimizer], object]
_COUNTS = frozenset(("step", "mu_product", "eta", "mu"))
"""What torch's optimizers keep as one number for each parameter."""
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
        self._ranges: list[_Range] = []
        self._groups: list[object] = []
        self._hook: RemovableHandle | None = None

    def are_possible(self) -> bool:
        """Whether the next step may be made so."""
        optimizer = self._optimizer
        if self._step is None or any(group.get(key) for group in optimizer.param_groups for key in _OTHER_BITS):
            return False
        hooks = torch_optimizer._global_optimizer_pre_hooks or torch_optimizer._global_optimizer_post_hooks
        if hooks or optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            return False
        return self._are_still_there() or self._take_over()

    def _are_still_there(self) -> bool:
        """Whether groups and states are those that the ranges were made of."""
        groups, state = self._optimizer.param_groups, self._optimizer.state
        return (
            len(groups) == len(self._groups)
            and all(map(operator.is_, [group["params"] for group in groups], self._groups))
            and all(each.is_still_in(state) for each in self._ranges)
        )

    def _take_over(self) -> bool:
        """Make ranges of what the optimizer has now; False: it has something else than is known."""
        optimizer, found = self._optimizer, []
        groups = {id(p): number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}
        for layer, parameter in zip(self._layers, self._parameters, strict=True):
            kind = _kind(optimizer.state.get(parameter) or {}, layer, self._values)
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
            self._ranges.append(_Range(group, layers, parameters, self._values, self._mean))
        for each in self._ranges:
            each.take(optimizer.state)
            self._double.state[each.whole] = each.state
        self._groups = [group["params"] for group in optimizer.param_groups]
        return True

    def step(self) -> None:
        """Make a step with the mean gradient, which is there; after `are_possible` only."""
        self._make()
        for each in self._ranges:
            each.show(self._optimizer.state)

    def peek(self, ahead: Tensor) -> None:
        """Let `ahead`, a copy of the parameters, be what a step would make of them; after `are_possible` only."""
        with self._elsewhere(ahead):
            self._make()

    def _make(self) -> None:
        double = self._double
        assert double is not None
        assert self._step is not None
        wholes: list[list[Tensor]] = [[] for _ in self._groups]
        for each in self._ranges:
            wholes[each.group].append(each.whole)
        pairs = zip(self._optimizer.param_groups, wholes, strict=True)
        # Anew for every step: schedules change settings, and some replace the groups.
        double.param_groups = [{**group, "params": whole} for group, whole in pairs]
        self._step(double)

    @contextmanager
    def _elsewhere(self, values: Tensor) -> Iterator[None]:
        """The double works on these values and on copies of its states."""
        assert self._double is not None
        state = self._double.state
        try:
            for each in self._ranges:
                each.whole.data = values[each.start : each.stop]
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


class _Range:
    """Layers of one group that are side by side in the vector, and the state of all of them."""

    def __init__(
        self, group: int, layers: Sequence[Layer], parameters: Sequence[nn.Parameter], values: Tensor, mean: Tensor
    ) -> None:
        self.group = group
        self.start, self.stop = layers[0].start, layers[-1].stop
        self.whole = nn.Parameter(values[self.start : self.stop], requires_grad=False)
        """What the double has for a parameter."""
        self.whole.grad = mean[self.start : self.stop]
        self.state: dict[str, Tensor] = {}
        """What the double keeps for it."""
        self._layers = layers
        self._parameters = parameters
        self._sizes = [layer.stop - layer.start for layer in layers]
        self._views: dict[str, list[Tensor]] = {}
        self._counts: dict[str, tuple[Tensor, int]] = {}
        self._entries: list[Entry | None] = [None for _ in layers]

    @property
    def shown(self) -> list[Tensor]:
        """The layers' states."""
        return [view for views in self._views.values() for view in views]

    def is_still_in(self, state: dict[Tensor, Entry]) -> bool:
        """Whether the layers' states are those that were shown, and nothing has changed their counts."""
        entries = list(map(state.get, self._parameters))
        if not all(map(operator.is_, entries, self._entries)):
            return False
        # Numbers that are changed in place are the ranges' own. Counts are not, as each layer has one.
        return all(
            all(map(operator.is_, [entry and entry.get(key) for entry in entries], views))
            for key, views in self._views.items()
        ) and all(counts._version == version for counts, version in self._counts.values())

    def take(self, state: dict[Tensor, Entry]) -> None:
        """Take over the layers' states."""
        entries = [state.get(parameter) or {} for parameter in self._parameters]
        for key in entries[0]:
            parts: list[Tensor] = [entry[key] for entry in entries]  # type: ignore[misc]  # `_kind` has looked
            if key in _COUNTS:
                self.state[key] = parts[0].clone()  # those of all layers are equal
            else:
                pairs = zip(self._layers, parts, strict=True)
                self.state[key] = torch.cat([layer.flatten(part) for layer, part in pairs])
        self.show(state)

    def show(self, state: dict[Tensor, Entry]) -> None:
        """Let the layers have what the range has."""
        new = [key for key in self.state if key not in self._views]
        for key in new:  # at the first step, or when momentum is turned on later
            self._views[key] = self._make_views(key)
        if new:
            for index, parameter in enumerate(self._parameters):
                entry = self._entries[index] = state[parameter]
                entry.update({key: views[index] for key, views in self._views.items()})
        for key, (counts, _) in self._counts.items():
            counts.fill_(self.state[key])
            self._counts[key] = counts, counts._version

    def _make_views(self, key: str) -> list[Tensor]:
        value = self.state[key]
        if key in _COUNTS:
            counts = value.new_empty(len(self._layers))
            self._counts[key] = counts, counts._version
            return list(counts.unbind())
        pieces = value.split_with_sizes(self._sizes)
        return [layer.view(piece) for layer, piece in zip(self._layers, pieces, strict=True)]

    def release(self, state: dict[Tensor, Entry]) -> None:
        """Give every layer's state memory of its own, if it is still what was shown."""
        for index, parameter in enumerate(self._parameters):
            entry = state.get(parameter) or {}
            for key, views in self._views.items():
                if entry.get(key) is views[index]:
                    entry[key] = views[index].clone()


def _kind(entry: Entry, layer: Layer, values: Tensor) -> object | None:
    """Layers side by side that have the same one can be stepped as one; None: their states are not known."""
    kind = []
    for key, value in entry.items():
        if not isinstance(value, Tensor) or value.layout is not torch.strided:
            return None
        if key in _COUNTS:
            if value.dim() or value.device.type != "cpu":
                return None
            kind.append((key, value.dtype, value.item()))
        elif value.shape != layer.shape or value.dtype != values.dtype or value.device != values.device:
            return None
        else:
            kind.append((key, value.dtype, 0.0))
    return tuple(kind)

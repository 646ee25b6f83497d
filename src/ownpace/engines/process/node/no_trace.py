"""Stepping an optimizer without a trace: its state, groups, attributes and hooks are afterwards what they were.

For the time of the step, every optimizer (those inside a wrapper, too) has a copy of all its attributes. Copied are
tensors, the containers that hold them, and the objects that a state is made of. Parameters, modules and functions stay
what they are, and so do generators, whose states are put back. Hooks on steps are not called.
"""

from __future__ import annotations

import copy
import enum
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_SIMPLE = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, range, enum.Enum)
_KEPT = (
    nn.Parameter,
    nn.Module,
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    weakref.ReferenceType,
)
_PLAIN = frozenset((type(None), bool, int, float, str, nn.Parameter, types.FunctionType, types.MethodType))
_ALL = 1000
"""Levels of objects: more than there are."""
_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def nested(optimizer: Optimizer) -> list[Optimizer]:
    """An optimizer, and those that it keeps as attributes (a wrapper's own): all that its step may change."""
    found = [optimizer]
    for one in found:  # grows while it is gone through
        for value in vars(one).values():
            held = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
            found += [o for o in held if isinstance(o, Optimizer) and all(o is not known for known in found)]
    return found


@contextmanager
def no_trace(optimizers: Sequence[Optimizer], values: Tensor) -> Iterator[None]:
    """Whatever a step changes within, of these optimizers and of `values`, is undone.

    Args:
        optimizers: Those that are stepped.
        values: The vector that the parameters are views of.
    """
    everything = [one for optimizer in optimizers for one in nested(optimizer)]
    before, aside = values.clone(), _Aside(values)
    try:
        for optimizer in everything:
            aside.put(optimizer)
            for name in _HOOKS:
                if name in vars(optimizer):
                    setattr(optimizer, name, OrderedDict())
        # An optimizer that draws noise draws the same at its real step.
        with torch.random.fork_rng([values.device] if values.is_cuda else []), _without_global_hooks():
            yield
    finally:
        aside.bring_back()
        values.copy_(before)


@contextmanager
def _without_global_hooks() -> Iterator[None]:
    hooks: list[dict[int, Any]] = [
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    ]
    kept = [dict(of) for of in hooks]
    for of in hooks:
        of.clear()
    try:
        yield
    finally:
        for of, were in zip(hooks, kept, strict=True):
            of.update(were)


class _Aside:
    """The attributes of objects, put aside while the objects work on copies."""

    def __init__(self, values: Tensor) -> None:
        self._kept: list[tuple[object, dict[str, object]]] = []
        self._generators: list[tuple[torch.Generator, Tensor]] = []
        # By identity: what two optimizers share (the groups of a wrapper and of what it wraps) stays shared. The
        # originals are kept here, too, since an identity is only good for as long as its object lives.
        self._copies: dict[int, tuple[object, object]] = {}
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._of_values = values.untyped_storage().data_ptr()

    def put(self, holder: object, *, depth: int = 2) -> None:
        """Let an object have a copy of its attributes, and so for `depth` levels of objects inside it."""
        attributes = vars(holder)
        # Before its attributes are copied: they may lead back to it.
        self._copies[id(holder)] = holder, holder
        # Objects of a state belong to the optimizer, at any depth; other attributes may lead to the whole program.
        deep = ("state", "param_groups") if isinstance(holder, Optimizer) else ()
        copied = {name: self._copy(value, _ALL if name in deep else depth - 1) for name, value in attributes.items()}
        try:
            object.__setattr__(holder, "__dict__", copied)
        except (AttributeError, TypeError):  # an object of C's that keeps its attributes to itself
            return
        self._kept.append((holder, attributes))

    def bring_back(self) -> None:
        """Give all objects their own attributes back."""
        for holder, attributes in self._kept:
            object.__setattr__(holder, "__dict__", attributes)
        for generator, state in self._generators:
            generator.set_state(state)

    def _copy(self, value: object, depth: int) -> object:
        # Most of what there is, by its very type: quicker than asking what it is an instance of.
        if type(value) in _PLAIN or isinstance(value, _SIMPLE):
            return value
        if id(value) in self._copies:
            return self._copies[id(value)][1]
        if isinstance(value, (*_KEPT, Optimizer)):  # an optimizer inside is put aside by itself
            return value
        if isinstance(value, Tensor):
            copied: object = self._tensor(value)
        elif isinstance(value, np.ndarray):
            copied = value.copy()
        elif isinstance(value, _CONTAINERS):
            return self._container(value, depth)
        else:
            return self._object(value, depth)
        self._copies[id(value)] = value, copied
        return copied

    def _tensor(self, value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        place = storage.data_ptr()
        if place == self._of_values:
            return value  # a view of the parameters, which are put back as a whole
        if place in self._storages:  # two views of the same memory stay that
            other = torch.empty(0, dtype=value.dtype, device=value.device)
            return other.set_(self._storages[place], value.storage_offset(), value.size(), value.stride())
        if storage.nbytes() == value.nbytes:
            copied = value.detach().clone()
        else:
            whole = storage.clone()
            copied = torch.empty(0, dtype=value.dtype, device=value.device)
            copied.set_(whole, value.storage_offset(), value.size(), value.stride())
        if place:
            self._storages[place] = copied.untyped_storage()
        return copied

    def _container(self, value: object, depth: int) -> object:
        if isinstance(value, dict):
            copied = copy.copy(value)  # of the same kind: with its order, its default
            self._copies[id(value)] = value, copied
            for key, held in value.items():
                copied[key] = self._copy(held, depth)
            return copied
        assert isinstance(value, list | tuple | set | frozenset | deque)
        parts = [self._copy(held, depth) for held in value]
        if all(part is held for part, held in zip(parts, value, strict=True)) and isinstance(value, tuple | frozenset):
            return value
        made: object
        if isinstance(value, tuple) and hasattr(value, "_make"):
            made = value._make(parts)
        elif isinstance(value, deque):
            made = deque(parts, value.maxlen)
        else:
            made = type(value)(parts)
        self._copies[id(value)] = value, made
        return made

    def _object(self, value: object, depth: int) -> object:
        if isinstance(value, torch.Generator):
            self._generators.append((value, value.get_state()))
        elif depth > 0 and hasattr(value, "__dict__"):
            self.put(value, depth=depth)
        elif depth > 1:  # without attributes of its own, in a state
            return copy.deepcopy(value)
        return value

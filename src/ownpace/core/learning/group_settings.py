"""The numbers of an optimizer's parameter groups that an update uses, and that all replicas must agree on.

Learning rates, and everything else that schedules may move: momentum, betas, weight decay. They travel as float64,
which is exact. Some optimizers also keep *state* in their groups (schedule-free's count of steps, Prodigy's estimate):
what the step itself changes is found out by comparing, and is the optimizer's own from then on.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ownpace.core.contract.errors import InputError

_UNCHANGING = (float, int, bool)
"""The same object has the same number."""


class _Place(NamedTuple):
    """Where a setting is: in which group, by which key, and where among all numbers."""

    group: int
    key: str
    start: int
    stop: int


class GroupSettings:
    """The settings of one or several optimizers, in the order of their groups and, in each, of their names.

    Which ones there are is fixed by the first look at them: they travel without their names.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers
        self._places: list[_Place] | None = None
        self._keys: list[str] = []
        # What was found at the latest look, and the numbers in it: mostly nothing has changed since.
        self._found: list[object] = []
        self._tensors: list[tuple[int, Tensor]] = []
        self._versions: list[int] = []
        self._numbers: tuple[float, ...] = ()

    @property
    def _groups(self) -> Sequence[dict[str, object]]:
        # Anew each time: loading a state replaces the groups.
        if len(self._optimizers) == 1:
            return self._optimizers[0].param_groups
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def _look(self) -> list[object]:
        groups = self._groups
        if self._places is None:
            self._places = _places(groups)
            self._numbers = (0.0,) * (self._places[-1].stop if self._places else 0)
            self._keys = [place.key for place in self._places]
        found = list(map(dict.get, [groups[place.group] for place in self._places], self._keys))
        if list in map(type, found):
            # A list may be written to without becoming another object; what is compared must not.
            return [tuple(value) if isinstance(value, list) else value for value in found]
        return found

    def _versions_now(self) -> list[int]:
        return [tensor._version for _, tensor in self._tensors]

    def read(self) -> tuple[float, ...]:
        """As they are now; the same object as long as nothing has changed. Those that are state stay as they were."""
        found = self._look()
        # By identity: no tensor is looked into, which on a GPU would wait. Its version tells whether it was written to.
        if _differ(found, self._found) or (self._tensors and self._versions_now() != self._versions):
            self._take(found)
        return self._numbers

    def _take(self, found: list[object]) -> None:
        taken = list(self._numbers)
        known = self._found or [None] * len(found)
        for place, value, was in zip(self._places or (), found, known, strict=True):
            if value is was and type(value) in _UNCHANGING:
                continue
            parts = _numbers(value)
            if len(parts) != place.stop - place.start:
                raise InputError(
                    f"{place.key} of parameter group {place.group} became {value!r}; what was a number when training "
                    "began must remain one"
                )
            taken[place.start : place.stop] = parts
        if tuple(taken) != self._numbers:
            self._numbers = tuple(taken)
        self._remember(found)

    def _remember(self, found: list[object]) -> None:
        self._found = found
        others = [(index, value) for index, value in enumerate(found) if type(value) not in _UNCHANGING]
        self._tensors = [(index, tensor) for index, value in others for tensor in _tensors(value)]
        self._versions = self._versions_now()

    def are(self, agreed: Sequence[float], lr_factor: float) -> bool:
        """Whether `applied` would change nothing."""
        own = self.read()
        return lr_factor == 1 and (not agreed or agreed is own or agreed == own)

    def assign(self, agreed: Sequence[float]) -> None:
        """Let the groups have these from now on; state is left alone."""
        own = self.read()
        if tuple(agreed) != own:
            self._apply(own, agreed, 1.0)

    @contextmanager
    def applied(self, agreed: Sequence[float], lr_factor: float) -> Iterator[None]:
        """Let the groups have what was agreed on (nothing: their own) for one step, and the factor on learning rates.

        What the step itself changes is state: it is kept, and never set again.
        """
        own = self.read()
        before = self._found
        changed: list[tuple[_Place, object]] = []
        if lr_factor != 1 or (agreed and agreed != own):
            changed = self._apply(own, agreed or own, lr_factor)
        during = self._look() if changed else before
        versions = self._versions_now()
        try:
            yield
        finally:
            written = self._written(during, versions)
            groups = self._groups
            # At once: the user's scheduler computes the next settings from those that it finds.
            for place, value in changed:
                if place.key not in written:
                    _set(value, own[place.start : place.stop])  # tensors; anything else is still as it was
                    groups[place.group][place.key] = value
            if written:
                self._leave_alone(written)
            self._versions = self._versions_now()

    def _apply(self, own: Sequence[float], used: Sequence[float], lr_factor: float) -> list[tuple[_Place, object]]:
        """Set what differs; returns where, and what was there."""
        changed, groups = [], self._groups
        for place in self._places or ():
            factor = lr_factor if place.key == "lr" else 1.0
            if factor == 1 and used[place.start] == own[place.start] and place.stop == place.start + 1:
                continue  # most of them
            wanted = [number * factor for number in used[place.start : place.stop]]
            if wanted != list(own[place.start : place.stop]):
                group = groups[place.group]
                changed.append((place, group[place.key]))
                group[place.key] = _set(group[place.key], wanted)
        return changed

    def _written(self, during: list[object], versions: list[int]) -> set[str]:
        """The keys that a step has written something else to."""
        after, places = self._look(), self._places or []
        written: set[str] = set()
        if _differ(during, after):
            pairs = zip(places, during, after, strict=True)
            written = {place.key for place, was, is_ in pairs if was is not is_ and _numbers(was) != _numbers(is_)}
        if versions != self._versions_now():
            pairs_of_tensors = zip(self._tensors, versions, strict=True)
            written |= {places[index].key for (index, tensor), was in pairs_of_tensors if tensor._version != was}
        return written

    def _leave_alone(self, written: set[str]) -> None:
        """These are state from now on, in all groups, even where the step has not changed them yet.

        Their numbers stay as they were before: as long as a key is not known as state, all ranks have the same there.
        """
        places = self._places or []
        kept = [index for index, place in enumerate(places) if place.key not in written]
        self._places = [places[index] for index in kept]
        self._keys = [place.key for place in self._places]
        self._remember([self._found[index] for index in kept])

    def difference(self, mine: Sequence[float], of_first: Sequence[float]) -> str:
        """How a rank's own settings differ from the first one's, in words; empty if they do not."""
        for place in self._places or ():
            parts = slice(place.start, place.stop)
            if tuple(mine[parts]) != tuple(of_first[parts]):
                own, first = (", ".join(f"{number:.6g}" for number in side[parts]) for side in (mine, of_first))
                return f"{place.key} of parameter group {place.group} is {own} on this rank and {first} on rank 0"
        return ""


def count_numbers(groups: Sequence[Mapping[str, object]]) -> list[int]:
    """How many numbers `read` finds in each of these groups."""
    places = _places(groups)
    return [sum(place.stop - place.start for place in places if place.group == g) for g in range(len(groups))]


def as_numbers(value: object) -> object:
    """A setting without tensors: it can be compared and sent."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    return type(value)(map(as_numbers, value)) if isinstance(value, tuple | list) and _numbers(value) else value


def _places(groups: Sequence[Mapping[str, object]]) -> list[_Place]:
    places, start = [], 0
    for number, group in enumerate(groups):
        # By name: the order in which keys came into a group depends on how it was made.
        for key in sorted(group):
            width = len(_numbers(group[key])) if key != "params" else 0
            if width:
                places.append(_Place(number, key, start, start + width))
                start += width
    return places


def _numbers(value: object) -> list[float]:
    """The numbers in a setting; none, if it is something else."""
    if type(value) in _UNCHANGING:  # most of them
        return [_number(value)]
    if isinstance(value, tuple | list):  # some hold numbers and None, as Adafactor's eps
        return [_number(part) for part in value if _is_number(part)]
    return [_number(value)] if _is_number(value) else []


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) or (
        isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()
    )


def _number(value: object) -> float:
    return float(value)  # type: ignore[arg-type]  # `_is_number` has looked


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [part for part in value if isinstance(part, Tensor)] if isinstance(value, tuple | list) else []


def _set(value: object, wanted: Sequence[float]) -> object:
    """The setting with these numbers. Tensors keep their place in memory: a recorded step reads them there."""
    if isinstance(value, Tensor):
        with torch.no_grad():
            return value.fill_(wanted[0])
    if isinstance(value, tuple | list):
        left = iter(wanted)
        return type(value)([_set(part, [next(left)]) if _is_number(part) else part for part in value])
    number = wanted[0]
    if isinstance(value, bool):
        return bool(number)
    return int(number) if isinstance(value, int) and number.is_integer() else number


def _differ(some: list[object], others: list[object]) -> bool:
    return [*map(id, some)] != [*map(id, others)]

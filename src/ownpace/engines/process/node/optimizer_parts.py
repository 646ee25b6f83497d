"""The state of an optimizer on its way between a script's own optimizer and parameter servers: part by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.optimizer_state import Entry
from ownpace.engines.process.talk.control import StatePart
from ownpace.engines.process.talk.wire import Packet

States = dict[int, Entry]
"""The state of each layer, by its place in the model."""


def packets(states: Mapping[int, Entry]) -> Iterator[Packet]:
    """The messages that carry these states; at least one, as the last of them tells that it is."""
    entries = [(layer, key, value) for layer, entry in states.items() for key, value in entry.items()]
    entries = [(layer, key, value) for layer, key, value in entries if value is not None]
    for number, (layer, key, value) in enumerate(entries):
        left = len(entries) - 1 - number
        if isinstance(value, Tensor):
            part = StatePart(layer, key, list(value.shape), None, left)
            yield Packet(value.detach().cpu().reshape(-1), control=part)
        elif isinstance(value, int | float):
            yield Packet(control=StatePart(layer, key, [], float(value), left))
        else:
            raise InputError(
                f"the optimizer keeps a {type(value).__name__} as {key}, which cannot go to parameter servers; use an "
                "algorithm without servers, such as pace"
            )
    if not entries:
        yield Packet(control=StatePart(-1, "", [], None, 0))


class StateParts:
    """Puts states together again."""

    def __init__(self) -> None:
        self._states: States = {}

    def take(self, part: StatePart, values: object) -> States | None:
        """Take one part; returns the states when this was the last."""
        if part.layer >= 0:
            entry = self._states.setdefault(part.layer, {})
            entry[part.key] = values.view(part.shape) if isinstance(values, Tensor) else part.number
        if part.left:
            return None
        states, self._states = self._states, {}
        return states

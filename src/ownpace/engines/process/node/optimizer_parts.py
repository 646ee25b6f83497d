"""The state of an optimizer on its way between a script's own optimizer and parameter servers: part by part."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping

from torch import Tensor

from ownpace.core.contract.errors import InputError, WireError
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

    def __init__(self, layers: Container[int]) -> None:
        self._layers = layers
        self._states: States = {}

    def take(self, part: StatePart, values: object) -> States | None:
        """Take one part; returns the states when this was the last.

        Raises:
            WireError: It has no place here: its tensor has another size than its shape, or there is no such layer.
        """
        if part.layer >= 0:
            if part.layer not in self._layers:
                raise WireError(f"the state of layer {part.layer}, which is not here")
            if isinstance(values, Tensor):
                if math.prod(part.shape) != values.numel():
                    raise WireError(f"{values.numel()} values of the shape {part.shape[:8]}")
                value: object = values.view(part.shape)
            elif part.number is None:
                raise WireError(f"the state '{part.key[:40]}' of a layer, with neither a number nor a tensor")
            else:
                value = part.number
            self._states.setdefault(part.layer, {})[part.key] = value
        if part.left:
            return None
        states, self._states = self._states, {}
        return states

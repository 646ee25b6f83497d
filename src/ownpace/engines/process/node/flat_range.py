"""Layers side by side in the vector that an optimizer steps as one, and what it keeps for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ownpace.core.learning.layout import Layer
from ownpace.core.learning.optimizer_state import Entry

_COUNTS = frozenset(("step", "mu_product", "eta", "mu"))
"""What torch's optimizers keep as one number for each parameter."""


class FlatRange:
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

    @property
    def shown(self) -> list[Tensor]:
        """The layers' states."""
        return [view for views in self._views.values() for view in views]

    def has_its_counts(self) -> bool:
        """Whether the layers' counts are those that were shown."""
        # Numbers that are changed in place are the ranges' own. Counts are not, as each layer has one.
        return all(counts._version == version for counts, version in self._counts.values())

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

    def show(self, state: dict[Tensor, Entry]) -> bool:
        """Let the layers have what the range has; returns whether there is something that they had not before."""
        new = [key for key in self.state if key not in self._views]
        for key in new:  # at the first step, or when momentum is turned on later
            self._views[key] = self._make_views(key)
        if new:
            for index, parameter in enumerate(self._parameters):
                state[parameter].update({key: views[index] for key, views in self._views.items()})
        for key, (counts, _) in self._counts.items():
            counts.fill_(self.state[key])
            self._counts[key] = counts, counts._version
        return bool(new)

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


def kind_of(entry: Entry, layer: Layer, values: Tensor) -> object | None:
    """Layers side by side that have the same one can be stepped as one; None: their states are not known."""
    kind: list[object] = []
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

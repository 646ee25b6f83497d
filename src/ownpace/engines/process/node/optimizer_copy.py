"""A user's torch optimizer, described so that a parameter server can build the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import nn
from torch.optim import Optimizer

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.values import Shard
from ownpace.core.learning.group_settings import as_numbers, count_numbers
from ownpace.core.learning.layout import Layer
from ownpace.core.learning.optimizer import Build

_NUMBERS = (bool, int, float, str)
# What torch itself notes on an optimizer: it says nothing about how steps are made.
_TORCHS = ("_step_supports_amp_scaling", "_opt_called", "_need_device_dtype_check_for_fused")


@dataclass(frozen=True)
class OptimizerCopy:
    """The class of an optimizer, the options of its parameter groups, and which layer belongs to which group."""

    kind: type[Optimizer]
    groups: list[dict[str, object]]
    group_of_layer: list[int]

    @classmethod
    def of(cls, optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> OptimizerCopy:
        """Describe an optimizer over these parameters."""
        groups: list[dict[str, object]] = []
        places: dict[int, int] = {}
        for number, group in enumerate(optimizer.param_groups):
            options = {key: value for key, value in group.items() if key != "params"}
            # A learning rate may be a tensor (capturable optimizers); numbers can be compared and sent.
            groups.append({key: as_numbers(value) for key, value in options.items()})
            places.update({id(parameter): number for parameter in group["params"]})
        return cls(type(optimizer), groups, [places[id(parameter)] for parameter in parameters])

    def check(self, optimizer: Optimizer) -> None:
        """Raise if a parameter server could not make the same optimizer, in a process of its own.

        Raises:
            InputError: Why not.
        """
        name, instead = self.kind.__qualname__, "use an algorithm without servers, such as pace"
        if self.kind.__module__ == "__main__" or "<locals>" in name:
            raise InputError(
                f"{name} is defined in the script itself, where parameter servers cannot import it from; put it into a "
                f"module of its own, or {instead}"
            )
        try:
            built = self.build([nn.Parameter(torch.zeros(1)) for _ in self.group_of_layer])
        except Exception as error:
            raise InputError(
                f"{name} cannot be made again on parameter servers ({type(error).__name__}: {error}); {instead}"
            ) from error
        for key, value in vars(optimizer).items():
            if isinstance(value, _NUMBERS) and key not in _TORCHS and vars(built).get(key, value) != value:
                raise InputError(
                    f"{name} keeps {key}={value!r} outside of its parameter groups, which parameter servers would not "
                    f"know of; {instead}"
                )

    @property
    def words(self) -> str:
        """How it is described to a person."""
        settings = [{k: v for k, v in sorted(group.items()) if not isinstance(v, dict)} for group in self.groups]
        return f"{self.kind.__qualname__} {settings[0] if len(settings) == 1 else settings}"

    def build(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """The optimizer over all layers."""
        return self._over(range(len(self.group_of_layer)))(parameters)

    def for_shard(self, layers: Sequence[Layer], shard: Shard) -> tuple[Build, list[int]]:
        """Makes the optimizer over the layers of a shard; and which of all groups' settings are those of its groups."""
        mine = [i for i, layer in enumerate(layers) if shard.start <= layer.start < shard.stop]
        stops = list(accumulate(count_numbers(self.groups), initial=0))
        groups = sorted({self.group_of_layer[i] for i in mine})
        return self._over(mine), [place for group in groups for place in range(stops[group], stops[group + 1])]

    def _over(self, layers: Sequence[int]) -> Build:
        def build(parameters: Iterable[nn.Parameter]) -> Optimizer:
            members: dict[int, list[nn.Parameter]] = {}
            for layer, parameter in zip(layers, parameters, strict=False):  # one vector may stand for all
                members.setdefault(self.group_of_layer[layer], []).append(parameter)
            groups = [{**self.groups[number], "params": group} for number, group in sorted(members.items())]
            return self.kind(groups, lr=self.groups[0]["lr"])  # type: ignore[call-arg]  # every optimizer has one

        return build

"""One step of an optimizer, made range by range of the parameters, as their gradients arrive.

An optimizer that treats every number by itself makes the same bits of them however they are divided. What was there
before stays as it is until the whole step is made: a sum of which some layers never arrive must leave no trace.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ownpace.core.learning.group_settings import GroupSettings

Entry = dict[str, object]
"""The optimizer's state of one vector."""


class RangeSteps:
    """One step over a flat vector, of an optimizer with one group that has the whole vector for its parameter."""

    def __init__(
        self,
        optimizer: Optimizer,
        settings: GroupSettings,
        before: tuple[Tensor, Entry],
        samples: int,
        lr_factor: float,
    ) -> None:
        self._optimizer = optimizer
        self._settings = settings
        self._old, self._old_entry = before
        self._samples = samples
        self._lr_factor = lr_factor
        self._is_plain_sgd = is_plain_sgd(optimizer)
        self._entry: Entry = {}
        self.values = self._old
        """The parameters after the step, where it is made already."""

    def are_possible(self) -> bool:
        """Whether the state is that of an optimizer that has made a step: the first one makes the state itself."""
        if type(self._optimizer) is torch.optim.SGD and self._optimizer.param_groups[0]["momentum"]:
            return isinstance(self._old_entry.get("momentum_buffer"), Tensor)
        return self._is_plain_sgd or bool(self._old_entry)

    def begin(self, spare: tuple[Tensor, Entry] | None) -> None:
        """Make the step in this memory: parameters and state as they were two steps before, say."""
        old_entry = self._old_entry
        self.values, entry = (torch.empty_like(self._old), {}) if spare is None else spare
        self._entry = {
            key: entry.get(key, torch.empty_like(value)) if self._is_whole(value) else value  # type: ignore[arg-type]
            for key, value in old_entry.items()
        }

    @property
    def state(self) -> Entry:
        """The state after the step."""
        return self._entry

    def _is_whole(self, value: object) -> bool:
        return isinstance(value, Tensor) and value.shape == self._old.shape

    def step(self, part: slice, total: Tensor) -> None:
        """Step a range with the sum of the samples' gradients there."""
        if self._is_plain_sgd:
            self._sgd(part, total)
            return
        values = self.values[part].copy_(self._old[part])
        parameter, entry = nn.Parameter(values), self._part_of_state(part)
        parameter.grad = total / self._samples
        group = self._optimizer.param_groups[0]
        usual, group["params"] = group["params"], [parameter]
        self._optimizer.state[parameter] = dict(entry)
        try:
            with self._settings.applied((), self._lr_factor):
                self._optimizer.step()
            self._take(part, entry, self._optimizer.state[parameter])
        finally:
            group["params"] = usual
            self._optimizer.state.clear()

    def _part_of_state(self, part: slice) -> Entry:
        entry: Entry = {}
        for key, old in self._old_entry.items():
            new = self._entry[key]
            if self._is_whole(old) and isinstance(old, Tensor) and isinstance(new, Tensor):
                entry[key] = new[part].copy_(old[part])
            else:  # a count of steps, say: each range counts from what it was before
                entry[key] = old.clone() if isinstance(old, Tensor) else old
        return entry

    def _take(self, part: slice, given: Entry, made: Entry) -> None:
        for key, value in made.items():
            whole = self._entry.get(key)
            if not self._is_whole(self._old_entry.get(key)):
                self._entry[key] = value
            elif value is not given[key]:  # some optimizers replace a tensor instead of writing to it
                assert isinstance(whole, Tensor)
                assert isinstance(value, Tensor)
                whole[part] = value

    def _sgd(self, part: slice, total: Tensor) -> None:
        """SGD, which everything is compared with, written out; `FlatOptimizer` does the same to the whole vector."""
        group = self._optimizer.param_groups[0]
        lr, momentum, decay = group["lr"] * self._lr_factor, group["momentum"], group["weight_decay"]
        old = self._old[part]
        if momentum:
            before, after = self._old_entry["momentum_buffer"], self._entry["momentum_buffer"]
            assert isinstance(before, Tensor)
            assert isinstance(after, Tensor)
            moves = torch.mul(before[part], momentum, out=after[part]).add_(total, alpha=1 / self._samples)
        else:
            moves = total / self._samples
        if decay:
            moves.add_(old, alpha=decay)
        torch.add(old, moves, alpha=-lr, out=self.values[part])

    def keep_state(self) -> None:
        """Nothing is left to come. A schedule may have set momentum to 0 for now: the buffer stays as it was."""
        if self._is_plain_sgd and not self._optimizer.param_groups[0]["momentum"]:
            self._entry = self._old_entry


def is_plain_sgd(optimizer: Optimizer) -> bool:
    """Whether it is torch's SGD in its usual form."""
    if type(optimizer) is not torch.optim.SGD:
        return False
    # Looked at for every step: all of these are settings, which may change.
    group = optimizer.param_groups[0]
    return not (group["nesterov"] or group["dampening"] or group["maximize"])


__all__ = ["RangeSteps", "is_plain_sgd"]

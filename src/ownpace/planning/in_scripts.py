"""A choice for a training script of the user's own: its model cannot be tried, so that speed has to decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.task import Samples, Task, TensorSamples
from ownpace.fleet import Fleet
from ownpace.planning.by_speed import best_by_speed
from ownpace.planning.candidates import candidates
from ownpace.planning.driving import drive
from ownpace.planning.pool import Here
from ownpace.planning.results import Choice
from ownpace.planning.study import timed
from ownpace.planning.timing import Timing
from ownpace.run import Config

IN_SCRIPTS = ("sync", "balanced", "pace", "stride", "diloco")
"""Without servers, which would have to be there from the beginning."""
NUM_LAYERS = 32


@dataclass(frozen=True)
class ChosenBySpeed:
    """What to take, and how fast each is."""

    choice: Choice
    timings: Mapping[str, Timing]


def choose_by_speed(
    fleet: Fleet,
    num_parameters: int,
    batch_size: int,
    *,
    micro_batch: int | None = None,
    bytes_per_parameter: int = 4,
    algorithms: Sequence[str] = IN_SCRIPTS,
) -> ChosenBySpeed:
    """Choose among algorithms by samples/s alone, for a model of this size on this fleet; it takes about a second.

    Raises:
        InputError: A machine of the fleet has no pace, or a name is unknown.
    """
    if not fleet.paced:
        raise InputError("a machine of the fleet has no pace (samples_per_s); measure it first")
    task = Sized(num_parameters, bytes_per_parameter)
    base = Config(engine="virtual", task=task, fleet=fleet, batch_size=batch_size, micro_batch=micro_batch, samples=1)
    entered, _ = candidates(fleet, algorithms)
    num = len(fleet.workers)
    timings = drive({each.algorithm: timed(base, each, num) for each in entered}, Here())
    name = best_by_speed(timings)
    return ChosenBySpeed(Choice(name, {}, None, "", _why(name, timings)), timings)


def _why(name: str, timings: Mapping[str, Timing]) -> str:
    rate = timings[name].samples_per_s
    said = f"{name}: about {rate:,.0f} samples/s, {timings[name].share_of_limit:.0%} of the limit"
    if name != "sync" and "sync" in timings and timings["sync"].samples_per_s > 0:
        said += f", {rate / timings['sync'].samples_per_s:.2g} times sync"
    return said


class Sized(Task):
    """A model of this many parameters, to see how long it is on its way; nothing can be learnt with it."""

    def __init__(self, num_parameters: int, bytes_per_parameter: int = 4) -> None:
        self._sizes = [len(range(part, num_parameters, NUM_LAYERS)) for part in range(NUM_LAYERS)]
        self._dtype = torch.float32 if bytes_per_parameter == 4 else torch.float16

    def model(self) -> nn.Module:
        """Layers without contents."""
        # torch's meta device: of the size alone, whatever it is.
        layers = [torch.empty(size, dtype=self._dtype, device="meta") for size in self._sizes if size]
        return nn.ParameterList(nn.Parameter(layer) for layer in layers)

    def train_samples(self) -> Samples:
        """As many as anybody asks for."""
        return TensorSamples(torch.zeros(1 << 20), torch.zeros(1 << 20))

    def test_samples(self) -> Samples:
        """One."""
        return TensorSamples(torch.zeros(1), torch.zeros(1))

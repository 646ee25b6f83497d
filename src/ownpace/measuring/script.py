"""`ownpace.measure_loop`: the same with a script's own model, optimizer and data, all of which stay as they are."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ownpace.core.contract.errors import InputError
from ownpace.core.settings import positive
from ownpace.drop_in import join
from ownpace.drop_in.data import length
from ownpace.drop_in.random_states import read_states, set_states
from ownpace.engines import is_main_process, num_ranks
from ownpace.engines.process.node.no_trace import no_trace
from ownpace.measuring.measure import sizes_around
from ownpace.measuring.measured import Measured, Setting, check_free, measured
from ownpace.measuring.probe import Findings, Probe

SECONDS = 10.0
_ENDLESS = 10**9


def measure_loop(
    model: nn.Module,
    optimizer: Optimizer,
    loss: Callable[[nn.Module, Any], Tensor],
    data: Any,
    *,
    batch_size: int | None = None,
    seconds: float = SECONDS,
    out: str | Path | None = None,
    overwrite: bool = False,
    **loader: Any,
) -> Measured:
    """Measure how fast machines train your own model, and how fast their network is; write a fleet file.

    Call it on every rank, before `ownpace.join`. Nothing is learnt: parameters, buffers, the optimizer and random
    numbers are afterwards, bit for bit, what they were.

    Args:
        model: On the device where it is trained.
        optimizer: Its own.
        loss: The mean loss of a batch, given the model and what the data gives: `lambda model, batch: …`.
        data: A data set or a DataLoader, as for `fleet.batches`.
        batch_size: Around which batches are measured (None: the DataLoader's).
        seconds: How long to measure, about.
        out: The fleet file to write (None: none).
        overwrite: Whether it may replace one.
        **loader: For torch's DataLoader: num_workers, collate_fn …

    Returns:
        What was found, the same on all ranks.
    """
    size = _size(data, batch_size)
    positive(batch_size=size, seconds=seconds)
    if out is not None and is_main_process():
        check_free(out, overwrite=overwrite)
    device = next((str(parameter.device) for parameter in model.parameters()), "cpu")
    with tempfile.TemporaryDirectory(prefix="ownpace-") as folder:
        report = Path(folder) / "found.json"
        with untouched(model, optimizer, data):
            _run(model, optimizer, loss, data, size, seconds, report, loader)
        found = Findings.from_json(report.read_text())
    setting = Setting("a script's", type(model).__name__, size, device, f"{datetime.now():%Y-%m-%d %H:%M}")
    result = measured(setting, found)
    return _written(result, out, overwrite)


def _written(result: Measured, out: str | Path | None, overwrite: bool) -> Measured:
    if out is not None and is_main_process():
        result.write(out, overwrite=overwrite)
    return result


def _size(data: object, given: int | None) -> int:
    """The batch size: as given, or the loader's."""
    if isinstance(data, Iterator):
        raise InputError("measure_loop was given an iterator, which can be read once; give what it is made from")
    size = getattr(data, "batch_size", None) if given is None else given
    if not isinstance(size, int):
        raise InputError("measure_loop was given no batch_size; add batch_size=…")
    return size


def _run(
    model: nn.Module,
    optimizer: Optimizer,
    loss: Callable[[nn.Module, Any], Tensor],
    data: Any,
    batch_size: int,
    seconds: float,
    report: Path,
    loader: dict[str, Any],
) -> None:
    """The loop of a script, with the probe as its algorithm."""
    most = length(data.dataset if isinstance(data, DataLoader) else data)
    sizes = sizes_around(batch_size, _ENDLESS if most is None else most)
    reading = Reading()
    probe = Probe(
        sizes=sizes, seconds=seconds, loading=reading.per_sample, report=report, all_write=num_ranks() is not None
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as of updates that are larger than asked for: it trains nothing
        with join(probe, quiet=True, on_failure="stop") as fleet:
            model, optimizer = fleet.wrap(model, optimizer)
            for batch in reading.timed(fleet.batches(data, batch_size=max(sizes), updates=_ENDLESS, **loader)):
                loss(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()


class Reading:
    """How long a script waits for its data."""

    def __init__(self) -> None:
        self._seconds: list[float] = []

    def timed(self, batches: Any) -> Iterator[Any]:
        """The same batches."""
        iterator = iter(batches)
        while True:
            begun = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._seconds.append(time.perf_counter() - begun)
            yield batch

    def per_sample(self, samples: int) -> float:
        """Seconds of reading for each sample, where all that was read so far had this many."""
        # The first brings its loader's workers about.
        return sum(self._seconds[1:]) / max(1, samples)


@contextmanager
def untouched(model: nn.Module, optimizer: Optimizer, data: object = None) -> Iterator[None]:
    """Whatever is done to these within, and to random numbers, is undone."""
    parameters = {id(each): each for each in model.parameters()}
    parameters |= {id(each): each for group in optimizer.param_groups for each in group["params"]}
    held = [(each, each.data, each.detach().clone(), each.grad) for each in parameters.values()]
    buffers = [(module, name, buffer) for module in model.modules() for name, buffer in module._buffers.items()]
    values = [None if buffer is None else buffer.detach().clone() for _, _, buffer in buffers]
    states = read_states()
    generators = [(each, each.get_state()) for each in _generators(data)]
    for each, *_ in held:
        each.grad = None  # so that what is in it stays
    try:
        # The optimizer works on copies of all it has meanwhile.
        with no_trace([optimizer], torch.zeros(1)):
            yield
    finally:
        with torch.no_grad():
            for each, data_, value, grad in held:
                each.data = data_.copy_(value)  # its own memory again, not that of the fleet
                each.grad = grad
            for (module, name, buffer), was in zip(buffers, values, strict=True):
                if buffer is not None and was is not None:
                    buffer.copy_(was)
                module._buffers[name] = buffer
        set_states(states)
        for generator, state in generators:
            generator.set_state(state)


def _generators(data: object) -> list[torch.Generator]:
    """Those of a DataLoader, which draws from them whenever it is gone through."""
    holders = [data, getattr(data, "sampler", None)]
    found = [getattr(each, "generator", None) for each in holders]
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())

"""`ownpace.measure`: how fast the machines are with a task, and what is between them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import torch
from torch import Tensor, nn

from ownpace.core.contract.errors import InputError, Interrupted
from ownpace.core.learning.dataset_samples import Data, samples_to_learn, samples_to_test
from ownpace.core.learning.task import Score, Task, TensorSamples
from ownpace.core.settings import positive
from ownpace.engines import is_main_process, num_ranks, run_process
from ownpace.engines.job import Job, OnProgress
from ownpace.fleet import full_speed
from ownpace.measuring.measured import Measured, Setting, check_free, measured
from ownpace.measuring.probe import Findings, Probe
from ownpace.run.config import Config
from ownpace.run.names import task_of
from ownpace.run.saved import label

SECONDS = 20.0
MOST_PROCESSES = 1024
"""On one machine: each takes half a gigabyte, and more would only bring it down."""
LAST_S = 1e9
"""When the run would end by itself; it ends with the measurement."""


def measure(
    task: str | Task = "digits",
    *,
    task_parameters: Mapping[str, object] | None = None,
    model: str | None = None,
    batch_size: int = 32,
    workers: int | None = None,
    seconds: float = SECONDS,
    out: str | Path | None = None,
    overwrite: bool = False,
    **more: object,
) -> Measured:
    """Measure how fast machines compute a task's gradients, and how fast their network is; write a fleet file.

    Under torchrun, its ranks are measured; else processes of this machine. All compute at the same time.

    Args:
        task: A name, or a task of your own.
        task_parameters: Those of the task of that name.
        model: One of the task's.
        batch_size: Around which micro-batches are measured: from a quarter of it to twice as many samples.
        workers: Processes of this machine (None: one).
        seconds: How long to measure, about.
        out: The fleet file to write (None: none).
        overwrite: Whether it may replace one.
        **more: Other fields of `ownpace.Config`: device, precision, optimizer …

    Returns:
        What was found, the same on all ranks.
    """
    given: dict[str, object] = {"task_parameters": dict(task_parameters or {}), "model": model, **more}
    make: Callable[..., Config] = Config
    config = make(task=task, batch_size=batch_size, **given)
    return measure_config(config, workers=workers, seconds=seconds, out=out, overwrite=overwrite)


def measure_config(
    config: Config,
    *,
    workers: int | None = None,
    seconds: float = SECONDS,
    out: str | Path | None = None,
    overwrite: bool = False,
    on_progress: OnProgress | None = None,
    on_start: Callable[[], None] = lambda: None,
) -> Measured:
    """The same with the task, the batch size, the optimizer and the device of a run.

    `on_start` is called once everything that was given is known to be right.
    """
    positive(seconds=seconds, workers=workers, batch_size=config.batch_size)
    if workers is not None and workers > MOST_PROCESSES:
        raise InputError(f"workers is {workers:,}; one machine takes {MOST_PROCESSES:,} processes at most")
    if out is not None and is_main_process():  # before a minute is spent
        check_free(out, overwrite=overwrite)
    with tempfile.TemporaryDirectory(prefix="ownpace-") as folder:
        report = Path(folder) / "found.json"
        job = _job(config, workers, seconds, report)
        on_start()
        outcome = run_process(job, _ignore, on_progress)
        if isinstance(outcome.error, Interrupted):
            raise Interrupted("interrupted; nothing was measured, and nothing written")
        if outcome.error is not None:
            raise outcome.error
        found = Findings.from_json(report.read_text())
    when = f"{datetime.now():%Y-%m-%d %H:%M}"
    setting = Setting(label(config.task), job.labels["model"], config.batch_size, config.device, when)
    result = measured(setting, found)
    if out is not None and is_main_process():
        result.write(out, overwrite=overwrite)
    return result


def _job(config: Config, workers: int | None, seconds: float, report: Path) -> Job:
    """The run that measures."""
    task = task_of(config.task, config.model, config.task_parameters)
    sizes = sizes_around(config.batch_size, len(samples_to_learn(task)))
    ranks = num_ranks()
    if ranks is not None and workers not in (None, ranks):
        raise InputError(
            f"workers is {workers}, but torchrun started {ranks} processes, which are measured; leave it out"
        )
    fleet = config.fleet
    if fleet is not None and workers is not None:
        raise InputError(f"workers is {workers} and there is a fleet, which says how many there are; give one of them")
    described = replace(config, fleet=fleet or full_speed(ranks or workers or 1), seconds=LAST_S)
    job = replace(described, algorithm="sync", parameters={}, samples=None, epochs=None, target=None).job()
    return replace(
        job,
        algorithm=Probe(sizes=sizes, seconds=seconds, task=task, report=report, all_write=ranks is not None),
        task=OneTest(task),
        batch_size=max(sizes),
        micro_batch=None,
        detail=False,
        on_failure="stop",
    )


def sizes_around(batch_size: int, most: int) -> tuple[int, ...]:
    """Of the micro-batches that are measured: from a quarter of the batch size to twice as many."""
    if batch_size > most:
        raise InputError(f"batch_size is {batch_size}, more than the {most} training samples; use at most {most}")
    return tuple(sorted({min(most, max(1, batch_size * part // 4)) for part in (1, 2, 4, 8)}))


class OneTest(Task):
    """A task with one sample to test: the model's accuracy is not asked for, and evaluating it would take cores."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def model(self) -> nn.Module:
        """The task's own."""
        return self.task.model()

    def train_samples(self) -> Data:
        """The task's own."""
        return samples_to_learn(self.task)

    def test_samples(self) -> Data:
        """The first."""
        inputs, targets = samples_to_test(self.task).pick(torch.zeros(1, dtype=torch.long))
        return TensorSamples(inputs, targets)

    def objective(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The task's own."""
        return self.task.objective(model, inputs, targets)

    def score(self, model: nn.Module, samples: Data, chunk: int = 2000) -> Score:
        """The task's own."""
        return self.task.score(model, samples, chunk)

    def layer_work(self) -> Mapping[str, float] | None:
        """The task's own."""
        return self.task.layer_work()


def _ignore(event: object) -> None:
    pass

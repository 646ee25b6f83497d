"""One run from names to files: what the command line and `ownpace.train` both do.

This is the only place where names become algorithms, tasks and fleets, and where run folders are written.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, get_args

from safetensors.torch import save_file

from ownpace.algorithms import DEFAULT, make_algorithm
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError, OwnpaceError, unknown
from ownpace.core.contract.events import Event, to_line
from ownpace.core.learning.optimizer import Build, OptimizerSpec
from ownpace.core.learning.sampling import Sampling
from ownpace.core.learning.schedule import Schedule, ScheduleShape
from ownpace.core.learning.task import Task
from ownpace.core.settings import positive
from ownpace.engines import ENGINES, Job, is_main_process, num_ranks
from ownpace.engines.job import Evaluate, OnProgress, Precision
from ownpace.fleet import Fleet, read_fleet
from ownpace.report.summary import Summary, SummaryBuilder
from ownpace.tasks import TASKS, make_task

DEFAULT_EPOCHS = 20
MOST_SAMPLES = 10**15
CONFIG, EVENTS, MODEL, SUMMARY = "config.json", "events.jsonl", "model.safetensors", "summary.json"


@dataclass(frozen=True, kw_only=True)
class Config:
    """A run, complete, in the words that users use. It is saved beside the results."""

    algorithm: str | Algorithm = DEFAULT
    """A name, or an algorithm of your own."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Those of the algorithm of that name."""
    task: str | Task = "digits"
    """A name, or a task of your own."""
    task_parameters: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    fleet: str | Fleet | None = None
    """None: one worker for each process that torchrun started, at full speed; without torchrun, paces 4:2:1:1."""
    engine: str | None = None
    """None: `process` under torchrun, else `virtual`."""
    batch_size: int = 32
    """Samples that each worker contributes to one update."""
    micro_batch: int | None = None
    """Samples of one gradient computation (None: the whole batch)."""
    optimizer: str | Build = "sgd"
    """A name, or a function that makes a torch optimizer of parameters, and then has lr and the rest its own way."""
    lr: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: str = "constant"
    warmup_samples: int = 0
    samples: int | None = None
    epochs: float | None = None
    """Without samples, epochs and seconds: 20 epochs."""
    seconds: float | None = None
    target: float | None = None
    stop_at_target: bool = False
    eval_every: int | None = None
    evaluate: str = "during"
    """On processes: judge the model beside the training, or keep snapshots and judge them `after` it."""
    seed: int = 0
    sampling: str = "queue"
    timing_only: bool = False
    cuda_graphs: bool = False
    """On a card: record gradients once and replay them, which saves Python's time where micro-batches are short."""
    detail: bool = True
    device: str = "cpu"
    precision: str = "float32"
    """What forward passes are computed in: float32, bfloat16 or float16 (autocast)."""

    def job(self) -> Job:
        """The same with names turned into things, checked.

        Raises:
            InputError: A name is unknown or a value cannot be used.
        """
        _ = self.engine_name  # raises if it is unknown
        for name, value, known in (
            ("sampling", self.sampling, get_args(Sampling)),
            ("schedule", self.schedule, get_args(ScheduleShape)),
            ("precision", self.precision, get_args(Precision)),
            ("evaluate", self.evaluate, get_args(Evaluate)),
        ):
            if value not in known:
                raise unknown(name, value, known)
        algorithm = self.algorithm
        if isinstance(algorithm, str):
            algorithm = make_algorithm(algorithm, self.parameters)
        task = self.task
        if isinstance(task, str):
            task = make_task(task, self.model, self.task_parameters)
        fleet = self.fleet if isinstance(self.fleet, Fleet) else read_fleet(self.fleet or default_fleet())
        optimizer = OptimizerSpec(
            name=self.optimizer if isinstance(self.optimizer, str) else "sgd",
            custom=None if isinstance(self.optimizer, str) else self.optimizer,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            schedule=Schedule(shape=self.schedule, warmup_samples=self.warmup_samples),  # type: ignore[arg-type]
        )
        return Job(
            algorithm=algorithm,
            task=task,
            fleet=fleet,
            optimizer=optimizer,
            batch_size=self.batch_size,
            micro_batch=self.micro_batch,
            samples=self._num_samples(task),
            seconds=self.seconds,
            target=self.target,
            stop_at_target=self.stop_at_target,
            eval_every=self.eval_every,
            evaluate=self.evaluate,  # type: ignore[arg-type]  # checked above
            seed=self.seed,
            sampling=self.sampling,  # type: ignore[arg-type]  # checked above
            timing_only=self.timing_only,
            cuda_graphs=self.cuda_graphs,
            detail=self.detail,
            device=self.device,
            precision=self.precision,  # type: ignore[arg-type]  # checked above
            labels={
                "algorithm": self.algorithm if isinstance(self.algorithm, str) else type(self.algorithm).__name__,
                "task": self.task if isinstance(self.task, str) else type(self.task).__name__,
                "model": self.model or (TASKS[self.task].models[0] if isinstance(self.task, str) else ""),
            },
        )

    @property
    def engine_name(self) -> str:
        """The engine that runs this."""
        name = self.engine or ("virtual" if num_ranks() is None else "process")
        if name not in ENGINES:
            raise unknown("engine", name, ENGINES)
        return name

    def _num_samples(self, task: Task) -> int | None:
        if self.samples is not None and self.epochs is not None:
            raise InputError(f"samples is {self.samples} and epochs is {self.epochs}; give one of them")
        positive(epochs=self.epochs)
        if self.samples is not None or (self.epochs is None and self.seconds is not None):
            return self.samples
        epochs = DEFAULT_EPOCHS if self.epochs is None else self.epochs
        samples = round(min(epochs * len(task.train_samples()), MOST_SAMPLES))
        if not 0 < samples < MOST_SAMPLES:
            raise InputError(f"epochs is {epochs}, which makes {samples:,} samples; choose another number")
        return samples


@dataclass(frozen=True)
class Result:
    """What came out of a run."""

    summary: Summary
    wall_seconds: float
    error: OwnpaceError | None
    folder: Path | None

    def as_dict(self) -> dict[str, object]:
        """The summary and the wall-clock time, ready for JSON."""
        return {**self.summary.as_dict(), "wall_seconds": self.wall_seconds, "out": self.folder and str(self.folder)}


def execute(
    config: Config,
    out: Path | None = None,
    *,
    overwrite: bool = False,
    on_event: Callable[[Event], None] | None = None,
    on_progress: OnProgress | None = None,
) -> Result:
    """Run a configuration to its end and write its folder, whatever that end is.

    Args:
        config: What to run.
        out: The run's folder (None: nothing is written).
        overwrite: Whether the folder may hold an earlier run, which is then replaced.
        on_event: Also gets every event.
        on_progress: Called now and then with the samples so far and the engine's time.

    Returns:
        The result. An error of the run itself (divergence, a dead machine, Ctrl-C) is in it; bad input raises.
    """
    job = config.job()
    if not is_main_process():
        out = None  # rank 0 writes
    started = time.perf_counter()
    builder = SummaryBuilder()
    with RunFolder(out, overwrite=overwrite) as folder:
        folder.write_config(config, job)

        def emit(event: Event) -> None:
            builder.take(event)
            folder.write_event(event)
            if on_event is not None:
                on_event(event)

        try:
            outcome = ENGINES[config.engine_name](job, emit, on_progress)
        except InputError:
            folder.discard()
            raise
        result = Result(builder.summary(), time.perf_counter() - started, outcome.error, out)
        folder.write_result(result, outcome.model)
    return result


def train(out: str | Path | None = None, *, overwrite: bool = False, **config: Any) -> Result:
    """Train, in one call: `ownpace.train(algorithm="sync", task="digits", fleet="4,2,1,1", epochs=5)`.

    Args:
        out: The run's folder (None: nothing is written).
        overwrite: Whether that folder may hold an earlier run.
        **config: The fields of `ownpace.Config`.

    Raises:
        OwnpaceError: Bad input, or the run ended early: it diverged, or a machine died.

    >>> train(task="quadratic", fleet="2,1", epochs=4, momentum=0.9, lr=0.05).summary.loss < 10
    True
    """
    known = list(Config.__dataclass_fields__)
    for name in config:
        if name not in known:
            raise unknown("argument", name, known)
    result = execute(Config(**config), None if out is None else Path(out), overwrite=overwrite)
    if result.error is not None:
        raise result.error
    return result


class RunFolder:
    """The files of one run: resolved configuration, events, model, summary. Without a path it swallows them."""

    def __init__(self, path: Path | None, *, overwrite: bool) -> None:
        self._path = path
        if path is None:
            return
        self.check(path, overwrite=overwrite)
        try:
            path.mkdir(parents=True, exist_ok=True)
            for name in (MODEL, SUMMARY):
                (path / name).unlink(missing_ok=True)
            self._events = (path / EVENTS).open("w", encoding="utf-8")
        except OSError as error:
            raise InputError(f"the folder {path} cannot be written: {error}; choose another with --out") from None

    @staticmethod
    def check(path: Path, *, overwrite: bool) -> None:
        """Raise if a run must not be written there."""
        try:
            if path.exists() and not path.is_dir():
                raise InputError(f"{path} is a file; --out takes a folder")
            if (path / CONFIG).exists() and not overwrite:
                raise InputError(f"{path} already holds a run; choose another folder with --out, or add --overwrite")
        except OSError as error:
            raise InputError(f"the folder {path} cannot be used: {error}; choose another with --out") from None

    def discard(self) -> None:
        """Remove what was written, because nothing could be run."""
        if self._path is not None:
            self._events.close()
            for name in (CONFIG, EVENTS):
                (self._path / name).unlink(missing_ok=True)
            if not any(self._path.iterdir()):
                self._path.rmdir()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *details: object) -> None:
        if self._path is not None:
            self._events.close()

    def write_config(self, config: Config, job: Job) -> None:
        """Save what is run, every name resolved."""
        given = {name: getattr(config, name) for name in Config.__dataclass_fields__}
        resolved = {
            **given,
            "algorithm": job.labels["algorithm"],
            "parameters": _fields(job.algorithm),
            "task": job.labels["task"],
            "task_parameters": {name: value for name, value in _fields(job.task).items() if name != "model_name"},
            "optimizer": config.optimizer if isinstance(config.optimizer, str) else repr(config.optimizer),
            "model": job.labels["model"],
            "fleet": asdict(job.fleet),
            "engine": config.engine_name,
            "samples": job.samples,
            "micro_batch": job.micro_batch or job.batch_size,
        }
        self._write_json(CONFIG, resolved)

    def write_event(self, event: Event) -> None:
        """Append one event."""
        if self._path is not None:
            self._events.write(to_line(event) + "\n")

    def write_result(self, result: Result, model: Mapping[str, Any]) -> None:
        """Save the summary and, if there is one, the model."""
        if self._path is not None and model:
            save_file({name: value.cpu().contiguous() for name, value in model.items()}, self._path / MODEL)
        self._write_json(SUMMARY, result.as_dict())

    def _write_json(self, name: str, content: object) -> None:
        if self._path is not None:
            text = json.dumps(content, indent=2, allow_nan=False)
            (self._path / name).write_text(text + "\n", encoding="utf-8")


def default_fleet() -> str:
    """The fleet that is meant when none is named."""
    ranks = num_ranks()
    return "4,2,1,1" if ranks is None else f"x{ranks}"


def _fields(thing: object) -> dict[str, Any]:
    """The fields of a dataclass; of anything else, how it shows itself."""
    if is_dataclass(thing) and not isinstance(thing, type):
        return asdict(thing)
    return {"repr": repr(thing)}

"""The description of a run. The command line, `ownpace.train` and the file in a run's folder all come from `Config`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ownpace.algorithms import ALGORITHMS, DEFAULT
from ownpace.core.choices import OPTIMIZERS, Evaluate, OnFailure, Precision, Sampling
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.learning.schedule import ScheduleShape
from ownpace.core.own_code import absolute
from ownpace.core.settings import not_negative, positive, values_of
from ownpace.core.whole_file import write_text
from ownpace.fleet import PRESETS, Fleet, read_fleet
from ownpace.run.fields import check_type, helps_of, types_of
from ownpace.run.help import FAIL, LEARN, RUN, STOP, WRITE, Help
from ownpace.tasks import TASKS

if TYPE_CHECKING:  # and in functions below: these need torch, for which `--help` must not wait
    from ownpace.core.learning.optimizer import Build
    from ownpace.core.learning.task import Task
    from ownpace.engines import Job

CONFIG = "config.json"
Engine = Literal["virtual", "process"]


def _names(names: Iterable[str]) -> str:
    return ", ".join(names)


@dataclass(frozen=True, kw_only=True)
class Config:
    """A complete run, as users describe it. It is saved next to the results.

    Where the command line takes a name, Python also takes the thing itself: an Algorithm, a Task, a Fleet, or a
    function that makes a torch optimizer of parameters (which then has a learning rate and options of its own).

    To add an option to all of these, add a field here.
    """

    algorithm: Annotated[
        str | Algorithm, Help(f"How to train: {_names(ALGORITHMS)}, my.py:Class, or auto: choose for me.", RUN)
    ] = DEFAULT
    parameters: Annotated[
        Mapping[str, object], Help("Parameters of the algorithm.", RUN, "-p/--parameter", "NAME=VALUE")
    ] = field(default_factory=dict)
    task: Annotated[str | Task, Help(f"What to train: {_names(TASKS)}, or my.py:Class.", RUN)] = "digits"
    task_parameters: Annotated[
        Mapping[str, object], Help("Parameters of the task.", RUN, "-t/--task-parameter", "NAME=VALUE")
    ] = field(default_factory=dict)
    model: Annotated[str | None, Help("One of the task's models (default: its first).", RUN)] = None
    fleet: Annotated[
        str | Fleet | Sequence[float] | None,
        Help(
            f"A preset ({_names(PRESETS)}), relative paces (4,2,1,1; 1 is 1000 samples/s), x4 for four workers at full "
            "speed, or a .toml file (default: 4,2,1,1; under torchrun, its processes at full speed).",
            RUN,
        ),
    ] = None
    engine: Annotated[
        Engine | None,
        Help(
            "Simulate the run in virtual time, or run it on processes (default: virtual; under torchrun, process).", RUN
        ),
    ] = None
    seed: Annotated[int, Help("In virtual time, the same seed gives the same run, byte for byte.", RUN)] = 0
    timing_only: Annotated[bool, Help("Simulate time alone, without gradients.", RUN)] = False
    device: Annotated[str, Help("Where gradients are computed: cpu, cuda, cuda:1 …", RUN)] = "cpu"
    precision: Annotated[Precision, Help("The number format of forward passes (autocast).", RUN)] = "float32"
    cuda_graphs: Annotated[
        bool,
        Help("On a GPU, record each gradient once and replay it; every forward pass must do the same.", RUN),
    ] = False

    batch_size: Annotated[int, Help("Samples of each worker per update.", LEARN)] = 32
    micro_batch: Annotated[int | None, Help("Samples per gradient computation at most (default: all).", LEARN)] = None
    optimizer: Annotated[str | Build, Help(f"The optimizer: {_names(OPTIMIZERS)}.", LEARN)] = "sgd"
    lr: Annotated[
        float | None, Help("Learning rate (default: the task's; with momentum, less; with acco, more).", LEARN)
    ] = None
    momentum: Annotated[float | None, Help("Momentum (sgd, rmsprop; default: the task's, for sgd).", LEARN)] = None
    nesterov: Annotated[bool, Help("Nesterov's momentum (sgd).", LEARN)] = False
    weight_decay: Annotated[float, Help("Weight decay.", LEARN)] = 0.0
    clip_norm: Annotated[
        float | None, Help("Shorten the gradient of each optimizer step to this length (default: never).", LEARN)
    ] = None
    schedule: Annotated[
        ScheduleShape | None, Help("How the learning rate changes over the samples (default: the task's).", LEARN)
    ] = None
    warmup_samples: Annotated[int, Help("Raise the learning rate linearly over this many samples.", LEARN)] = 0
    sampling: Annotated[
        Sampling,
        Help("Draw samples from a shared queue, with replacement, or from a share for each worker.", LEARN),
    ] = "queue"

    samples: Annotated[int | None, Help("Stop after this many samples.", STOP)] = None
    epochs: Annotated[
        float | None, Help("Stop after this many epochs (default: the task's, if nothing else ends it).", STOP)
    ] = None
    seconds: Annotated[float | None, Help("Stop after this many seconds of the engine's clock.", STOP)] = None
    target: Annotated[
        float | None, Help("The test accuracy to time, as in 0.95: two evaluations in a row must meet it.", STOP)
    ] = None
    target_loss: Annotated[float | None, Help("The test loss to time, instead of an accuracy.", STOP)] = None
    stop_at_target: Annotated[bool, Help("Stop as soon as the target is reached.", STOP)] = False
    eval_every: Annotated[int | None, Help("Samples between evaluations (default: at most 40 in a run).", STOP)] = None
    evaluate: Annotated[
        Evaluate,
        Help("On processes: evaluate the model during the run, or keep snapshots and evaluate them after it.", STOP),
    ] = "during"

    checkpoint_every: Annotated[
        int | None,
        Help("Samples between checkpoints; 0: none (default: on processes about every minute).", FAIL),
    ] = None
    checkpoints_kept: Annotated[int, Help("Keep this many checkpoints, the newest ones.", FAIL)] = 2
    on_failure: Annotated[
        OnFailure, Help("When a machine dies: go on without it, have it started again, or end the run.", FAIL)
    ] = "continue"
    min_workers: Annotated[int, Help("End the run if fewer workers than this are left.", FAIL)] = 1
    max_workers: Annotated[
        int | None, Help("With this many workers, let no more join (default: as many as the fleet has).", FAIL)
    ] = None

    detail: Annotated[
        bool, Help("Record each computation, transfer and wait, not only evaluations and sums.", WRITE)
    ] = True
    events_limit_mb: Annotated[
        int,
        Help(
            "Where events take more, keep the detail of the beginning and of the end; 0: no limit.",
            WRITE,
            "--events-limit",
            "MB",
        ),
    ] = 128
    log_files: Annotated[bool, Help("On processes: write one log file per node into the run's folder.", WRITE)] = False

    def __post_init__(self) -> None:
        for name, hint in field_types().items():
            check_type(name, getattr(self, name), hint)

    @classmethod
    def load(cls, path: str | Path, **instead: object) -> Config:
        """The configuration in a file, or in the folder of a run, with these fields instead of its own.

        Raises:
            InputError: The file cannot be read, or something in it cannot be used.
        """
        from ownpace.run import config_file

        with contextlib.suppress(OSError, ValueError):  # a name that no file can have, which reading finds out again
            path = Path(path) / CONFIG if Path(path).is_dir() else path
        path = Path(path)
        make: Callable[..., Config] = cls
        content = config_file.read(path, list(field_types()), instead)
        try:
            return make(**content)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def save(self, path: str | Path) -> None:
        """Write a file that `load` reads."""
        from ownpace.run import config_file

        write_text(Path(path), config_file.to_text(values_of(self)))

    def override(self, **changes: object) -> Config:
        """The same but for these fields.

        What belongs to an earlier value goes with it: a new algorithm or task drops the parameters (and model) of the
        old one, and samples and epochs replace each other. Parameters are added to those there are.
        """
        kept = values_of(self)
        for name, belongings in (
            ("algorithm", {"parameters": {}}),
            ("task", {"task_parameters": {}, "model": None}),
            ("samples", {"epochs": None}),
            ("epochs", {"samples": None}),
        ):
            # Only if it changes: naming the same algorithm again must not drop its parameters.
            if name in changes and absolute(changes[name]) != absolute(kept[name]):
                kept |= belongings
        for name in ("parameters", "task_parameters"):
            given, earlier = changes.get(name), kept[name]
            if isinstance(given, Mapping) and isinstance(earlier, Mapping):
                changes[name] = {**earlier, **given}
        make: Callable[..., Config] = type(self)
        return make(**{**kept, **changes})

    def job(self, out: Path | None = None, *, resumed: bool = False) -> Job:
        """The same with names turned into things, checked. `out` is the run's folder, if it has one.

        A `resumed` run may have fewer workers than its algorithm's parameters ask for, as after a failure.

        Raises:
            InputError: A name is unknown or a value cannot be used.
        """
        from ownpace.engines import Job, check_real
        from ownpace.run.learning import num_samples, optimizer_spec
        from ownpace.run.names import algorithm_of, task_of
        from ownpace.run.saved import label

        if self.log_files and out is None:
            raise InputError("log_files needs a folder to write to; name it with out, or leave log_files out")
        task = task_of(self.task, self.model, self.task_parameters)
        fleet = self.machines()
        not_negative(checkpoint_every=self.checkpoint_every, events_limit_mb=self.events_limit_mb)
        positive(checkpoints_kept=self.checkpoints_kept)
        same: dict[str, Any] = {name: getattr(self, name) for name in shared_with_job()}
        samples = num_samples(self, task)
        algorithm = algorithm_of(self.algorithm, self.parameters)
        if not resumed:
            algorithm.check(len(fleet.workers), self.sampling)
        same["checkpoint_every"] = self.checkpoint_every or None  # with 0, nobody takes checkpoints
        job = Job(
            **same,
            algorithm=algorithm,
            task=task,
            fleet=fleet,
            optimizer=optimizer_spec(self, algorithm, task, samples),
            samples=samples,
            labels={
                "algorithm": label(self.algorithm),
                "task": label(self.task),
                "model": getattr(task, "model_name", ""),
            },
            log_folder=out / "logs" if self.log_files and out is not None else None,
        )
        if self.engine_name == "process":
            check_real(job)
        return job

    def resolved(self, job: Job) -> Config:
        """The same with every name and default spelled out, as its job has them."""
        from ownpace.run.names import spelled_out

        named: dict[str, Any] = spelled_out(self.algorithm, job.algorithm, self.task, job.task)
        optimizer = absolute(self.optimizer)
        # The job has turned epochs into samples, and a file with both would be refused when it is read.
        epochs = self.epochs if job.samples is None else None
        learning = job.optimizer
        named |= {"lr": learning.lr, "momentum": learning.momentum, "schedule": learning.schedule.shape}
        named |= {"engine": self.engine_name, "fleet": job.fleet, "samples": job.samples, "epochs": epochs}
        return replace(self, optimizer=optimizer, **named)

    def machines(self) -> Fleet:
        """The fleet that is meant; where none is named, the default one.

        Raises:
            InputError: There is no such fleet.
        """
        if isinstance(self.fleet, Fleet):
            return self.fleet
        # Of None alone: an empty list is a mistake, and not this fleet.
        return read_fleet(default_fleet() if self.fleet is None else self.fleet)

    @property
    def engine_name(self) -> Engine:
        """The engine that runs this."""
        from ownpace.engines import num_ranks

        return self.engine or ("virtual" if num_ranks() is None else "process")


def help_of(name: str) -> Help:
    """The help of a field."""
    return helps_of(Config)[name]


def default_fleet() -> str:
    """The fleet where none is named."""
    from ownpace.engines import num_ranks

    ranks = num_ranks()
    return "4,2,1,1" if ranks is None else f"x{ranks}"


@cache
def shared_with_job() -> tuple[str, ...]:
    """The fields that `Job` has under the same name and with the same meaning: those that need no resolving."""
    from ownpace.engines import Job

    resolved = {"algorithm", "task", "fleet", "optimizer", "samples"}
    return tuple(field.name for field in fields(Job) if field.name in field_types() and field.name not in resolved)


@cache
def field_types() -> dict[str, object]:
    """Each field's type, without its help."""
    return types_of(Config)

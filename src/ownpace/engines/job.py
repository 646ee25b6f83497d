"""What an engine is given, and what it hands back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ownpace.core.choices import Evaluate, OnFailure, Precision, Sampling
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError, OwnpaceError, shown
from ownpace.core.contract.events import Groups, Run
from ownpace.core.contract.target import Goal
from ownpace.core.learning.dataset_samples import samples_to_learn, samples_to_test
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.core.learning.plain_state import PlainState
from ownpace.core.learning.task import Task
from ownpace.core.settings import at_most, positive
from ownpace.fleet import Fleet, ServerMachine

MOST_SECONDS = 1e12
"""Of a run in virtual time, too: far beyond, a clock that counts seconds cannot tell steps apart."""
OnCheckpoint = Callable[[PlainState], None]
"""Gets the state of a run between two of its generations, when nothing is in flight.

It is called where events are emitted, returns at once on processes, and keeps the state, which must not change then.
"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that decides what a run does."""

    algorithm: Algorithm
    task: Task
    fleet: Fleet
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    batch_size: int = 32
    micro_batch: int | None = None
    """Samples of one gradient computation, at most (None: `batch_size`)."""
    samples: int | None = None
    """Stop after updates of this many samples."""
    seconds: float | None = None
    """Stop after this much of the engine's time."""
    target: float | None = None
    target_loss: float | None = None
    stop_at_target: bool = False
    eval_every: int | None = None
    """Samples between evaluations (None: a fortieth of the run, or a quarter of an epoch, or the test set's size)."""
    evaluate: Evaluate = "during"
    """On processes: evaluate the model during the training, or keep snapshots and evaluate them after it."""
    seed: int = 0
    sampling: Sampling = "queue"
    timing_only: bool = False
    precision: Precision = "float32"
    """What forward passes are computed in; parameters and gradients are what the model has."""
    cuda_graphs: bool = False
    """On a GPU: record the gradient of each size of micro-batch once and replay it. For models that do the same in
    every forward pass."""
    detail: bool = True
    """Whether every compute, transfer, wait and update is recorded, or only evaluations and sums."""
    device: str = "cpu"
    labels: dict[str, str] = field(default_factory=dict)
    """The names of algorithm, task and model in the records."""
    log_folder: Path | None = None
    """Where each node of the process engine writes its log file (None: nowhere)."""
    on_failure: OnFailure = "continue"
    """What the others do when a machine dies: go on without it, have it started again, or end."""
    min_workers: int = 1
    """With fewer than this, the run ends."""
    max_workers: int | None = None
    """With this many, no more may join (None: as many as the fleet has)."""
    checkpoint_every: int | None = None
    """Samples between checkpoints (None: on processes about every minute; in virtual time none)."""
    on_checkpoint: OnCheckpoint | None = None
    """Takes the checkpoints (None: none are made)."""
    last_words: Callable[[], list[str]] | None = None
    """What one of a launcher's processes says when the launcher is gone (None: nothing)."""
    resume_from: PlainState | None = None
    """The checkpoint that the run goes on from."""

    @property
    def goal(self) -> Goal:
        """What is to be reached."""
        return Goal(self.target, self.target_loss)

    @property
    def servers(self) -> tuple[ServerMachine, ...]:
        """The machines of the algorithm's parameter servers, in the order of the layers they own."""
        if not self.algorithm.has_servers:
            return ()
        machines = self.fleet.server or (ServerMachine(),)
        if not self.algorithm.fast_servers_first:
            return machines
        usual = self.fleet.network.bandwidth_bytes_per_s
        return tuple(sorted(machines, key=lambda machine: -(machine.bandwidth_bytes_per_s or usual)))

    @property
    def autocast(self) -> torch.dtype | None:
        """What forward passes are cast to, if to anything."""
        return None if self.precision == "float32" else getattr(torch, self.precision)

    @property
    def evaluations_every(self) -> int:
        """Samples between evaluations: forty a run, or four an epoch, but never more tests than training."""
        if self.eval_every is not None:
            return self.eval_every
        num_test = len(samples_to_test(self.task))
        return max(self.samples // 40 if self.samples else len(samples_to_learn(self.task)) // 4, num_test)

    def lr_factor(self, samples: float) -> float:
        """The schedule's factor on the learning rate after that many samples."""
        return self.optimizer.schedule.factor(samples, self.samples)

    def header(self, engine: str, num_parameters: int, parameter_bytes: int, groups: Groups) -> Run:
        """The first record of a run."""
        return Run(
            algorithm=self.labels.get("algorithm", type(self.algorithm).__name__),
            engine=engine,
            task=self.labels.get("task", type(self.task).__name__),
            model=self.labels.get("model", ""),
            seed=self.seed,
            batch_size=self.batch_size,
            micro_batch=self.micro_batch or self.batch_size,
            num_parameters=num_parameters,
            parameter_bytes=parameter_bytes,
            samples=self.samples,
            target=self.target,
            groups=groups,
            target_loss=self.target_loss,
        )

    def __post_init__(self) -> None:
        positive(
            batch_size=self.batch_size,
            micro_batch=self.micro_batch,
            samples=self.samples,
            seconds=self.seconds,
            eval_every=self.eval_every,
            min_workers=self.min_workers,
            max_workers=self.max_workers,
            checkpoint_every=self.checkpoint_every,
        )
        at_most(MOST_SECONDS, seconds=self.seconds)
        self._check_end()
        self._check_target()
        self._check_workers()
        self._check_batches()
        self._check_device()
        # A server knows only its own layers' gradients, so each would clip by another length.
        if self.optimizer.clip_norm is not None and len(self.servers) > 1:
            raise InputError(
                f"clip_norm is {self.optimizer.clip_norm}, which needs whole gradients, but {len(self.servers)} "
                "servers share the layers; use one server, or leave clip_norm out"
            )

    def _check_end(self) -> None:
        """Raise if nothing says when the run ends, or if what does contradicts itself."""
        if self.samples is None and self.seconds is None:
            raise InputError("nothing says when the run is to end; give samples, epochs or seconds")
        if self.samples is not None and self.fleet.paced and self.seconds is None:
            seconds = self.samples / sum(each.count * (each.samples_per_s or 1.0) for each in self.fleet.machine)
            if seconds > MOST_SECONDS:
                raise InputError(
                    f"{self.samples} samples would take the fleet {seconds:.3g} s; give fewer, or a time to stop at "
                    f"(seconds, at most {MOST_SECONDS:g})"
                )
        shape = self.optimizer.schedule.shape
        if self.samples is None and shape != "constant":
            raise InputError(
                f"schedule '{shape}' needs to know how many samples there will be, but only seconds are given; "
                "give samples or epochs, or use schedule 'constant'"
            )

    def _check_target(self) -> None:
        """Raise if the target can never be reached, or not be noticed in time."""
        if self.target is not None and not 0 < self.target <= 1:
            raise InputError(f"target is {self.target}; it is an accuracy and must be between 0 and 1, as in 0.95")
        positive(target_loss=self.target_loss)
        if self.target is not None and self.target_loss is not None:
            raise InputError(f"target is {self.target} and target_loss is {self.target_loss}; give one of them")
        has_target = self.target is not None or self.target_loss is not None
        if has_target and self.timing_only:
            raise InputError("a target needs gradients, but timing_only simulates time alone; drop one of them")
        if self.evaluate == "after" and self.stop_at_target:
            raise InputError(
                "stop_at_target needs evaluations during the run, but evaluate is 'after'; drop one of them"
            )
        if self.stop_at_target and not has_target:
            raise InputError("stop_at_target needs a target; give one, as in --target 0.95")

    def _check_workers(self) -> None:
        """Raise if the run would end or be full before it has begun."""
        num_workers = len(self.fleet.workers)
        if self.min_workers > num_workers:
            raise InputError(
                f"min_workers is {self.min_workers}, but the fleet has {num_workers} workers; use at most {num_workers}"
            )
        if self.max_workers is not None and self.max_workers < num_workers:
            raise InputError(
                f"max_workers is {self.max_workers}, but the fleet has {num_workers} workers; leave it out, or make "
                f"it {num_workers} or more"
            )

    def _check_batches(self) -> None:
        """Raise if there are not enough samples for the batches."""
        # Where batches are divided by pace, a worker's part may be larger than a batch.
        too_large = self.micro_batch is not None and self.micro_batch > self.batch_size
        if too_large and not self.algorithm.divides_batches:
            raise InputError(
                f"micro_batch is {self.micro_batch}, more than the batch size of {self.batch_size}; "
                "make it smaller or leave it out"
            )
        num_train, num_test = len(samples_to_learn(self.task)), len(samples_to_test(self.task))
        if not num_train or not num_test:
            raise InputError(
                f"the task has {num_train} samples to train on and {num_test} to test on; it needs some of both"
            )
        if self.batch_size > num_train:
            raise InputError(
                f"batch_size is {self.batch_size}, more than the {num_train} training samples; use at most {num_train}"
            )
        if self.sampling == "shards" and len(self.fleet.workers) > num_train:
            raise InputError(
                f"{len(self.fleet.workers)} workers, but only {num_train} training samples to share out; "
                "use sampling 'queue'"
            )

    def _check_device(self) -> None:
        """Raise if gradients cannot be computed there."""
        try:
            # A value is really made there and read: torch accepts the names of devices that are not present.
            torch.zeros(1, device=self.device).item()
        # AssertionError is what torch raises where it was built without CUDA; for names that are none it has others.
        except (RuntimeError, AssertionError, NotImplementedError, ValueError, TypeError, OverflowError) as error:
            reason = str(error).splitlines()[0][:200]
            raise InputError(f"device {shown(self.device)} cannot be used: {reason}; use cpu") from None
        if self.cuda_graphs and torch.device(self.device).type != "cuda":
            raise InputError(f"cuda_graphs needs a GPU, but device is '{self.device}'; use device cuda, or drop it")


@dataclass(frozen=True)
class Outcome:
    """How a run ended. A run that failed still hands back the model as it stood."""

    reason: str
    error: OwnpaceError | None
    model: dict[str, Tensor]
    """The evaluated model's parameters and buffers by name (empty where only time was simulated)."""


@dataclass(frozen=True)
class ProgressReport:
    """How far a run is."""

    samples: int
    seconds: float
    """The engine's time."""
    loss: float | None = None
    """Of the latest gradients."""
    limit_samples_per_s: float | None = None
    """What the workers would do alone and without a pause, from what they have done so far."""
    paces: dict[str, float] = field(default_factory=dict)
    """Of each worker: samples per second of computing."""
    busy: dict[str, float] = field(default_factory=dict)
    """Of each worker: the share of its time spent on computing."""


OnProgress = Callable[[ProgressReport], None]
"""Called now and then."""

"""Many runs in virtual time, several at once, each done only once: what came out is kept in a file."""

from __future__ import annotations

import gc
import hashlib
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ownpace import Config
from ownpace.core.contract.errors import Interrupted
from ownpace.core.contract.events import Evaluation, Event
from ownpace.engines import ENGINES
from ownpace.report.summary import SummaryBuilder
from ownpace.tasks import Svmlight

HERE = Path(__file__).resolve().parents[2]
KEPT = HERE / "runs" / "claims.jsonl"
Curve = list[list[float | None]]
"""(virtual seconds, samples, accuracy, loss) of every evaluation."""


@dataclass(frozen=True)
class Outcome:
    """What became of one run."""

    reason: str
    seconds: float
    samples: int
    updates: int
    samples_per_s: float
    share_of_limit: float
    accuracy: float | None
    loss: float | None
    time_to_target: float | None
    staleness: float
    objective: float | None
    """Of linear models: the loss on the training data, with its L2 term."""
    curve: Curve

    def time_to(self, level: float) -> float | None:
        """Virtual seconds until an evaluation first reached this accuracy."""
        return next((t for t, _, accuracy, _ in self.curve if accuracy is not None and accuracy >= level), None)

    def final(self, last: int = 1) -> float:
        """The mean accuracy of the last evaluations."""
        scores = [point[2] for point in self.curve if point[2] is not None]
        return statistics.mean(scores[-last:]) if scores else 0.0


KEY_FIELDS = (
    *("algorithm", "parameters", "task", "task_parameters", "model", "fleet", "engine", "batch_size", "micro_batch"),
    *("optimizer", "lr", "momentum", "weight_decay", "schedule", "warmup_samples", "samples", "epochs", "seconds"),
    *("target", "stop_at_target", "eval_every", "evaluate", "seed", "sampling", "timing_only", "cuda_graphs", "detail"),
    *("device", "precision"),
)
"""What decides the outcome of a run. The order must stay: results that were kept are found by it."""
LATER_FIELDS = ("nesterov", "clip_norm")
"""What decides it, too, but came later: part of the key only where it is not the default."""


def key(config: Config) -> str:
    """What tells runs apart: everything but the device."""
    config = replace(config, device="cpu")
    later = [name for name in LATER_FIELDS if getattr(config, name) != getattr(Config(), name)]
    text = ", ".join(f"{name}={getattr(config, name)!r}" for name in (*KEY_FIELDS, *later))
    return hashlib.sha256(f"Config({text})".encode()).hexdigest()[:16]


class Runner:
    """Does runs that were not done before, on several processes."""

    def __init__(self, processes: int, device: str, kept: Path = KEPT, seconds: float = math.inf) -> None:
        """`seconds`: no run begins after this many."""
        self._deadline = time.monotonic() + seconds
        self._processes = processes
        self._device = device
        self._kept = kept
        self.outcomes: dict[str, Outcome] = {}
        if kept.exists():
            for line in kept.read_text().splitlines():
                entry = json.loads(line)
                self.outcomes[entry["key"]] = Outcome(**entry["outcome"])

    def run(self, configs: Iterable[Config], what: str) -> None:
        """Make sure that all of these were done."""
        missing = {key(config): config for config in configs if key(config) not in self.outcomes}
        if not missing:
            return
        started = time.monotonic()
        self._kept.parent.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("spawn")
        with (
            ProcessPoolExecutor(self._processes, context, initializer=one_thread) as pool,
            self._kept.open("a") as kept,
        ):
            futures = {
                pool.submit(do_in_time, replace(config, device=self._device), self._deadline): name
                for name, config in missing.items()
            }
            for done, future in enumerate(as_completed(futures), 1):
                outcome = future.result()
                if outcome is None:
                    continue
                self.outcomes[futures[future]] = outcome
                kept.write(json.dumps({"key": futures[future], "outcome": asdict(outcome)}) + "\n")
                kept.flush()
                left = (time.monotonic() - started) / done * (len(futures) - done)
                if done % max(1, len(futures) // 20) == 0 or done == len(futures):
                    print(
                        f"{what}: {done} of {len(futures)} runs, about {left:.0f} s left", file=sys.stderr, flush=True
                    )

    def of(self, config: Config) -> Outcome:
        """What became of a run."""
        return self.outcomes[key(config)]

    def known(self, config: Config) -> Outcome | None:
        """What became of a run; None: it was not run, as its time was over."""
        return self.outcomes.get(key(config))

    def best_lr(self, configs: Sequence[Config], level: float) -> Config:
        """Of runs that differ in their learning rate alone, the one that reached this accuracy first.

        If none did: the one that came closest.
        """

        def merit(config: Config) -> tuple[float, float]:
            outcome = self.of(config)
            reached = outcome.time_to(level)
            best = max((point[2] or 0.0 for point in outcome.curve), default=0.0)
            return (0.0, reached) if reached is not None else (1.0, -best)

        return min(configs, key=merit)

    def time(self, configs: Sequence[Config], level: float) -> float | None:
        """The mean time to this accuracy over seeds; None if one of them never reached it."""
        times = [self.of(config).time_to(level) for config in configs]
        return None if None in times else statistics.mean(t for t in times if t is not None)


def one_thread() -> None:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


def do(config: Config, enough: Callable[[Curve], bool] | None = None) -> Outcome:
    """One run; it ends early when `enough` says of the curve so far that it is."""
    job = config.job()
    builder, curve = SummaryBuilder(), list[list[float | None]]()

    def take(event: Event) -> None:
        builder.take(event)
        if isinstance(event, Evaluation):
            curve.append([event.t, event.samples, event.accuracy, event.loss])
            if enough is not None and enough(curve):
                raise Interrupted("known well enough")

    outcome = ENGINES["virtual"](job, take, None)
    if config.device != "cpu":
        gc.collect()  # nodes refer to each other, and a GPU's memory is not what Python counts
    summary = builder.summary()
    objective = None
    if isinstance(job.task, Svmlight):
        model = job.task.model()
        model.load_state_dict(outcome.model)
        with torch.no_grad():
            objective = float(job.task.objective(model, *job.task.train_samples().pick(torch.arange(32_561))))
    return Outcome(
        reason=summary.reason,
        seconds=summary.seconds,
        samples=summary.samples,
        updates=summary.updates,
        samples_per_s=summary.samples_per_s,
        share_of_limit=summary.share_of_limit,
        accuracy=summary.accuracy,
        loss=summary.loss,
        time_to_target=summary.time_to_target,
        staleness=summary.staleness.mean,
        objective=objective,
        curve=curve,
    )


def do_in_time(config: Config, deadline: float) -> Outcome | None:
    """One run, unless it is too late to begin."""
    # The monotonic clock is the machine's: a process of its own reads the same.
    return do(config) if time.monotonic() < deadline else None


def with_seeds(config: Config, seeds: Sequence[int]) -> list[Config]:
    """The same run with each of these seeds."""
    return [replace(config, seed=seed) for seed in seeds]


def describe(value: Any) -> str:
    """A time or a ratio for people to read; a dash where there is none."""
    return "–" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"

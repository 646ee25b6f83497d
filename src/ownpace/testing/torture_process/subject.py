"""The program that is tortured: it trains weights that count samples, and writes down what it sees, with its clock.

    python -m ownpace.testing.torture_process.subject ALGORITHM ON_FAILURE FOLDER

Started by itself it keeps all nodes on one machine; with torchrun's variables it is one rank, and rank 0 writes. It
ends, as a run that has reached its target, when there is a file `enough` in the folder.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor

from ownpace.algorithms import make_algorithm
from ownpace.core.contract.events import End, Event, Fault, Generation, Run, Update, to_line
from ownpace.core.learning.plain_state import PlainState
from ownpace.core.learning.sampling import Permutations
from ownpace.core.learning.seeds import Purpose
from ownpace.engines import Job, Outcome, num_ranks, run_process
from ownpace.fleet import Fleet, ServerMachine, paces
from ownpace.testing.counted import CountedSamples, counting, miscounted

SIZE = 997
BATCH = 8
PACES = (240, 160, 160, 80)
"""Slow enough that a small machine can keep them."""
AVERAGING = ("local", "diloco", "stride", "cocod", "overlap-local", "wp", "simuparallel")
"""Their parameters are means, which do not count samples."""
_PARAMETERS: dict[str, dict[str, object]] = {
    "grouping": {"prerun": 2, "regroup_every": 20},
    "dc-async": {"compensation": 0.0},
    **{name: {"steps": 4} for name in AVERAGING},
}


@dataclass(frozen=True, kw_only=True)
class CountedUntil(CountedSamples):
    """Counts samples until there is a file; then everything is right."""

    until: str = ""

    def num_right(self, outputs: Tensor, targets: Tensor) -> Tensor:  # type: ignore[override]
        return torch.tensor(len(targets) * float(Path(self.until).exists()))


class Witness:
    """Writes down what the run does."""

    def __init__(self, folder: Path, algorithm: str) -> None:
        self._file = (folder / "records.jsonl").open("a", encoding="utf-8")
        self._counts = algorithm not in AVERAGING
        self._may_drop = algorithm == "backup"
        self._may_differ = num_ranks() is not None  # there are two servers then

    def emit(self, event: Event) -> None:
        """Of what there is much of, updates alone."""
        if isinstance(event, Run | Update | Fault | Generation | End):
            self.write(event=to_line(event))

    def take(self, state: PlainState) -> None:
        """A checkpoint: which samples it has learnt from too often or too seldom."""
        wrong = miscounted(state, SIZE, may_drop=self._may_drop, may_differ=self._may_differ) if self._counts else []
        self.write(wrong=wrong)

    def end(self, outcome: Outcome) -> None:
        """How the run ended, and the same of its last parameters."""
        # The model is what rank 0 has.
        is_whole = self._counts and not self._may_drop and outcome.reason == "finished" and bool(outcome.model)
        self.write(reason=outcome.reason, wrong=_wrong_in(outcome.model, self._may_differ) if is_whole else [])

    def write(self, **record: object) -> None:
        """One line, at once: whoever follows reads the file."""
        self._file.write(json.dumps({"at": time.monotonic(), **record}) + "\n")
        self._file.flush()


def _wrong_in(model: dict[str, Tensor], may_differ: bool) -> list[str]:
    """Samples in the last parameters that were not the next ones of the queue, each once; by one layer at least."""
    low, high = model["low"], model["high"]
    learnt = torch.maximum(low, high)
    dealt = int(learnt.sum())
    expected = torch.bincount(Permutations(SIZE, 0, Purpose.QUEUE).indices(0, max(dealt, 1)), minlength=SIZE)
    wrong = _unequal(learnt, expected)
    found = [f"in the end, sample {i} counts {int(learnt[i])}, not {int(expected[i])}" for i in wrong]
    differ = [] if may_differ else _unequal(low, high)
    return found + [f"in the end, the layers differ in sample {i}" for i in differ]


def _unequal(one: Tensor, other: Tensor) -> list[int]:
    return cast("list[int]", (one != other).nonzero().flatten().tolist())


def _fleet() -> Fleet:
    """Several hosts have servers on the first two."""
    if (ranks := num_ranks()) is None:
        return paces(*PACES, jitter=0.05)
    servers = (ServerMachine(host=0), ServerMachine(host=1))
    return replace(paces(*PACES[:ranks], jitter=0.05), server=servers)


def make_job(algorithm: str, on_failure: Literal["restart", "continue"], folder: Path, witness: Witness) -> Job:
    """What is trained."""
    return Job(
        algorithm=make_algorithm(algorithm, _PARAMETERS.get(algorithm)),
        task=CountedUntil(size=SIZE, until=str(folder / "enough")),
        fleet=_fleet(),
        optimizer=counting(),
        batch_size=BATCH,
        samples=10**9,
        target=1.0,
        stop_at_target=True,
        eval_every=100,
        checkpoint_every=1500,
        on_checkpoint=witness.take,
        on_failure=on_failure,
        log_folder=folder / "logs",
    )


def main() -> int:
    """Train; returns the exit code."""
    algorithm, on_failure, folder = sys.argv[1], cast(Literal["restart", "continue"], sys.argv[2]), Path(sys.argv[3])
    witness = Witness(folder, algorithm)
    outcome = run_process(make_job(algorithm, on_failure, folder, witness), witness.emit, None)
    witness.end(outcome)
    return 0 if outcome.error is None else outcome.error.exit_code


if __name__ == "__main__":
    # By its name, not as __main__: other processes have to import the task.
    from ownpace.testing.torture_process.subject import main as by_name

    sys.exit(by_name())

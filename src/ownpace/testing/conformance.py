"""What must hold for every algorithm, as checks to call for one of your own.

>>> from ownpace import make_algorithm
>>> check_algorithm(make_algorithm("sync"))

In a test file, let each check be a test, so that a failure names it::

    @pytest.mark.parametrize("check", CHECKS)
    def test_my_algorithm(check):
        check_algorithm(MyAlgorithm(), only=check)

All checks run in virtual time, on small tasks: they show mistakes of logic, not how good an algorithm is. Some
algorithms break some of them by their nature; the arguments of `check_algorithm` say so.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import nn

from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import unknown
from ownpace.core.contract.events import Compute, End, Evaluation, Event, Run, Update, to_line
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.fleet import Fleet, Machine, Network, ServerMachine
from ownpace.tasks import Quadratic
from ownpace.testing.blobs import Blobs
from ownpace.testing.runs import simulate, watched

E = TypeVar("E")
SAMPLES = 600
"""The budget of most checks."""


class ConformanceError(AssertionError):
    """An algorithm does not do what every algorithm must."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An algorithm, and what it does by its nature where most do otherwise."""

    algorithm: Algorithm
    lr: float = 0.1
    num_workers: int | None = None
    drops_samples: bool = False
    ends_by_itself: bool = False
    in_flight: int | None = None

    def fleet(self, *machines: Machine, network: Network | None = None, servers: int = 1) -> Fleet:
        """These machines, or as many of them, over and over, as the algorithm names."""
        if self.num_workers is not None:
            machines = tuple(itertools.islice(itertools.cycle(machines), self.num_workers))
        return Fleet(machine=machines, network=network or Network(), server=(ServerMachine(),) * servers)

    def run(self, fleet: Fleet, **changes: object) -> list[Event]:
        """The events of a run to its end, which must be a good one."""
        if "seconds" not in changes:
            changes.setdefault("samples", SAMPLES)
        outcome, events = simulate(self.algorithm, fleet, lr=self.lr, **changes)
        _require(outcome.error is None, f"a run ended early: {outcome.reason}")
        return events


def check_algorithm(
    algorithm: Algorithm,
    *,
    only: str | None = None,
    without: Collection[str] = (),
    lr: float = 0.1,
    num_workers: int | None = None,
    drops_samples: bool = False,
    ends_by_itself: bool = False,
    in_flight: int | None = None,
) -> None:
    """Raise unless an algorithm passes every check.

    Args:
        algorithm: With the parameters to check it with.
        only: The one check to make, one of `CHECKS`.
        without: Checks not to make; say why where you name them.
        lr: A learning rate of SGD at which it finds the minimum of a parabola within 12,000 samples.
        num_workers: For an algorithm that names its workers: how many there must be.
        drops_samples: Whether it may compute gradients that are never applied.
        ends_by_itself: Whether it may end before the budget is spent.
        in_flight: How many updates may still be made once the budget is spent (None: one for each worker but one where
            it has servers, else none).

    Raises:
        ConformanceError: It does not; the message says what was expected and what happened.
        InputError: There is no such check.
    """
    subject = Subject(
        algorithm=algorithm,
        lr=lr,
        num_workers=num_workers,
        drops_samples=drops_samples,
        ends_by_itself=ends_by_itself,
        in_flight=in_flight,
    )
    for name in (*without, *([] if only is None else [only])):
        if name not in CHECKS:
            raise unknown("check", name, CHECKS)
    for name, check in CHECKS.items():
        if (only is None or name == only) and name not in without:
            try:
                check(subject)
            except ConformanceError as error:
                raise ConformanceError(f"{type(algorithm).__name__}, {name}: {error}") from error


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConformanceError(message)


def of(kind: type[E], events: Sequence[Event]) -> list[E]:
    """The events of one kind."""
    return [event for event in events if isinstance(event, kind)]


def _last(events: Sequence[Event]) -> End:
    end = events[-1]
    assert isinstance(end, End)
    return end


# The checks --------------------------------------------------------------------------------------------------------

UNEVEN = tuple(Machine(samples_per_s=pace, jitter=0.1) for pace in (4000, 2000, 1000, 1000))


def finds_the_minimum(subject: Subject) -> None:
    """Within 12,000 samples, a parabola's loss falls to a hundredth of what it was above its minimum."""
    task = Quadratic(noise=0.1)
    at_minimum = task.model()
    nn.init.zeros_(next(at_minimum.parameters()))
    lowest = task.score(at_minimum, task.test_samples()).loss
    events = subject.run(subject.fleet(*UNEVEN), task=task, samples=12_000, detail=False)
    first, last = (_loss(events, place) - lowest for place in (0, -1))
    # What ends by itself has had fewer samples; it must have learnt something.
    share = 0.8 if subject.ends_by_itself else 0.01
    _require(last < share * first, f"the loss above the minimum fell from {first:.3g} to no less than {last:.3g}")


def _loss(events: Sequence[Event], place: int) -> float:
    loss = of(Evaluation, events)[place].loss
    return float("nan") if loss is None else loss


def learns_from_any_sampling(subject: Subject) -> None:
    """From one queue, with replacement, and from a share for each worker, the loss falls."""
    for sampling in ("queue", "iid", "shards"):
        events = subject.run(subject.fleet(*UNEVEN), sampling=sampling, samples=2000, detail=False)
        first, last = _loss(events, 0), _loss(events, -1)
        _require(last < 0.9 * first, f"with sampling {sampling}, the loss went from {first:.3g} to {last:.3g}")


def learns_with_any_optimizer(subject: Subject) -> None:
    """With AdamW in the place of SGD, the loss falls."""
    spec = OptimizerSpec(name="adamw", lr=0.03)
    task = Quadratic(noise=0.1)
    events = subject.run(subject.fleet(*UNEVEN), optimizer=spec, task=task, samples=6000, detail=False)
    first, last = _loss(events, 0), _loss(events, -1)
    share = 0.9 if subject.ends_by_itself else 0.2
    _require(last < share * first, f"with AdamW, the loss went from {first:.3g} to {last:.3g}")


def repeats_itself(subject: Subject) -> None:
    """Equal seeds give equal events, byte for byte; another seed gives others."""

    def lines(seed: int) -> list[str]:
        # The first record names the seed.
        return [to_line(event) for event in subject.run(subject.fleet(*UNEVEN), seed=seed)[1:]]

    once = lines(0)
    _require(once == lines(0), "two runs with one seed differ: is there state outside of the coroutines, or a clock?")
    _require(once != lines(1), "a run with another seed is the same")


def counts_every_sample(subject: Subject) -> None:
    """Every sample that was computed is in one update, on any fleet; and the sums are those of the events."""
    slow_links = Network(bandwidth_bytes_per_s=1e4, latency_s=5e-3)
    loading = Machine(samples_per_s=2000, jitter=0.3, io_s_per_sample=1e-3)
    for fleet in (
        subject.fleet(*UNEVEN),
        subject.fleet(*UNEVEN, loading, network=slow_links),
        subject.fleet(Machine(samples_per_s=500)),
    ):
        for micro_batch in (None, 3):
            check_counts(subject, subject.run(fleet, micro_batch=micro_batch), SAMPLES)


def check_counts(subject: Subject, events: Sequence[Event], budget: int) -> None:
    """The same of the events of one run."""
    updates, computed, sums = of(Update, events), of(Compute, events), _last(events).sums
    used, made = sum(event.samples for event in updates), sum(event.samples for event in computed)
    _require(used == made or (used < made and subject.drops_samples), f"{made} samples computed, {used} applied")
    _require([event.version for event in updates] == list(range(1, len(updates) + 1)), "versions do not count updates")
    _require(all(event.staleness >= 0 for event in updates), "a gradient is of parameters that were not there yet")
    counted = updates[: sums.updates]
    _require((counted[-1].total_samples, counted[-1].t) == (sums.samples, sums.seconds), "sums are of other updates")
    _require(
        sums.samples >= budget or subject.ends_by_itself,
        f"the run ended after {sums.samples} samples of {budget}: while me.training, workers must go on",
    )
    before = counted[-1].total_samples - counted[-1].samples
    _require(before < budget, f"the budget of {budget} was spent at {before} samples, and updates went on")
    workers = next(event for event in events if isinstance(event, Run)).groups["workers"]
    most = subject.in_flight
    if most is None:
        most = len(workers) - 1 if subject.algorithm.has_servers else 0
    after = len(updates) - sums.updates
    _require(after <= most, f"{after} updates were made after the budget was spent, not at most {most}: see in_flight")
    for worker in workers:
        spans = [(event.t, event.until) for event in computed if event.who == worker]
        twice = any(b[0] < a[1] - 1e-12 for a, b in itertools.pairwise(spans))
        _require(not twice, f"{worker} computes two things at once")


def takes_the_same_time_without_gradients(subject: Subject) -> None:
    """With time simulated alone, every update happens when it does with gradients."""

    def updates(timing_only: bool) -> list[tuple[float, int, int]]:
        events = subject.run(subject.fleet(*UNEVEN), timing_only=timing_only)
        return [(event.t, event.samples, event.staleness) for event in of(Update, events)]

    try:
        simulated = updates(True)
    except RuntimeError as error:  # gradients without values cannot be looked at
        raise ConformanceError(f"without gradients, it raises: {error}; does it read a value?") from error
    _require(simulated == updates(False), "without gradients, updates happen at other times: does it read a value?")


def ends_with_the_time(subject: Subject) -> None:
    """When time is up, what is under way is finished, and no more."""
    budget_s = 0.5
    events = subject.run(subject.fleet(*UNEVEN), seconds=budget_s)
    end = _last(events)
    if end.t < budget_s:
        _require(subject.ends_by_itself, f"the run ended at {end.t:.3g} s of {budget_s} s")
        return
    times = [0.0, *(event.t for event in of(Update, events))]
    longest_s = max(b - a for a, b in itertools.pairwise(times)) + max(e.until - e.t for e in of(Compute, events))
    _require(end.sums.seconds == budget_s, f"the sums are those of {end.sums.seconds} s, not of {budget_s} s")
    _require(end.t <= budget_s + 2 * longest_s, f"time was up at {budget_s} s, and the run went on until {end.t:.3g} s")


def ends_though_workers_differ(subject: Subject) -> None:
    """One worker is a hundred times slower; or some have loaded their next samples when time is up, others not."""
    fast, slow = Machine(samples_per_s=2000), Machine(samples_per_s=20)
    subject.run(subject.fleet(fast, fast, fast, slow), samples=400)
    steady, loading = Machine(samples_per_s=1000), Machine(samples_per_s=1000, io_s_per_sample=0.01)
    subject.run(subject.fleet(steady, steady, loading, loading), seconds=0.12)


def keeps_replicas_identical(subject: Subject) -> None:
    """Where `replicas_identical` is promised, all workers end with the same parameters, bit for bit."""
    if subject.algorithm.replicas_identical:
        algorithm, ends = watched(subject.algorithm)
        replace(subject, algorithm=algorithm).run(subject.fleet(*UNEVEN), task=Blobs())
        same = all(torch.equal(ends[0], end) for end in ends)
        _require(same, "replicas_identical is promised, but workers end with different parameters")


def shares_its_layers_among_servers(subject: Subject) -> None:
    """With several servers, each makes the same number of updates, but for what is in flight, and the model learns."""
    if not subject.algorithm.has_servers:
        return
    events = subject.run(subject.fleet(*UNEVEN, servers=3), task=Blobs(), samples=3000)
    sums, updates = _last(events).sums, of(Update, events)
    for server in (f"server-{number}" for number in range(3)):
        made = [event for event in updates if event.who == server]
        _require([event.version for event in made] == list(range(1, len(made) + 1)), f"{server} skips versions")
        _require(sums.updates <= len(made) < sums.updates + 4, f"{server} made {len(made)} updates of {sums.updates}")
    first, last = _loss(events, 0), _loss(events, -1)
    _require(last < 0.7 * first, f"on three servers, the loss went from {first:.3g} to {last:.3g}")


CHECKS: dict[str, Callable[[Subject], None]] = {
    check.__name__: check
    for check in (
        finds_the_minimum,
        learns_from_any_sampling,
        learns_with_any_optimizer,
        repeats_itself,
        counts_every_sample,
        takes_the_same_time_without_gradients,
        ends_with_the_time,
        ends_though_workers_differ,
        keeps_replicas_identical,
        shares_its_layers_among_servers,
    )
}
"""All checks, by name."""

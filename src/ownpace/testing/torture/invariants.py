"""What must hold of every run, whatever happens to its machines."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from ownpace.core.contract.errors import OwnpaceError
from ownpace.core.contract.events import Compute, End, Event, Fault, Generation, Load, Run, Transfer, Update
from ownpace.core.learning.plain_state import PlainState
from ownpace.core.learning.sampling import Permutations
from ownpace.core.learning.seeds import Purpose
from ownpace.engines import Outcome
from ownpace.testing.torture.audit import Books
from ownpace.testing.torture.scenario import Scenario

E = TypeVar("E")
TINY = 1e-9


@dataclass(frozen=True)
class Checkpoint:
    """A run between two generations."""

    state: PlainState
    events: int
    """How many there were by then."""
    books: Books


@dataclass(frozen=True)
class Evidence:
    """A run and all that is known of it."""

    scenario: Scenario
    outcome: Outcome
    events: Sequence[Event]
    books: Books
    checkpoints: Sequence[Checkpoint] = ()

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def end(self) -> End:
        """The last record."""
        assert isinstance(self.events[-1], End)
        return self.events[-1]

    @property
    def error(self) -> OwnpaceError | None:
        """What ended it early."""
        return self.outcome.error

    @property
    def values(self) -> Tensor:
        """The final parameters, flat."""
        return torch.cat([value.reshape(-1) for value in self.outcome.model.values()])

    def killed(self, role: str) -> list[Fault]:
        """Nodes whose names begin so and that were killed or cut off."""
        return [fault for fault in self.of(Fault) if fault.what in ("kill", "cut") and fault.who.startswith(role)]


Complaints = Iterator[str]


def ends_as_it_should(run: Evidence) -> Complaints:
    """No deadlock, no divergence, no error that nothing explains; and the first and the last record are there."""
    if run.error is not None:
        yield f"ended early: {run.outcome.reason}"
    if not isinstance(run.events[0], Run) or sum(isinstance(event, End) for event in run.events) != 1:
        yield "the events do not begin with the run and close with its end"
    budget = run.scenario.job.samples
    done = run.end.sums.samples
    if run.error is None and budget is not None and done < budget and not run.scenario.subject.ends_by_itself:
        yield f"finished after {done} samples of {budget}"


def keeps_finite_weights(run: Evidence) -> Complaints:
    """Every number of the model is finite."""
    if not bool(torch.isfinite(run.values).all()):
        yield "a weight is not finite"


def counts_versions(run: Evidence) -> Complaints:
    """Versions count updates, one by one, of each server or of all replicas; and samples add up with them."""
    servers = bool(run.scenario.job.servers)
    version: dict[str, int] = defaultdict(int)
    samples: dict[str, int] = defaultdict(int)
    for event in run.events:
        if isinstance(event, Generation):
            version.default_factory = lambda: -1  # where servers are new, they go on from what others were
        if isinstance(event, Generation) and (event.updates != version["server-0" if servers else ""] or event.lost):
            # Others than the first may have lost updates, too, and only they know.
            version = defaultdict(lambda: -1) if servers else defaultdict(int)
            samples.clear()
            first = "server-0" if servers else ""
            version[first], samples[first] = event.updates, event.samples
        if not isinstance(event, Update):
            continue
        who = event.who if servers else ""
        if version[who] not in (-1, event.version - 1):
            yield f"{event.who} makes update {event.version} after {version[who]}"
        if who in samples and event.total_samples != samples[who] + event.samples:
            yield f"update {event.version}: {samples[who]} and {event.samples} samples make {event.total_samples}"
        version[who], samples[who] = event.version, event.total_samples


def bounds_staleness(run: Evidence) -> Complaints:
    """No gradient is of parameters that were not there yet, and none is later than its algorithm allows."""
    most = run.scenario.subject.most_stale
    for event in run.of(Update):
        if event.staleness < 0:
            yield f"update {event.version} is of parameters that were not there yet"
        if most is not None and event.staleness > most:
            yield f"update {event.version} is {event.staleness} updates late, and {most} are allowed"


def bounds_the_lead(run: Evidence) -> Complaints:
    """Where an algorithm says by how many batches a worker may be ahead of the slowest, none is further ahead."""
    most, batch = run.scenario.subject.most_ahead, run.scenario.job.batch_size
    if most is None:
        return
    members = [worker.name for worker in run.scenario.job.fleet.workers]
    computed: dict[str, list[Compute]] = defaultdict(list)
    for event in run.events:
        if isinstance(event, Compute):
            computed[event.who].append(event)
        # Every generation begins its clocks anew.
        if isinstance(event, Generation | End):
            yield from _leads(members, computed, most, batch)
            computed.clear()
            if isinstance(event, Generation) and event.members is not None:
                members = event.members


def _leads(members: Sequence[str], computed: dict[str, list[Compute]], most: int, batch: int) -> Complaints:
    done_at = {name: _whole_batches(computed[name], batch) for name in members}
    for name in members:
        before = 0
        for event in computed[name]:
            if before % batch == 0:
                slowest = min(sum(until <= event.t + TINY for until in done_at[other]) for other in members)
                if before // batch > slowest + most:
                    yield f"{name} begins batch {before // batch + 1} when the slowest has done {slowest}"
            before += event.samples


def _whole_batches(computed: Sequence[Compute], batch: int) -> list[float]:
    """When each batch was complete."""
    totals = itertools.accumulate(event.samples for event in computed)
    return [event.until for event, total in zip(computed, totals, strict=True) if total % batch == 0]


def computes_one_thing_at_a_time(run: Evidence) -> Complaints:
    """A worker computes one gradient after the other."""
    latest: dict[str, float] = defaultdict(float)
    for event in run.of(Compute):
        if event.t < latest[event.who] - TINY:
            yield f"{event.who} computes two things at once at {event.t:.6g} s"
        latest[event.who] = event.until


def does_nothing_when_dead(run: Evidence) -> Complaints:
    """A machine that was killed computes, sends and updates nothing until it is back."""
    dead: dict[str, float] = {}
    for event in run.events:
        if isinstance(event, Fault) and event.what in ("kill", "back"):
            if event.what == "kill":
                dead[event.who] = event.t
            else:
                dead.pop(event.who, None)
        elif isinstance(event, Compute | Load | Update) and event.who in dead:
            at = event.t if isinstance(event, Update) else event.until
            if at > dead[event.who] + TINY:
                yield f"{event.who} died at {dead[event.who]:.6g} s, and has a {event.kind} at {at:.6g} s"


def never_stands_still(run: Evidence) -> Complaints:
    """At any time something is computed, loaded or transferred, but for as long as deaths take to be noticed."""
    spans = [(e.t, e.until) for e in run.events if isinstance(e, Compute | Load | Transfer)]
    spans += [(fault.at_s, fault.back_at_s or fault.at_s) for fault in run.scenario.job.fleet.fault]
    allowed = 12.0 * len(run.killed(""))
    stood, at = 0.0, 0.0
    for start, until in sorted(spans):
        if start > at:
            stood += min(start, run.end.t) - min(at, run.end.t)
        at = max(at, until)
    stood += max(0.0, run.end.t - at)
    if stood > allowed + TINY * max(1.0, run.end.t):
        yield f"nothing happened for {stood:.6g} s of {run.end.t:.6g} s"


def keeps_replicas_equal(run: Evidence) -> Complaints:
    """Workers begin each generation with the same parameters; where replicas are promised, they end so."""
    for number, begun in run.books.began.items():
        if any(version != begun[0][1] for _, version, _ in begun):
            yield f"generation {number} begins with versions {sorted({version for _, version, _ in begun})}"
        elif any(not torch.equal(values, begun[0][2]) for _, _, values in begun):
            yield f"generation {number} begins with different parameters of one version"
    if run.scenario.subject.algorithm.replicas_identical and run.error is None:
        last = max(run.books.began)
        ends = run.books.ended[last]
        if len(ends) != len(run.books.began[last]):
            yield f"{len(ends)} of {len(run.books.began[last])} workers came to their end"
        if any(not torch.equal(values, ends[0][2]) for _, _, values in ends):
            yield "replicas end with different parameters"


def loses_no_update(run: Evidence) -> Complaints:
    """An update stays, unless all who made it died; and records say how many did not."""
    yield from run.books.complaints
    told = {event.number: event.lost for event in run.of(Generation)}
    servers = len(run.scenario.job.servers)
    for number, lost in run.books.lost.items():
        if servers < 2 and lost != told.get(number, 0):
            yield f"generation {number} began without {lost} updates, and its record says {told.get(number, 0)}"
        if lost and servers and not run.killed("server"):
            yield f"generation {number} began without {lost} updates, but no server had died"


def applies_every_sample_once(run: Evidence) -> Complaints:
    """The weights hold every sample once an epoch: exactly those that the queue has dealt, each in one update."""
    scenario = run.scenario
    if not scenario.counts:
        return
    counts = -run.values.view(-1, run.books.width or 0)
    total, counts = counts[:, -1], counts[:, :-1]
    made = sum(entry.samples for (shard, _), entry in run.books.updates.items() if shard == 0)
    for layer in range(len(counts)):
        if total[layer] != counts[layer].sum():
            yield f"layer {layer} holds {counts[layer].sum():g} samples and counts {total[layer]:g}"
    # The first layer is the first server's; what others hold is looked at below.
    if total[0] != made:
        yield f"the first layer counts {total[0]:g} samples, and updates had {made}"
    if scenario.job.sampling == "queue":
        yield from _as_dealt(run, counts)


def _as_dealt(run: Evidence, counts: Tensor) -> Complaints:
    scenario = run.scenario
    size = counts.shape[1]
    # Where a server or a worker died, others may hold what it never got; none may hold anything twice.
    most, least = counts.amax(0), counts.amin(0)
    parted = len(scenario.job.servers) > 1 and run.killed("")
    order = Permutations(size, scenario.job.seed, Purpose.QUEUE)
    dealt = int(most.sum())
    if scenario.subject.drops_samples or run.error is not None:
        made = sum(event.samples for event in run.of(Compute))
        expected = torch.bincount(order.indices(0, max(made, 1)), minlength=size)
        if bool((most > expected).any()):
            yield f"a sample was applied {int((most - expected).max())} times more often than it was dealt"
        return
    expected = torch.bincount(order.indices(0, dealt), minlength=size) if dealt else torch.zeros(size)
    if not parted and not torch.equal(most, least):
        yield "layers hold different samples"
    twice, never = int((most > expected).sum()), int((most < expected).sum())
    if twice or never:
        yield f"of {dealt} samples, {twice} were applied too often and {never} too seldom"


def is_what_a_plain_loop_makes(run: Evidence) -> Complaints:
    """The updates that stand, made one after the other by torch's own optimizer, give the same parameters."""
    scenario = run.scenario
    if scenario.counts or scenario.subject.kind == "averages" or run.scenario.job.timing_only:
        return
    shards = sorted({shard for shard, _ in run.books.updates})
    parts = [_replayed(run, shard) for shard in shards]
    if parts and not torch.allclose(torch.cat(parts), run.values, rtol=1e-3, atol=1e-5):
        off = float((torch.cat(parts) - run.values).abs().max())
        yield f"a plain loop over the {len(run.books.updates)} updates ends {off:.3g} away"


def _replayed(run: Evidence, shard: int) -> Tensor:
    versions = sorted(version for which, version in run.books.updates if which == shard)
    spec = run.scenario.job.optimizer
    first = run.books.updates[shard, versions[0]]
    point = torch.nn.Parameter(torch.ones_like(first.mean))
    memories: dict[int, torch.optim.Optimizer] = {}
    for version in versions:
        entry = run.books.updates[shard, version]
        optimizer = memories.setdefault(entry.memory, spec.build([point]))
        optimizer.param_groups[0]["lr"] = spec.lr * entry.lr_scale
        point.grad = entry.mean
        optimizer.step()
    return point.detach()


INVARIANTS: dict[str, Callable[[Evidence], Complaints]] = {
    check.__name__: check
    for check in (
        ends_as_it_should,
        keeps_finite_weights,
        counts_versions,
        bounds_staleness,
        bounds_the_lead,
        computes_one_thing_at_a_time,
        does_nothing_when_dead,
        never_stands_still,
        keeps_replicas_equal,
        loses_no_update,
        applies_every_sample_once,
        is_what_a_plain_loop_makes,
    )
}
"""All of them, by name."""

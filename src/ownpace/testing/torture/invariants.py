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
from ownpace.engines.virtual.faults import RESTART_S, SILENCE_S
from ownpace.fleet import PlannedFault
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
    earlier: Sequence[PlannedFault] = ()
    """What was planned before the run was resumed on another fleet."""

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def end(self) -> End:
        """The last record."""
        assert isinstance(self.events[-1], End)
        return self.events[-1]

    @property
    def header(self) -> Run:
        """The first record."""
        assert isinstance(self.events[0], Run)
        return self.events[0]

    @property
    def faults(self) -> Sequence[PlannedFault]:
        """All that was planned to happen."""
        return (*self.scenario.job.fleet.fault, *self.earlier)

    @property
    def most_workers(self) -> int:
        """How many there were at most."""
        later = [len(event.members) for event in self.of(Generation) if event.members is not None]
        return max([len(self.header.groups["workers"]), *later])

    @property
    def most_servers(self) -> int:
        """The same of servers."""
        return max(len(self.header.groups.get("servers", ())), len(self.scenario.job.servers))

    @property
    def error(self) -> OwnpaceError | None:
        """What ended it early."""
        return self.outcome.error

    @property
    def values(self) -> Tensor:
        """The final parameters, flat."""
        return torch.cat([value.reshape(-1) for value in self.outcome.model.values()])

    @property
    def deaths(self) -> list[str]:
        """Who died before the end: workers that were killed or silent for too long, and servers."""
        return [
            fault.worker
            for fault in self.faults
            if (died := died_s(fault)) is not None and died <= self.end.t and self.has(fault.worker)
        ]

    @property
    def too_few(self) -> bool:
        """Whether there were fewer workers at the end than there must be, or none that had the parameters."""
        job, now = self.scenario.job, self.end.t
        alive = {worker.name for worker in job.fleet.workers}
        for fault in job.fleet.fault:
            died, back = died_s(fault), fault.back_at_s
            if back is None and job.on_failure == "restart" and fault.kind == "kill":
                back = fault.at_s + RESTART_S
            if died is not None and died <= now and (back is None or back > now):
                alive.discard(fault.worker)
        if len(alive) < job.min_workers:
            return True
        # Those that are back know nothing of what was learnt.
        return not job.servers and bool(self.deaths)

    def has(self, name: str) -> bool:
        """Whether there is such a node: algorithms without servers do not mind what happens to one."""
        return not name.startswith("server-") or bool(self.scenario.job.servers)

    @property
    def broken_off(self) -> bool:
        """Whether a machine died when the budget was spent: then what is in flight is given up, and that is the end."""
        since, over = max((event.t for event in self.of(Generation)), default=-1.0), self.end.sums.seconds
        deaths = [died_s(fault) for fault in self.faults]
        return since >= over or any(died is not None and max(since, over) <= died <= self.end.t for died in deaths)

    def killed(self, role: str) -> list[Fault]:
        """Nodes whose names begin so and that were killed or cut off."""
        return [fault for fault in self.of(Fault) if fault.what in ("kill", "cut") and fault.who.startswith(role)]


Complaints = Iterator[str]


def died_s(fault: PlannedFault) -> float | None:
    """When a fault is a death, if it is one: a machine that was silent for a while only is none."""
    if fault.kind == "kill":
        return fault.at_s
    silent = fault.kind == "cut" and (fault.back_at_s is None or fault.back_at_s > fault.at_s + SILENCE_S)
    return fault.at_s + SILENCE_S if silent else None


def ends_as_it_should(run: Evidence) -> Complaints:
    """No deadlock, no divergence, no error that nothing explains; and the first and the last record are there."""
    stops = run.scenario.job.on_failure == "stop" and run.deaths
    if run.error is not None and not (run.error.code == "machine-died" and (stops or run.too_few)):
        yield f"ended early: {run.outcome.reason}"
    if run.error is None and stops and not run.broken_off and not run.earlier:
        yield f"went on, though {run.deaths[0]} died, and it was to stop"
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
    servers = run.most_servers
    version: dict[str, int] = defaultdict(int)
    samples: dict[str, int] = defaultdict(int)
    for event in run.events:
        if isinstance(event, Generation):
            first = "server-0" if servers else ""
            # Of several servers, others than the first may have lost updates, too.
            if servers < 2 and event.lost != max(0, version[first] - event.updates):
                yield f"generation {event.number} goes on from {event.updates} after {version[first]}"
            if servers and event.why != "checkpoint":
                version.clear()  # and all count what any has learnt from
                samples.clear()
            version.default_factory = lambda: -1  # where servers are new, they go on from what others were
            version[first], samples[first] = event.updates, event.samples
        if not isinstance(event, Update):
            continue
        who = event.who if servers else ""
        if version[who] not in (-1, event.version - 1):
            yield f"{event.who} makes update {event.version} after {version[who]}"
        if who in samples and event.total_samples != samples[who] + event.samples:
            yield f"update {event.version}: {samples[who]} and {event.samples} samples make {event.total_samples}"
        version[who], samples[who] = event.version, event.total_samples
    counted = run.end.sums
    for event in run.of(Generation):
        if event.t >= counted.seconds and event.updates < counted.updates:
            yield f"the sums count {counted.updates} updates, of which {event.updates} are left"


def bounds_staleness(run: Evidence) -> Complaints:
    """No gradient is of parameters that were not there yet, and none is later than its algorithm allows."""
    subject = run.scenario.subject
    most = subject.most_stale
    if subject.most_ahead is not None:
        # Since its pull, each other worker was at most s batches behind, and is at most s + 1 ahead now.
        most = (run.most_workers - 1) * (2 * subject.most_ahead + 1)
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
    members = run.header.groups["workers"]
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
        if isinstance(event, Generation):
            # Where a server is gone, none begins before it has been started again.
            dead = {name: at for name, at in dead.items() if not name.startswith("server-")}
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
    """At any time something is computed, loaded or transferred, but for as long as deaths take to be noticed.

    What was given up is in no record; so a pause counts from the last moment at which anything happened to a machine.
    """
    faults, network = run.faults, run.scenario.job.fleet.network
    marks = [event.t for event in run.of(Generation)]
    for fault in faults:
        marks += [fault.at_s, fault.back_at_s or fault.at_s, fault.at_s + RESTART_S, fault.at_s + SILENCE_S]
    nbytes = run.header.parameter_bytes
    regroup_s = nbytes / network.bandwidth_bytes_per_s + (4 + run.most_workers) * network.latency_s
    spans = [(e.t, e.until) for e in run.events if isinstance(e, Compute | Load | Transfer)]
    at, tiny = 0.0, TINY * max(1.0, run.end.t)
    for start, until in sorted([*(span for span in spans if span[0] < run.end.t), (run.end.t, run.end.t)]):
        near = [mark for mark in marks if at - tiny <= mark <= start]
        since = max([at, *near])
        # Twice: a machine may die while the others regroup.
        if start - since > (2 * regroup_s if near else 0.0) + tiny:
            yield f"nothing happened from {since:.6g} s to {start:.6g} s"
        at = max(at, min(until, run.end.t))


def keeps_replicas_equal(run: Evidence) -> Complaints:
    """Workers begin each generation with the same parameters; where replicas are promised, they end so."""
    for number, begun in run.books.began.items():
        if any(version != begun[0][1] for _, version, _ in begun):
            yield f"generation {number} begins with versions {sorted({version for _, version, _ in begun})}"
        elif any(not torch.equal(values, begun[0][2]) for _, _, values in begun):
            yield f"generation {number} begins with different parameters of one version"
    if run.scenario.subject.algorithm.replicas_identical and run.error is None and not run.broken_off:
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
    servers = run.most_servers
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
    # Where a server died or a link was cut, others may hold what never got through; none may hold anything twice.
    most, least = counts.amax(0), counts.amin(0)
    cut = any(fault.what == "cut" for fault in run.of(Fault))
    parted = len(scenario.job.servers) > 1 and (cut or run.killed("server"))
    order = Permutations(size, scenario.job.seed, Purpose.QUEUE)
    dealt = int(most.sum())
    if scenario.subject.drops_samples or run.error is not None or run.broken_off:
        # Some had been dealt whose gradients were never ready.
        made = sum(event.samples for event in run.of(Compute)) + 2 * scenario.job.batch_size * 9
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
    # One that was broken off ends with what is left of the updates in the books.
    if scenario.counts or scenario.subject.kind == "averages" or run.broken_off:
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

"""What must hold of every run, whatever happens to its machines."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence

import torch

from ownpace.core.contract.events import Compute, End, Fault, Generation, Load, Run, Transfer, Update
from ownpace.engines.virtual.faults import RESTART_S, SILENCE_S
from ownpace.fleet import Between, Network
from ownpace.testing.torture.evidence import Complaints, Evidence
from ownpace.testing.torture.parameters import (
    applies_every_sample_once,
    is_what_a_plain_loop_makes,
    keeps_replicas_equal,
    loses_no_update,
)

TINY = 1e-9


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
    # Each of another number of servers goes on where the furthest of those before was.
    other_servers = len(run.header.groups.get("servers", ())) != len(run.scenario.job.servers)
    version: defaultdict[str, int] = defaultdict(int)
    samples: dict[str, int] = defaultdict(int)
    for event in run.events:
        if isinstance(event, Generation):
            first = "server-0" if servers else ""
            # Of several servers, others than the first may have lost updates, too.
            if servers < 2 and event.lost != max(0, version[first] - event.updates):
                yield f"generation {event.number} goes on from {event.updates} after {version[first]}"
            if servers and (event.why != "checkpoint" or other_servers):
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
            if run.earlier:  # resumed by somebody who has started machines again
                dead = {name: at for name, at in dead.items() if name not in (event.members or ())}
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
    if run.may_part:
        return
    marks = [event.t for event in run.of(Generation)]
    for fault in faults:
        marks += [fault.at_s, fault.back_at_s or fault.at_s, fault.at_s + RESTART_S, fault.at_s + SILENCE_S]
    regroup_s = _regroup_s(run.header.parameter_bytes, run.most_workers, network)
    spans = [(e.t, e.until) for e in run.events if isinstance(e, Compute | Load | Transfer)]
    at, tiny = 0.0, TINY * max(1.0, run.end.t)
    for start, until in sorted([*(span for span in spans if span[0] < run.end.t), (run.end.t, run.end.t)]):
        latest = max((mark for mark in marks if mark <= start), default=-math.inf)
        since = max(at, latest)
        # Twice: a machine may die while the others regroup. From the latest mark on, even if something that was given
        # up then is recorded as having lasted longer.
        if start - since > tiny and start - latest > 2 * regroup_s + tiny:
            yield f"nothing happened from {since:.6g} s to {start:.6g} s"
        at = max(at, min(until, run.end.t))


def _regroup_s(nbytes: int, most_workers: int, network: Network) -> float:
    """At most so long: between sites it takes longer."""
    between = network.between or Between()
    slowest = min(network.bandwidth_bytes_per_s, between.bandwidth_bytes_per_s or math.inf)
    return nbytes / slowest + (4 + most_workers) * (network.latency_s + between.latency_s)


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

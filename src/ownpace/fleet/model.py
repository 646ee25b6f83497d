"""The machines of one run, as frozen dataclasses: how fast they are, where they are, what happens to them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, get_args

from ownpace.core.contract.errors import InputError, listed, shown
from ownpace.core.settings import at_most, not_negative, positive
from ownpace.fleet.network import LONGEST_NAME, Network, ServerMachine, check_site

MEAN_ABS_NORMAL = math.sqrt(2 / math.pi)
"""E|N(0,1)|: a micro-batch takes 1 + jitter times this as long on average."""

MOST_WORKERS = 1_000_000
MOST_SLOWDOWNS = 1000
"""Of one machine: whenever it computes, they are gone through."""
SLOWEST, FASTEST = 1e-6, 1e9
"""Of paces, in samples per second: beyond, a step is smaller than what a clock of seconds can tell apart."""
WIDEST = 1e6
"""How many times faster than another a machine may be: while one computes once, the other computes that often."""
LATEST_S = 1e12
FaultKind = Literal["kill", "pause", "cut"]


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """A time during which a machine is `factor` times slower: from_s ≤ t < until_s."""

    from_s: float
    until_s: float
    factor: float

    def __post_init__(self) -> None:
        not_negative(from_s=self.from_s, until_s=self.until_s)
        at_most(LATEST_S, from_s=self.from_s, until_s=self.until_s)
        positive(factor=self.factor)
        if not 1 / WIDEST <= self.factor <= WIDEST:
            raise InputError(f"factor is {self.factor}; it must be between {1 / WIDEST:g} and {WIDEST:g}")
        if not self.from_s < self.until_s:
            raise InputError(f"from_s is {self.from_s} and until_s is {self.until_s}; until_s must be later")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """`count` machines of one kind, each with one worker."""

    samples_per_s: float | None = None
    """The pace: samples whose gradient it computes in a second, undisturbed. None: as fast as it really is."""
    name: str = "worker"
    """Its workers are name-0, name-1 …; machines of the same name share one numbering."""
    count: int = 1
    jitter: float = 0.0
    """Each micro-batch takes (1 + jitter·|N(0,1)|) times as long."""
    io_s_per_sample: float = 0.0
    """Time to load a sample."""
    s_per_batch: float = 0.0
    """Time to begin a micro-batch, whatever its size."""
    s_per_update: float = 0.0
    """Time of a worker's own optimizer step, and of what goes with it."""
    slowdown: tuple[Slowdown, ...] = ()
    site: str = ""
    """Where it is: what `network.between` links."""

    def __post_init__(self) -> None:
        positive(samples_per_s=self.samples_per_s, count=self.count)
        fixed = {"s_per_batch": self.s_per_batch, "s_per_update": self.s_per_update}
        not_negative(jitter=self.jitter, io_s_per_sample=self.io_s_per_sample, **fixed)
        at_most(1000, jitter=self.jitter)
        at_most(1 / SLOWEST, io_s_per_sample=self.io_s_per_sample, **fixed)
        if self.samples_per_s is not None and not SLOWEST <= self.samples_per_s <= FASTEST:
            raise InputError(f"samples_per_s is {self.samples_per_s}; it must be between {SLOWEST:g} and {FASTEST:g}")
        changes = (self.jitter, self.io_s_per_sample, self.s_per_batch, self.s_per_update, self.slowdown)
        if self.samples_per_s is None and any(changes):
            raise InputError(
                f"machine '{self.name}' has no samples_per_s, but jitter, io_s_per_sample, s_per_batch, s_per_update "
                "or slow-downs, which change a pace; give it one, or leave those out"
            )
        _check_name(self.name)
        check_site(self.site)
        if len(self.slowdown) > MOST_SLOWDOWNS:
            raise InputError(
                f"machine '{self.name}' has {len(self.slowdown):,} slow-downs; it may have {MOST_SLOWDOWNS:,}, at most"
            )
        spans = sorted(self.slowdown, key=lambda slow: slow.from_s)
        for earlier, later in pairwise(spans):
            if later.from_s < earlier.until_s:
                raise InputError(
                    f"machine '{self.name}' has slow-downs that overlap at {later.from_s} s; let one end first"
                )

    def mean_samples_per_s(self, micro_batch: int | None = None) -> float:
        """What it computes in a second on average, its jitter counted, and no more than it can load.

        With micro-batches of this many samples; None: of as many as make the cost of beginning one negligible.
        """
        assert self.samples_per_s is not None, "the pace of this machine is not known in advance"
        computes = self.samples_per_s / (1 + self.jitter * MEAN_ABS_NORMAL)
        if micro_batch and self.s_per_batch:
            computes /= 1 + self.s_per_batch * self.samples_per_s / micro_batch
        # Loading and computing overlap, so the slower of the two sets the pace.
        return min(computes, 1 / self.io_s_per_sample) if self.io_s_per_sample else computes


@dataclass(frozen=True, kw_only=True)
class PlannedFault:
    """What happens to a machine: killed, paused, or cut off the network; back at `back_at_s`, if ever."""

    worker: str
    """A worker's name; of a kill, also a server's: server-0 is the first."""
    at_s: float
    kind: FaultKind = "kill"
    back_at_s: float | None = None
    """When it goes on (pause, cut), or is started again (kill). None: never; a server after a few seconds."""

    def __post_init__(self) -> None:
        not_negative(at_s=self.at_s, back_at_s=self.back_at_s)
        if self.kind not in get_args(FaultKind):
            raise InputError(f"kind is '{self.kind}'; allowed: {', '.join(get_args(FaultKind))}")
        if self.server is not None and self.kind != "kill":
            raise InputError(f"kind is '{self.kind}', but {self.worker} is a server; servers can only be killed")
        if self.back_at_s is not None and not self.back_at_s > self.at_s:
            raise InputError(f"back_at_s is {self.back_at_s} and at_s is {self.at_s}; back_at_s must be later")
        if self.kind == "pause" and self.back_at_s is None:
            raise InputError("a pause needs back_at_s; add it, or use kind = 'kill'")

    @property
    def server(self) -> int | None:
        """The server's index, if it happens to one."""
        role, _, index = self.worker.rpartition("-")
        # Nine digits: Python refuses to read thousands of them, and no fleet has so many servers.
        return int(index) if role == "server" and index.isdecimal() and len(index) < 10 else None


_UNDISTURBED = ((0.0, 1.0),)


@dataclass(frozen=True)
class WorkerMachine:
    """One worker and the machine it runs on."""

    name: str
    machine: Machine
    pauses: tuple[tuple[float, float], ...] = ()
    away: tuple[tuple[float, float], ...] = ()
    """When it is dead or cut off: it may compute then, but for nothing."""

    @cached_property
    def rate_changes(self) -> tuple[tuple[float, float], ...]:
        """(from when, pace as a share of the undisturbed one), in order of time; before the first it is 1."""
        if not self.pauses and not self.machine.slowdown:
            return _UNDISTURBED  # one for all: in large fleets that is most of what a machine costs
        edges = {0.0}
        edges.update(edge for slow in self.machine.slowdown for edge in (slow.from_s, slow.until_s))
        edges.update(edge for pause in self.pauses for edge in pause)
        return tuple((edge, self._rate(edge)) for edge in sorted(edges) if edge < math.inf)

    def _rate(self, time: float) -> float:
        if any(start <= time < stop for start, stop in self.pauses):
            return 0.0
        # At most one applies: slow-downs of a machine that overlap were refused.
        return next((1 / slow.factor for slow in self.machine.slowdown if slow.from_s <= time < slow.until_s), 1.0)

    def mean_rate(self, until_s: float) -> float:
        """The pace as a share of the undisturbed one, averaged over the run's time."""
        if until_s <= 0 or (len(self.rate_changes) == 1 and not self.away):
            return self._rate(0.0)
        work = 0.0
        edges = {edge for edge, _ in self.rate_changes} | {edge for span in self.away for edge in span}
        # Each rate holds until the next change, the last one until the end of the run.
        starts = [
            (edge, 0.0 if any(start <= edge < stop for start, stop in self.away) else self._rate(edge))
            for edge in sorted(edges)
            if edge < until_s
        ]
        for (start, rate), stop in zip(starts, [edge for edge, _ in starts[1:]] + [until_s], strict=True):
            work += (stop - start) * rate
        return work / until_s


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """All machines of one run."""

    machine: tuple[Machine, ...]
    network: Network = field(default_factory=Network)
    server: tuple[ServerMachine, ...] = ()
    fault: tuple[PlannedFault, ...] = ()

    def __post_init__(self) -> None:
        if not self.machine:
            raise InputError("the fleet has no workers; give it at least one [[machine]]")
        # Before they are made: so many would not fit into memory.
        if (count := sum(machine.count for machine in self.machine)) > MOST_WORKERS:
            raise InputError(f"the fleet has {shown(count)} workers; at most {MOST_WORKERS:,} can be simulated")
        paces = [machine.samples_per_s for machine in self.machine if machine.samples_per_s is not None]
        if paces and max(paces) > WIDEST * min(paces):
            raise InputError(
                f"the paces of the fleet are {min(paces):g} to {max(paces):g} samples/s; "
                f"the fastest may be {WIDEST:,.0f} times as fast as the slowest, at most"
            )
        known = {worker.name for worker in self.workers}
        for fault in self.fault:
            num_servers = max(1, len(self.server))
            if fault.server is not None and fault.server >= num_servers:
                raise InputError(
                    f"a fault names '{fault.worker}', but the fleet's last server is server-{num_servers - 1}; "
                    "give it more [[server]] tables, or name another"
                )
            if fault.server is None and fault.worker not in known:
                names = listed([worker.name for worker in self.workers], 8)
                raise InputError(
                    f"a fault names the worker {shown(fault.worker)}, which is not in the fleet; known: {names}"
                )

    @cached_property
    def workers(self) -> tuple[WorkerMachine, ...]:
        """Every worker, in the order of the file and site by site: its index is its rank.

        So a ring passes each border between two sites once.
        """
        numbers: Counter[str] = Counter()
        pauses, away = self._pauses(), self._away()
        workers = []
        for machine in self.machine:
            for _ in range(machine.count):
                name = f"{machine.name}-{numbers[machine.name]}"
                numbers[machine.name] += 1
                workers.append(WorkerMachine(name, machine, tuple(pauses.get(name, ())), tuple(away.get(name, ()))))
        sites = {site: number for number, site in enumerate(dict.fromkeys(each.machine.site for each in workers))}
        return tuple(sorted(workers, key=lambda worker: sites[worker.machine.site]))

    def site_of(self, server: ServerMachine) -> str:
        """Where a server is: with the first worker, unless it says otherwise."""
        return self.workers[0].machine.site if server.site is None else server.site

    def _pauses(self) -> dict[str, list[tuple[float, float]]]:
        """Of each worker, from when until when."""
        pauses: dict[str, list[tuple[float, float]]] = {}
        for fault in self.fault:
            if fault.kind == "pause" and fault.back_at_s is not None:
                pauses.setdefault(fault.worker, []).append((fault.at_s, fault.back_at_s))
        return pauses

    def _away(self) -> dict[str, list[tuple[float, float]]]:
        """Of each worker, from when until when it is not in the fleet."""
        away: dict[str, list[tuple[float, float]]] = {}
        for fault in self.fault:
            if fault.kind != "pause":
                back_s = math.inf if fault.back_at_s is None else fault.back_at_s
                away.setdefault(fault.worker, []).append((fault.at_s, back_s))
        return away

    @property
    def paced(self) -> bool:
        """Whether every machine has a pace, so that its time can be predicted."""
        return all(machine.samples_per_s is not None for machine in self.machine)

    def limit_samples_per_s(
        self,
        until_s: float,
        micro_batch: int | None = None,
        away: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    ) -> float:
        """The sum of what each worker would compute alone and without waiting, over the first `until_s` seconds.

        Jitter, slow-downs, the times at which a machine was away and the beginning of each micro-batch count, at their
        average; updates do not. Loading counts only where it is slower than computing, since it can be hidden behind
        that. `away` is from when until when workers, by name, were away; None: as planned.
        """
        workers = self.workers
        if away is not None:
            workers = tuple(replace(worker, away=tuple(away.get(worker.name, ()))) for worker in workers)
        return sum(worker.machine.mean_samples_per_s(micro_batch) * worker.mean_rate(until_s) for worker in workers)


def _check_name(name: str) -> None:
    # Nodes are found by their names, and these are those of servers and communicators.
    if name in ("", "server", "communicator"):
        raise InputError(f"name is '{name}', which is reserved; choose another or leave it out")
    # Names stand in addresses of messages, in names of log files and on terminals.
    if len(name.encode(errors="replace")) > LONGEST_NAME or not name.isprintable() or "/" in name or name[0] in ".-":
        raise InputError(
            f"name is {shown(name)}; it must have at most {LONGEST_NAME} bytes, all of them printable, "
            "without /, and begin neither with . nor with -"
        )

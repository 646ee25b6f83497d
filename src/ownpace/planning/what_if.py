"""What if the fleet were another? `drop:old`, `add:new:2`, `bandwidth:x10`, `latency:x0.1`, `network:x10`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ownpace.core.contract.errors import InputError, listed, shown
from ownpace.fleet import Fleet, Machine

MOST_CLASSES = 6
"""With more classes of machines, only this many, the first, are asked about by default."""
NONE = "none"
"""What stands, alone, for no question."""
HOW = f"write drop:CLASS, add:CLASS:NUMBER, bandwidth:x10, latency:x0.1, network:x10, or {NONE} alone"


@dataclass(frozen=True)
class OtherFleet:
    """A question, and the fleet that it is about."""

    name: str
    fleet: Fleet


def classes(fleet: Fleet) -> dict[str, list[int]]:
    """The kinds of machines, as indices into the fleet's: by name, and where one name has several paces, by both.

    >>> from ownpace.fleet import paces
    >>> classes(paces(4000, 1000, 1000))
    {'worker@4000': [0], 'worker@1000': [1, 2]}
    """
    paces_of: dict[str, set[float | None]] = {}
    for machine in fleet.machine:
        paces_of.setdefault(machine.name, set()).add(machine.samples_per_s)
    found: dict[str, list[int]] = {}
    for index, machine in enumerate(fleet.machine):
        several = len(paces_of[machine.name]) > 1
        found.setdefault(f"{machine.name}@{machine.samples_per_s:g}" if several else machine.name, []).append(index)
    return found


def by_default(fleet: Fleet) -> list[str]:
    """Without each class of machines, ten times the network, twice as many of each class."""
    names = list(classes(fleet))[:MOST_CLASSES]
    # The last class cannot be dropped, and a fleet of one machine has no network.
    drops = [f"drop:{name}" for name in names] if len(names) > 1 else []
    network = ["network:x10"] if len(fleet.workers) > 1 else []
    return drops + network + [f"add:{name}:{num_workers(fleet, name)}" for name in names]


def num_workers(fleet: Fleet, name: str) -> int:
    """Of one class."""
    return sum(fleet.machine[index].count for index in classes(fleet)[name])


def imagined(fleet: Fleet, question: str) -> OtherFleet:
    """The fleet that a question is about.

    Raises:
        InputError: It cannot be understood; the message says what can.
    """
    kind, _, rest = question.partition(":")
    if kind == "drop":
        return OtherFleet(question, _without(fleet, rest, question))
    if kind == "add":
        name, _, number = rest.rpartition(":")
        return OtherFleet(question, _with_more(fleet, name, number, question))
    if kind in ("bandwidth", "latency", "network"):
        return OtherFleet(question, _with_network(fleet, kind, _factor(rest, question)))
    raise InputError(f"--what-if was given {shown(question)}; {HOW}")


def _without(fleet: Fleet, name: str, question: str) -> Fleet:
    gone = _indices(fleet, name, question)
    left = tuple(machine for index, machine in enumerate(fleet.machine) if index not in gone)
    if not left:
        raise InputError(f"--what-if was given '{question}', which leaves no machine; drop another")
    return _fleet(fleet, left)


def _with_more(fleet: Fleet, name: str, number: str, question: str) -> Fleet:
    indices = _indices(fleet, name, question)
    if not (number.isascii() and number.isdigit() and 0 < int(number[:12]) <= 1_000_000):
        raise InputError(f"--what-if was given {shown(question)}; write add:{name}:NUMBER, as in add:{name}:2")
    more = replace(fleet.machine[indices[0]], count=int(number), slowdown=())
    return _fleet(fleet, (*fleet.machine, more))


def _with_network(fleet: Fleet, kind: str, factor: float) -> Fleet:
    network, between = fleet.network, fleet.network.between
    if kind in ("bandwidth", "network"):
        network = replace(network, bandwidth_bytes_per_s=max(1.0, network.bandwidth_bytes_per_s * factor))
        if between is not None and between.bandwidth_bytes_per_s is not None:
            between = replace(between, bandwidth_bytes_per_s=max(1.0, between.bandwidth_bytes_per_s * factor))
    if kind in ("latency", "network"):
        # A network that is ten times as good has a tenth of the latency.
        times = 1 / factor if kind == "network" else factor
        network = replace(network, latency_s=network.latency_s * times)
        between = between and replace(between, latency_s=between.latency_s * times)
    servers = tuple(
        server
        if server.bandwidth_bytes_per_s is None or kind == "latency"
        else replace(server, bandwidth_bytes_per_s=max(1.0, server.bandwidth_bytes_per_s * factor))
        for server in fleet.server
    )
    return replace(fleet, network=replace(network, between=between), server=servers)


def _factor(text: str, question: str) -> float:
    try:
        factor = float(text.removeprefix("x"))
    except ValueError:
        factor = 0.0
    if not text.startswith("x") or not 1e-6 <= factor <= 1e6:
        kind = question.partition(":")[0]
        raise InputError(
            f"--what-if was given {shown(question)}; write {kind}:x and a factor from 1e-6 to 1e6, as in {kind}:x10"
        )
    return factor


def _indices(fleet: Fleet, name: str, question: str) -> Sequence[int]:
    known = classes(fleet)
    if name in known:
        return known[name]
    # A name whose machines are of several paces: all of them.
    if name and (indices := [index for index, machine in enumerate(fleet.machine) if machine.name == name]):
        return indices
    raise InputError(f"--what-if was given {shown(question)}; this fleet's machines are {listed(known)}: {HOW}")


def _fleet(fleet: Fleet, machines: tuple[Machine, ...]) -> Fleet:
    """These machines on the fleet's network; what happens to machines that are not there does not happen."""
    numbers: Counter[str] = Counter()
    for machine in machines:
        numbers[machine.name] += machine.count
    there = {f"{name}-{index}" for name, count in numbers.items() for index in range(count)}
    faults = tuple(fault for fault in fleet.fault if fault.server is not None or fault.worker in there)
    return replace(fleet, machine=machines, fault=faults)

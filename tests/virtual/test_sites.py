"""What is between sites: uplinks that all machines of a site share, in each direction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from ownpace import Algorithm, make_algorithm
from ownpace.core.contract.events import Event, Generation, Transfer
from ownpace.fleet import Between, Fleet, Machine, Network, PlannedFault, ServerMachine
from ownpace.tasks import Quadratic
from ownpace.testing import simulate

BYTES = 1000
"""Of the parameters."""


def fleet(sites: str = "aabb", between: Between | None = None, server: str | None = None, **more: Any) -> Fleet:
    """Links take a second for the parameters, uplinks four, and latencies 0.1 s and 0.5 s."""
    between = between or Between(bandwidth_bytes_per_s=BYTES / 4, latency_s=0.5)
    return Fleet(
        machine=tuple(Machine(samples_per_s=1e6, site=site, name=site) for site in sites),
        network=Network(bandwidth_bytes_per_s=BYTES, latency_s=0.1, between=between),
        server=(ServerMachine(site=server),),
        **more,
    )


@dataclass(frozen=True, kw_only=True)
class Sending(Algorithm):
    """Everybody sends the parameters to the ranks that a text says: `0>2 1>2` lets 0 and 1 send to 2, in this order."""

    ways: str

    async def worker(self, me):
        for way in self.ways.split():
            sender, receiver = map(int, way.split(">"))
            if me.rank == sender:
                me.send(me.workers.members[receiver], me.parameters)
            if me.rank == receiver:
                await me.receive(me.workers.members[sender])


def transfers(events: list[Event], what: str) -> list[Transfer]:
    return [event for event in events if isinstance(event, Transfer) and event.what == what]


def arrivals(ways: str, machines: Fleet) -> list[float]:
    """When each arrives, in the order of sending; at the same time all are sent."""
    _, events = simulate(Sending(ways=ways), machines, task=Quadratic(dimensions=BYTES // 4), seconds=100.0)
    return [event.until for event in transfers(events, "send")]


def test_inside_a_site_there_is_no_uplink():
    assert arrivals("0>1 2>3", fleet()) == pytest.approx([1.1, 1.1])


def test_what_leaves_a_site_shares_its_uplink():
    assert arrivals("0>2 1>3", fleet()) == pytest.approx([4.6, 8.6])


def test_what_comes_to_a_site_shares_its_uplink():
    assert arrivals("0>2 1>2", fleet("abc")) == pytest.approx([4.6, 8.6])


def test_each_direction_is_a_way_of_its_own():
    assert arrivals("0>2 3>1", fleet()) == pytest.approx([4.6, 4.6])


def test_machines_of_a_busy_site_talk_to_each_other_meanwhile():
    assert arrivals("0>2 1>0", fleet()) == pytest.approx([4.6, 1.1])


def test_without_a_bandwidth_only_the_latency_is_between():
    assert arrivals("0>2 1>3", fleet(between=Between(latency_s=0.5))) == pytest.approx([1.6, 1.6])


def test_a_wide_uplink_is_no_faster_than_the_machines_links():
    assert arrivals("0>2", fleet(between=Between(bandwidth_bytes_per_s=1e9))) == pytest.approx([1.1], abs=1e-4)


@pytest.mark.parametrize(
    ("site", "far"),
    [(None, {"b-0"}), ("a", {"b-0"}), ("b", {"a-0", "a-1", "a-2"}), ("c", {"a-0", "a-1", "a-2", "b-0"})],
)
def test_a_server_is_with_the_first_worker_or_where_the_fleet_says(site, far):
    machines = fleet("aaab", Between(latency_s=0.5), site)
    _, events = simulate(make_algorithm("async"), machines, task=Quadratic(dimensions=BYTES // 4), samples=8)
    pushes = [event for event in transfers(events, "send") if event.who[1] == "server-0"][:4]
    # All push at once, and the server takes them in one a second: half a second later where they cross a border.
    late = {event.who[0] for event in pushes if round(event.until % 1, 2) == 0.6}
    assert late == far


def test_a_chain_passes_each_border_once():
    machines = fleet("aabbcc")
    _, events = simulate(
        make_algorithm("layered", {"groups": 1}), machines, task=Quadratic(dimensions=BYTES // 4), samples=64
    )
    # Six workers and a communicator: six latencies, and two borders, at the bandwidth of an uplink.
    for what in ("reduce", "broadcast"):
        first = transfers(events, what)[0]
        assert first.until - first.t == pytest.approx(4 + 6 * 0.1 + 2 * 0.5)


def test_survivors_at_two_sites_need_longer_to_regroup():
    def began_s(machines: Fleet) -> float:
        dies = replace(machines, fault=(PlannedFault(worker="a-1", at_s=50),))
        _, events = simulate(make_algorithm("sync"), dies, task=Quadratic(dimensions=BYTES // 4), seconds=100.0)
        (generation,) = [event for event in events if isinstance(event, Generation)]
        return generation.t

    # Agreeing takes four latencies, and then the parameters of one go to the two others.
    assert began_s(fleet("aaa")) == pytest.approx(50 + 4 * 0.1 + 1 + 0.1)
    assert began_s(fleet("aabb")) == pytest.approx(50 + 4 * 0.6 + 4 + 2 * 0.1 + 0.5)


def test_a_run_that_is_resumed_finds_uplinks_as_they_were():
    """At a checkpoint the workers' farewells are on their way to the server, and take up the uplink."""
    states: list[Any] = []
    job: dict[str, Any] = {"task": Quadratic(dimensions=BYTES // 4), "samples": 96, "checkpoint_every": 40}
    algorithm, machines = make_algorithm("sync", {"via": "servers"}), fleet("abb", server="a")
    _, events = simulate(algorithm, machines, on_checkpoint=states.append, **job)
    assert states[0]["uplinks"]["b"][1] > states[0]["time_s"]
    _, again = simulate(algorithm, machines, on_checkpoint=states.append, resume_from=dict(states[0]), **job)
    assert again == events[-len(again) :]

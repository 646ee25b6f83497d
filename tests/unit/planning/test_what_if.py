"""Questions about other fleets, and errors that say how to ask."""

from __future__ import annotations

import pytest

from ownpace.core.contract.errors import InputError
from ownpace.fleet import Between, Fleet, Machine, Network, PlannedFault, ServerMachine, paces
from ownpace.planning.what_if import by_default, imagined

FLEET = Fleet(
    machine=(Machine(name="new", count=2, samples_per_s=4000), Machine(name="old", count=3, samples_per_s=600)),
    network=Network(bandwidth_bytes_per_s=1e8, latency_s=1e-3, between=Between(bandwidth_bytes_per_s=1e7)),
    server=(ServerMachine(bandwidth_bytes_per_s=1e6),),
    fault=(PlannedFault(worker="old-2", at_s=1.0), PlannedFault(worker="server-0", at_s=2.0)),
)


def names(fleet: Fleet) -> list[str]:
    return [worker.name for worker in fleet.workers]


def test_machines_go_and_come():
    without = imagined(FLEET, "drop:old").fleet
    assert names(without) == ["new-0", "new-1"]
    assert [fault.worker for fault in without.fault] == ["server-0"]  # who is not there does not die
    more = imagined(FLEET, "add:new:2").fleet
    assert sorted(names(more)) == ["new-0", "new-1", "new-2", "new-3", "old-0", "old-1", "old-2"]
    assert len(imagined(paces(4000, 1000, 1000), "drop:worker@1000").fleet.workers) == 1


def test_networks_get_better():
    network = imagined(FLEET, "bandwidth:x10").fleet.network
    assert (network.bandwidth_bytes_per_s, network.latency_s) == (1e9, 1e-3)
    assert network.between.bandwidth_bytes_per_s == 1e8
    assert imagined(FLEET, "latency:x0.1").fleet.network.latency_s == pytest.approx(1e-4)
    both = imagined(FLEET, "network:x10").fleet
    assert both.network.bandwidth_bytes_per_s == 1e9
    assert both.network.latency_s == pytest.approx(1e-4)
    assert both.server[0].bandwidth_bytes_per_s == 1e7


def test_the_usual_questions():
    assert by_default(FLEET) == ["drop:new", "drop:old", "network:x10", "add:new:2", "add:old:3"]
    assert by_default(paces(1000)) == ["add:worker:1"]
    for question in by_default(paces(4000, 2000, 1000, 1000)):
        assert imagined(paces(4000, 2000, 1000, 1000), question).fleet.workers


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("drop:young", "this fleet's machines are new, old"),
        ("drop:", "this fleet's machines are new, old"),
        ("add:new", "this fleet's machines are new, old"),
        ("add:new:many", "as in add:new:2"),
        ("add:new:0", "as in add:new:2"),
        ("bandwidth:10", "as in bandwidth:x10"),
        ("latency:x-1", "as in latency:x10"),
        ("gpus:x10", "write drop:CLASS"),
        ("", "write drop:CLASS"),
    ],
)
def test_what_cannot_be_understood_is_explained(question, said):
    with pytest.raises(InputError, match="--what-if was given") as error:
        imagined(FLEET, question)
    assert said in str(error.value)


def test_the_last_machine_stays():
    with pytest.raises(InputError, match="leaves no machine"):
        imagined(paces(1000), "drop:worker")

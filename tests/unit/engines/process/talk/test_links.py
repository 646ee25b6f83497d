"""Prescribed links: when a message is due, by the formulas of the virtual network."""

from __future__ import annotations

import pytest
import torch

from ownpace.algorithms import make_algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.values import Address, Shard
from ownpace.engines.job import Job
from ownpace.engines.process.talk.links import PrescribedLink, PrescribedLinks
from ownpace.engines.process.talk.wire import Packet
from ownpace.fleet import Between, Fleet, Machine, Network, ServerMachine
from ownpace.tasks import Quadratic

WHOLE = Shard(0, 0, 100)
WORKERS = [Address("worker", rank, f"worker-{rank}", WHOLE) for rank in range(2)]
SERVER = Address("server", 0, "server-0", WHOLE)
LINKS = PrescribedLinks(of_workers=100.0, of_servers=(50.0,), latency_s=0.25)


def sent(link: PrescribedLink, now: float, floats: int = 25) -> Packet:
    packet = Packet(torch.zeros(floats), sent_s=now)
    link.leave(packet)
    return packet


def dues(link: PrescribedLink) -> list[tuple[object, Address]]:
    """When which sender's messages are due."""
    found: list[tuple[object, Address]] = []
    now = 0.0
    while (left := link.next_s(now)) is not None:
        now += left
        found += [(now, sender) for sender, _ in link.due(now)]
    return found


def test_a_message_takes_as_long_as_the_slower_link_needs():
    own, to = PrescribedLink(LINKS, WORKERS[0]), PrescribedLink(LINKS, SERVER)
    to.hold(WORKERS[0], sent(own, 1.0))
    assert dues(to) == [(pytest.approx(1.0 + 100 / 50 + 0.25), WORKERS[0])]
    own, to = PrescribedLink(LINKS, SERVER), PrescribedLink(LINKS, WORKERS[1])
    to.hold(SERVER, sent(own, 1.0))
    assert dues(to) == [(pytest.approx(1.0 + 100 / 50 + 0.25), SERVER)]


def test_both_links_carry_one_after_the_other():
    links = [PrescribedLink(LINKS, worker) for worker in WORKERS]
    to = PrescribedLink(LINKS, SERVER)
    packets = [(WORKERS[0], sent(links[0], 0.0)), (WORKERS[0], sent(links[0], 0.0)), (WORKERS[1], sent(links[1], 0.5))]
    for worker, packet in packets:
        to.hold(worker, packet)
    assert packets[1][1].start_s == 1.0  # its own way out was taken until then
    assert dues(to) == [
        (pytest.approx(2.25), WORKERS[0]),
        (pytest.approx(4.25), WORKERS[0]),
        (pytest.approx(6.25), WORKERS[1]),
    ]


def test_what_has_no_body_takes_its_notes():
    to = PrescribedLink(LINKS, SERVER)
    packet = Packet(None, {"a": 1.0, "b": 2.0}, sent_s=0.0)
    PrescribedLink(LINKS, WORKERS[0]).leave(packet)
    to.hold(WORKERS[0], packet)
    assert dues(to) == [(pytest.approx(16 / 50 + 0.25), WORKERS[0])]


def job(network: Network) -> Job:
    fleet = Fleet(
        machine=(Machine(samples_per_s=1.0),),
        network=network,
        server=(ServerMachine(), ServerMachine(bandwidth_bytes_per_s=7.0)),
    )
    return Job(algorithm=make_algorithm("async"), task=Quadratic(), fleet=fleet, samples=8, batch_size=8)


def test_a_fleet_prescribes_links_if_it_says_so():
    assert PrescribedLinks.of(job(Network())) is None
    links = PrescribedLinks.of(job(Network(bandwidth_bytes_per_s=9.0, latency_s=0.5, prescribed=True)))
    assert links == PrescribedLinks(9.0, (9.0, 7.0), 0.5)


def test_uplinks_cannot_be_prescribed():
    with pytest.raises(InputError, match="processes cannot prescribe uplinks"):
        PrescribedLinks.of(job(Network(prescribed=True, between=Between(latency_s=1.0))))

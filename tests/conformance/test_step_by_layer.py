"""Sums hidden behind backward and forward passes: the same parameters bit for bit, at times of a plain recurrence."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.process.deep import WIDTH, Deep
from tests.process.schedules import Unequal

from ownpace import make_algorithm
from ownpace.core.contract.events import Event, Transfer, Update
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.fleet import Fleet, Machine, Network, PlannedFault, Slowdown
from ownpace.report import summarize
from ownpace.testing import simulate

LAYERS = 5
LAYER_BYTES = 4 * WIDTH * WIDTH
BATCH = 8


def fleet(paces: list[float], sum_s: float, latency_s: float, **machine: object) -> Fleet:
    """Machines whose sums of a whole gradient take so long, besides latency."""
    share = 2 * (len(paces) - 1) / len(paces)
    network = Network(bandwidth_bytes_per_s=share * LAYERS * LAYER_BYTES / sum_s, latency_s=latency_s)
    return Fleet(machine=tuple(Machine(samples_per_s=pace, **machine) for pace in paces), network=network)  # type: ignore[arg-type]


def times(events: list[Event]) -> list[float]:
    """When each update was first made."""
    made: dict[int, float] = {}
    for event in events:
        if isinstance(event, Update):
            made.setdefault(event.version, event.t)
    return [made[version] for version in sorted(made)]


def recurrence(paces: list[float], sum_s: float, latency_s: float, updates: int) -> list[float]:
    """When each update is made: a third of a batch's time is the forward pass's, every layer takes as long."""
    came = [0.0] * LAYERS
    made: list[float] = []
    for number in range(updates):
        ready = [0.0] * LAYERS
        for pace in paces:
            takes, time = BATCH / pace, came[0]
            for layer in range(LAYERS):
                time = max(time, came[layer]) + takes / 3 / LAYERS
            for layer in range(LAYERS):
                ready[layer] = max(ready[layer], time + 2 / 3 * takes * (LAYERS - layer) / LAYERS)
        link, left = min(ready), list(range(LAYERS))
        while left:
            link = max(link, min(ready[layer] for layer in left))
            lowest = min(layer for layer in left if ready[layer] <= link * (1 + 1e-12))
            left.remove(lowest)
            link += sum_s / LAYERS
            came[lowest] = link + 2 * (len(paces) - 1) * latency_s
        made.append(max(came) if number == updates - 1 else came[0])
    return made


@settings(max_examples=25, deadline=None)
@given(
    paces=st.lists(st.sampled_from([100.0, 150.0, 370.0]), min_size=2, max_size=4),
    sum_s=st.floats(0.001, 0.4),
    latency_s=st.sampled_from([0.0, 0.001, 0.03]),
)
@example(paces=[100.0, 100.0], sum_s=0.04, latency_s=0.0)
@example(paces=[100.0, 100.0], sum_s=0.16, latency_s=0.001)
def test_updates_are_made_when_a_plain_recurrence_says(paces, sum_s, latency_s):
    job = {"task": Deep(), "samples": 6 * BATCH * len(paces), "batch_size": BATCH, "timing_only": True}
    _, events = simulate(make_algorithm("sync"), fleet(paces, sum_s, latency_s), **job)
    assert times(events) == pytest.approx(recurrence(paces, sum_s, latency_s, 6), rel=1e-9)
    assert [event.nbytes for event in events if isinstance(event, Transfer)] == [LAYER_BYTES] * (6 * LAYERS)


@pytest.mark.parametrize(
    ("sum_s", "period", "whole"),
    [
        # Of half a batch, one of five layers' part: the lowest layer's, which no pass can hide.
        (0.5, 1.1, 1.1),
        # Of longer sums, what cannot be hidden, and about a layer more. Without the forward pass, that is exposed, too.
        (1.0, 1.37, 1.47),
        (2.0, 2.27, 2.47),
    ],
)
@pytest.mark.parametrize(("name", "paces"), [("sync", [100.0] * 4), ("balanced", [200.0, 100.0, 50.0, 50.0])])
def test_what_is_exposed(name, paces, sum_s, period, whole):
    takes = BATCH * 4 / sum(paces)
    sizes = tuple(int(pace * takes) for pace in paces)
    given = fleet(paces, sum_s * takes, 0.0)
    for algorithm, size, expected in ((make_algorithm(name), BATCH, period), (Unequal(sizes=sizes), sizes[0], whole)):
        _, events = simulate(algorithm, given, task=Deep(), samples=32 * 60, batch_size=size, timing_only=True)
        made = times(events)
        assert (made[-2] - made[10]) / (len(made) - 12) == pytest.approx(expected * takes, rel=0.01)
        assert summarize(events).staleness.max == 0


@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("micro_batch", [8, 3])
def test_the_parameters_are_the_same_bit_for_bit(clip_norm, micro_batch):
    optimizer = OptimizerSpec(lr=0.05, momentum=0.9, weight_decay=0.01, clip_norm=clip_norm)
    slow = Slowdown(from_s=0.1, until_s=0.3, factor=3)
    given = fleet([200.0, 150.0, 100.0], 0.05, 0.001, slowdown=(slow,))
    job = {"task": Deep(), "samples": 120, "sampling": "shards", "micro_batch": micro_batch, "optimizer": optimizer}
    ours, events = simulate(make_algorithm("sync"), given, **job)
    whole, others = simulate(Unequal(sizes=(8, 8, 8)), given, **job)
    assert all(torch.equal(ours.model[name], tensor) for name, tensor in whole.model.items())
    # Clipping needs all layers, so only the backward pass hides something: the same for both.
    assert (times(events) == times(others)) == (clip_norm is not None)


def test_samples_count_once_where_a_machine_dies_between_two_layers():
    """Some of the sums are under way then, and some updates of which not all layers have come."""
    for at_s in (0.31, 0.33, 0.35, 0.37, 0.39):
        given = fleet([100.0, 100.0, 100.0], 0.08, 0.001)
        faults = (PlannedFault(worker="worker-1", at_s=at_s),)
        _, events = simulate(
            make_algorithm("sync"),
            Fleet(machine=given.machine, network=given.network, fault=faults),
            task=Deep(),
            samples=240,
            on_failure="continue",
        )
        assert events[-1].reason == "finished"
        assert summarize(events).samples >= 240
        made = [event for event in events if isinstance(event, Update)]
        totals = {event.version: event.total_samples for event in made}
        sizes = {event.version: event.samples for event in made}
        assert totals[max(totals)] == sum(sizes.values())


def test_small_vectors_are_summed_in_one_hop():
    """Three hops there and three back around a ring of four; at once, one, with twice the bytes."""
    made = []
    for direct_bytes in (0, 40):
        network = Network(bandwidth_bytes_per_s=40e3, latency_s=0.01, direct_bytes=direct_bytes)
        machines = Machine(samples_per_s=100, count=4)
        _, events = simulate(make_algorithm("sync"), Fleet(machine=(machines,), network=network), samples=96)
        made.append(times(events))
    assert made[0] == pytest.approx([n * (0.08 + 0.0015 + 0.06) for n in (1, 2, 3)])
    assert made[1] == pytest.approx([n * (0.08 + 0.003 + 0.01) for n in (1, 2, 3)])

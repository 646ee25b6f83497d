"""Layered SGD is Sync-SGD, however the workers are divided, and hides the sum between groups behind the loading."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.conformance.plain import (
    MESSAGE_BYTES,
    TASK,
    Draws,
    Model,
    Setting,
    engine,
    gradient_sum,
    updates,
)
from torch import Tensor

from ownpace import make_algorithm
from ownpace.algorithms.layered import LayeredSgd
from ownpace.core.contract.events import Compute, Load, Transfer, Update
from ownpace.core.contract.roles import Learner
from ownpace.core.contract.values import Gradient
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.core.learning.schedule import Schedule
from ownpace.fleet import Fleet, paces
from ownpace.testing import run_on, simulate

# It is Sync-SGD ----------------------------------------------------------------------------------------------------


def synchronous(setting: Setting) -> Tensor:
    """The mean over everybody's samples at the current weights, and η by the samples that came before."""
    model, draws = Model(setting), Draws(setting.seed)
    whole = setting.num_workers * setting.batch_size
    while model.samples < setting.samples:
        model.step(gradient_sum(model.weights, draws.take(whole)) / whole, whole)
    return model.weights


def divided(sizes: list[int]) -> str:
    return ",".join(map(str, sizes))


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    micro_batch=st.none() | st.integers(1, 6),
    speeds=st.lists(st.integers(200, 5000), min_size=16, max_size=16),
    momentum=st.sampled_from([0.0, 0.9]),
    weight_decay=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 100),
)
@example(sizes=[1, 4], micro_batch=None, speeds=[1000] * 16, momentum=0.9, weight_decay=0.1, seed=0)
def test_every_partition_is_sync(sizes, micro_batch, speeds, momentum, weight_decay, seed):
    num_workers = sum(sizes)
    setting = Setting(
        paces=tuple(map(float, speeds[:num_workers])),
        batch_size=6,
        micro_batch=micro_batch,
        samples=20 * 6 * num_workers,
        lr=0.1,
        momentum=momentum,
        weight_decay=weight_decay,
        cosine=True,
        seed=seed,
    )
    outcome, events = engine(setting, "layered", sizes=divided(sizes))
    sync, sync_events = engine(setting, "sync")
    torch.testing.assert_close(outcome.model["at"], sync.model["at"], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(outcome.model["at"].double(), synchronous(setting), rtol=1e-4, atol=1e-5)
    made = [(update.version, update.samples, update.total_samples, update.staleness) for update in updates(events)]
    assert made == [(e.version, e.samples, e.total_samples, e.staleness) for e in updates(sync_events)]
    assert len(made) == 20
    assert events[0].groups["communicators"] == [f"communicator-{i}" for i in range(len(sizes))]
    assert [len(events[0].groups[f"subgroup-{i}"]) for i in range(len(sizes))] == [size + 1 for size in sizes]


UNEQUAL = Setting(
    paces=(4000.0, 2000.0, 1000.0, 1000.0, 500.0),
    batch_size=6,
    samples=600,
    lr=0.1,
    momentum=0.9,
    weight_decay=0.1,
    cosine=True,
)


def test_one_subgroup_is_sync_bit_for_bit():
    ours, sync = engine(UNEQUAL, "layered", groups=1)[0], engine(UNEQUAL, "sync")[0]
    assert torch.equal(ours.model["at"], sync.model["at"])


def test_the_learning_rate_is_that_of_the_gradients_own_iteration():
    """The released code takes that of the next one; the difference is well visible."""
    setting = replace(UNEQUAL, samples=150)  # five updates
    ours = engine(setting, "layered", sizes="1,4")[0].model["at"].double()
    torch.testing.assert_close(ours, synchronous(setting), rtol=1e-4, atol=1e-5)
    model, draws = Model(setting), Draws(setting.seed)
    while model.samples < setting.samples:
        gradient = gradient_sum(model.weights, draws.take(30)) / 30
        model.samples += 30
        model.step(gradient, 0)
    assert (ours - model.weights).abs().max() > 0.05


def test_processes_do_the_same():
    fleet = paces(3000, 3000, 2000, jitter=0.0)
    job = {
        "optimizer": OptimizerSpec(lr=0.05, momentum=0.9, weight_decay=0.1, schedule=Schedule(shape="cosine")),
        "samples": 480,
        "micro_batch": 5,
        # Of a queue, a worker may take its next batch before one of another subgroup has taken that of this update.
        "sampling": "iid",
    }
    layered, events = run_on("process", LayeredSgd(sizes="1,2"), fleet, **job)
    sync, _ = run_on("process", make_algorithm("sync"), fleet, **job)
    assert (layered.error, sync.error) == (None, None)
    torch.testing.assert_close(layered.model["at"], sync.model["at"], rtol=1e-4, atol=1e-6)
    assert len(updates(events)) == 20
    assert events[0].groups["communicators"] == ["communicator-0", "communicator-1"]


# What happens when -------------------------------------------------------------------------------------------------


def with_loading(setting: Setting, io_s_per_sample: float) -> Fleet:
    """The setting's fleet, where a sample has to be loaded."""
    fleet = setting.fleet
    return replace(fleet, machine=tuple(replace(machine, io_s_per_sample=io_s_per_sample) for machine in fleet.machine))


class History(NamedTuple):
    """What happened to one worker and in its subgroup, by iteration."""

    loads: list[Load]
    computes: list[Compute]
    reduces: list[Transfer]
    broadcasts: list[Transfer]


def histories(fleet: Fleet, sizes: str, **job: object) -> dict[str, History]:
    """What happened, by worker."""
    _, events = simulate(LayeredSgd(sizes=sizes), fleet, task=TASK, lr=0.01, **job)
    groups = {name: members for name, members in events[0].groups.items() if name.startswith("subgroup")}
    result: dict[str, History] = {}
    for group, members in groups.items():
        transfers = [event for event in events if isinstance(event, Transfer) and event.who == group]
        for who in members[:-1]:
            result[who] = History(
                loads=[event for event in events if isinstance(event, Load) and event.who == who],
                computes=[event for event in events if isinstance(event, Compute) and event.who == who],
                reduces=[event for event in transfers if event.what == "reduce"],
                broadcasts=[event for event in transfers if event.what == "broadcast"],
            )
    return result


SLOW_LINKS = Setting(
    paces=(1000.0, 1300.0, 700.0, 1100.0, 900.0),
    batch_size=6,
    samples=600,
    latency=2e-3,
    bandwidth=MESSAGE_BYTES / 3e-3,
)


@pytest.mark.parametrize("io_s_per_sample", [1e-4, 5e-3])
def test_the_order_of_events(io_s_per_sample):
    """compute(t) < reduce(t);  load(t+1) < broadcast(t) < forward(t+1), which the step lies before."""
    workers = histories(with_loading(SLOW_LINKS, io_s_per_sample), "2,3", samples=600, batch_size=6)
    assert len(workers) == 5
    for happened in workers.values():
        loads, computes, reduces, broadcasts = happened
        assert len(computes) == len(reduces) == len(broadcasts) == len(loads) - 1 == 20
        for t in range(19):
            assert loads[t].until <= computes[t].t
            assert computes[t].until <= reduces[t].t
            assert reduces[t].until < broadcasts[t].t
            assert loads[t + 1].until <= broadcasts[t].t
            assert broadcasts[t].until <= computes[t + 1].t
            assert [computes[t].version, computes[t + 1].version] == [t, t + 1]  # the step was taken in between


def test_the_next_batch_is_loaded_after_the_reduce():
    workers = histories(with_loading(SLOW_LINKS, 1e-3), "2,3", samples=600, batch_size=6)
    for happened in workers.values():
        for t in range(19):
            assert happened.reduces[t].until <= happened.loads[t + 1].t


@settings(max_examples=30)
@given(
    size=st.integers(1, 3),
    groups=st.integers(1, 4),
    io_s_per_sample=st.floats(1e-4, 1e-2),
    message_s=st.floats(1e-4, 1e-2),
    latency_s=st.floats(0, 5e-3),
)
def test_the_sum_between_groups_hides_behind_the_loading(size, groups, io_s_per_sample, message_s, latency_s):
    """A period is at most t_fb + t_reduce + max(t_io, t_AR(G)) + t_bcast; exactly so if there is less to load."""
    workers = (1000.0,) * (size * groups)
    setting = Setting(paces=workers, batch_size=6, bandwidth=MESSAGE_BYTES / message_s, latency=latency_s)
    period, paper = measured_and_paper(setting, groups, io_s_per_sample)
    assert period <= paper * (1 + 1e-9)
    if 6 * io_s_per_sample <= all_reduce_seconds(groups, message_s, latency_s):
        assert period == pytest.approx(paper)


@pytest.mark.parametrize(
    "io_s_per_sample",
    [
        pytest.param(1e-3, id="the sum takes longer"),
        pytest.param(1e-2, id="loading takes longer"),
    ],
)
def test_a_period_is_that_of_the_paper(io_s_per_sample):
    """t_fb + t_reduce + max(t_io, t_AR(G)) + t_bcast."""
    setting = Setting(paces=(1000.0,) * 6, batch_size=6, bandwidth=MESSAGE_BYTES / 8e-3, latency=1e-3)
    period, paper = measured_and_paper(setting, 2, io_s_per_sample)
    assert period == pytest.approx(paper)


def test_sync_hides_nothing():
    """t_io + t_fb + t_AR(N)."""
    setting = Setting(paces=(1000.0,) * 6, batch_size=6, bandwidth=MESSAGE_BYTES / 8e-3, latency=1e-3)
    _, events = simulate(make_algorithm("sync"), with_loading(setting, 1e-2), task=TASK, batch_size=6, samples=360)
    periods = [b.t - a.t for a, b in itertools.pairwise(updates(events))]
    assert periods == pytest.approx([6 * 1e-2 + 6 / 1000 + all_reduce_seconds(6, 8e-3, 1e-3)] * 9)


def all_reduce_seconds(members: int, message_s: float, latency_s: float) -> float:
    hops = 2 * (members - 1)
    return hops / members * message_s + hops * latency_s


def measured_and_paper(setting: Setting, groups: int, io_s_per_sample: float) -> tuple[float, float]:
    """Seconds from update to update, as they are and as the paper's formula has them."""
    _, events = simulate(
        LayeredSgd(groups=groups),
        with_loading(setting, io_s_per_sample),
        task=TASK,
        batch_size=6,
        samples=8 * 6 * setting.num_workers,
        lr=0.01,
    )
    times = [update.t for update in updates(events)]
    periods = [b - a for a, b in itertools.pairwise(times)]
    assert periods == pytest.approx([periods[-1]] * 7)
    message_s = MESSAGE_BYTES / setting.bandwidth
    chain_s = message_s + setting.num_workers // groups * setting.latency  # a subgroup's workers and its communicator
    fb_s, io_s = 6 / setting.paces[0], 6 * io_s_per_sample
    sum_s = all_reduce_seconds(groups, message_s, setting.latency)
    return periods[-1], fb_s + chain_s + max(io_s, sum_s) + chain_s


# Communicators -----------------------------------------------------------------------------------------------------


class Listening:
    """A communicator that does as the one it stands before, and keeps what passes through it."""

    def __init__(self, me, bodies):
        self.me = me
        self._bodies = bodies

    def __getattr__(self, name):
        return getattr(self.me, name)

    def all_reduce(self, body, group=None):
        self._bodies.append(body)
        return self.me.all_reduce(body, group)

    def broadcast(self, body, root, group):
        self._bodies.append(body)
        return self.me.broadcast(body, root, group)


def test_communicators_hold_no_weights():
    """They have no parameters to hold, update nothing, compute nothing, and see nothing but sums of gradients."""
    listening = []
    bodies: list[Gradient] = []

    class Watched(LayeredSgd):
        async def communicator(self, me):
            listening.append(Listening(me, bodies))
            await super().communicator(listening[-1])

    _, events = simulate(Watched(sizes="1,3"), samples=320)
    assert len(listening) == 2
    learns = [name for name in ("parameters", "step", "peek") if hasattr(Learner, name)]
    assert len(learns) == 3
    assert not any(hasattr(node.me, name) for node in listening for name in learns)
    assert {event.who.split("-")[0] for event in events if isinstance(event, Update | Compute)} == {"worker"}
    assert {type(body) for body in bodies} == {Gradient}
    # Of the smaller subgroup, of the larger, and of both: sums and counts, never a mean of means.
    assert {body.samples for body in bodies} == {8, 24, 32}
    assert len(bodies) == 2 * 2 * 10


def test_subgroups_are_the_sites_of_the_fleet():
    assert LayeredSgd().subgroups_at(["a", "a", "b", "c", "c"]) == ((0, 1), (2,), (3, 4))
    # Of one site, halves; and what was asked for is what is done.
    assert LayeredSgd().subgroups_at(["a"] * 4) == ((0, 1), (2, 3))
    assert LayeredSgd(groups=2).subgroups_at(["a", "b", "c", "d"]) == ((0, 1), (2, 3))
    assert LayeredSgd(sizes="1,3").subgroups_at(["a", "b", "c", "d"]) == ((0,), (1, 2, 3))

"""Torture finds what it is there to find: each broken algorithm is named by an invariant, and a sound one by none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from ownpace import Algorithm
from ownpace.algorithms.async_ import AsyncSgd
from ownpace.algorithms.local import LocalSgd
from ownpace.algorithms.stale import StaleSgd
from ownpace.core.blocks.accumulate import accumulate
from ownpace.core.blocks.local_round import LocalRound
from ownpace.core.contract.events import Generation
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.fleet import Fleet, Machine, PlannedFault, ServerMachine
from ownpace.testing.torture import INVARIANTS, TortureSubject, draw_scenario, torture
from ownpace.testing.torture.parameters import applies_every_sample_once
from ownpace.testing.torture.tasks import Ballots
from ownpace.testing.torture.trial import carry_out

SEEDS = range(24)


@dataclass(frozen=True, kw_only=True)
class Sound(Algorithm):
    """Sync-SGD, as a user might write it."""

    replicas_identical = True

    async def worker(self, me):
        while me.training:
            me.step(await me.all_reduce(await me.gradient()))


class Forgetful(Sound):
    """Every third gradient is computed for nothing."""

    async def worker(self, me):
        number = 0
        while me.training:
            number += 1
            gradient = await me.gradient()
            if number % 3:
                me.step(await me.all_reduce(gradient))


class Repeating(Sound):
    """Every third update is made twice."""

    async def worker(self, me):
        number = 0
        while me.training:
            number += 1
            total = await me.all_reduce(await me.gradient())
            me.step(total)
            if number % 3 == 0:
                me.step(total)


class Selfish(Sound):
    """Each worker steps with what it has itself."""

    async def worker(self, me):
        while me.training:
            gradient = await me.gradient()
            await me.all_reduce(gradient)
            me.step(gradient)


class Parting(Sound):
    """The first worker leaves before the others."""

    async def worker(self, me):
        while me.training and (me.rank or me.parameters.version < 3):
            me.step(await me.all_reduce(await me.gradient()))


class Delayed(Sound):
    """Each gradient is applied two updates late."""

    async def worker(self, me):
        waiting = [me.all_reduce(await me.gradient()), me.all_reduce(await me.gradient())]
        while me.training:
            waiting.append(me.all_reduce(await me.gradient()))
            me.step(await waiting.pop(0))
        for pending in waiting:
            me.step(await pending)


class Exploding(Sound):
    """A gradient is scaled by something that is no number."""

    async def worker(self, me):
        while me.training:
            total = await me.all_reduce(await me.gradient())
            me.step(total.with_mean(torch.full_like(total.mean, torch.inf)))


class Weightless(LocalSgd):
    """The weights of the average do not add up."""

    async def worker(self, me):
        while me.training:
            round_ = LocalRound(me)
            round_.step(await accumulate(me, me.batch_size))
            total = await me.all_reduce(round_.difference(round_.samples))
            me.commit(round_.start.values - 0.5 * total.mean, total)


class Hurrying(StaleSgd):
    """Its server waits for nobody."""

    async def server(self, me):
        await AsyncSgd().server(me)


class Pushing(AsyncSgd):
    """Its server makes an update of every push that it has made before, too."""

    async def server(self, me):
        before = None
        while True:
            message = await me.receive()
            me.step(message.gradient)
            if before is not None and me.parameters.version % 5 == 0:
                me.step(before)
            before = message.gradient
            me.send(message.sender, me.parameters)


CASES: dict[str, list[tuple[type[Algorithm], dict[str, Any]]]] = {
    "applies_every_sample_once": [(Forgetful, {}), (Repeating, {}), (Pushing, {})],
    "loses_no_update": [(Selfish, {}), (Weightless, {"kind": "averages"})],
    "ends_as_it_should": [(Parting, {}), (Exploding, {})],
    "bounds_staleness": [(Delayed, {"most_stale": 1})],
    "bounds_the_lead": [(Hurrying, {"most_ahead": 0})],
}


@pytest.mark.parametrize(
    ("invariant", "broken", "traits"),
    [(invariant, *case) for invariant, cases in CASES.items() for case in cases],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_broken_algorithm_is_found(invariant, broken, traits):
    assert invariant in INVARIANTS
    subject = TortureSubject(algorithm=broken(), name="broken", **traits)
    assert any(
        invariant == complaint.partition(":")[0] for seed in SEEDS for complaint in torture(seed, subject).complaints
    )


def test_a_users_algorithm_holds():
    subject = TortureSubject(algorithm=Sound(), name="sound", most_stale=0)
    reports = [torture(seed, subject) for seed in SEEDS]
    assert [str(report) for report in reports if report.complaints] == []
    assert sum(report.updates for report in reports) > 100


def test_equal_seeds_give_equal_reports_that_say_what_was_drawn():
    report = torture(4711)
    assert torture(4711) == report
    assert report != torture(4712)
    for part in (report.replay, "workers: ", "network: ", "batches of"):
        assert part in str(report)


def test_a_sample_that_two_servers_lack_of_two_epochs_has_been_learnt_from_in_both():
    """Each server dies once, in another epoch of five samples: one holds what the other lacks."""
    faults = [PlannedFault(worker=f"server-{index}", at_s=at_s) for index, at_s in enumerate((1.9, 9.9))]
    scenario = draw_scenario(0, "async", num_workers=1)
    job = replace(
        scenario.job,
        task=Ballots(num_samples=5),
        fleet=Fleet(
            machine=(Machine(samples_per_s=10),), server=(ServerMachine(), ServerMachine()), fault=tuple(faults)
        ),
        optimizer=OptimizerSpec(lr=1.0),
        batch_size=1,
        micro_batch=None,
        samples=100,
        seconds=None,
        sampling="queue",
    )
    run = carry_out(replace(scenario, job=job, counts=True))
    lost = [event.lost for event in run.of(Generation)]
    assert [updates > 0 for updates in lost] == [True, True]
    assert list(applies_every_sample_once(run)) == []

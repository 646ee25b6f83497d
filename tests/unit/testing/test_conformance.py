"""The checks for users' algorithms: each finds what it is there to find, and nothing else does."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from ownpace import Algorithm
from ownpace.algorithms.async_ import AsyncSgd
from ownpace.core.contract.errors import InputError
from ownpace.testing import CHECKS, ConformanceError, check_algorithm


@dataclass(frozen=True, kw_only=True)
class Mine(Algorithm):
    """Sync-SGD, as a user might write it."""

    replicas_identical = True

    async def worker(self, me):
        while me.training:
            me.step(await me.all_reduce(await me.gradient()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Slotted(Mine):
    """The same with slots and a parameter."""

    scale: float = 0.5

    async def worker(self, me):
        while me.training:
            me.step(await me.all_reduce(await me.gradient()), lr_scale=self.scale)


@pytest.mark.parametrize("algorithm", [Mine(), Slotted()], ids=["plain", "slots"])
def test_a_users_algorithm_passes(algorithm):
    check_algorithm(algorithm)


class Standing(Mine):
    async def worker(self, me):
        while me.training:
            me.step(await me.all_reduce(await me.gradient()), lr_scale=0)


class Remembering(Mine):
    """The number of runs so far decides what it does."""

    runs = itertools.count()

    async def worker(self, me):
        size = me.batch_size + next(self.runs) % 7
        while me.training:
            me.step(await me.all_reduce(await me.gradient(size)))


class Careless(Mine):
    """Every other gradient is forgotten."""

    async def worker(self, me):
        while me.training:
            await me.gradient()
            me.step(await me.all_reduce(await me.gradient()))


class Impatient(Mine):
    async def worker(self, me):
        for _ in range(5):
            me.step(await me.all_reduce(await me.gradient()))


class Tireless(Mine):
    """It goes on when it should not."""

    async def worker(self, me):
        while me.training:
            for _ in range(50):
                me.step(await me.all_reduce(await me.gradient()))


class Looking(Mine):
    """Values decide how many samples come next."""

    async def worker(self, me):
        size = me.batch_size
        while me.training:
            total = await me.all_reduce(await me.gradient(size))
            size = me.batch_size + int(total.mean.abs().sum() > 1e-3)
            me.step(total)


class Favouring(Mine):
    """Whether gradients have values decides how many samples come next."""

    async def worker(self, me):
        while me.training:
            me.step(await me.all_reduce(await me.gradient(8 + me.parameters.values.is_meta)))


class Selfish(Mine):
    """It promises identical replicas and does not even speak to the others."""

    async def worker(self, me):
        while me.training:
            me.step(await me.gradient())


class Leaving(Mine):
    """The last worker does not wait for the others."""

    async def worker(self, me):
        rounds = itertools.count() if me.rank < 3 else range(10)
        for _ in rounds:
            if not me.training:
                return
            me.step(await me.all_reduce(await me.gradient()))


class OneServer(AsyncSgd):
    """Servers other than the first do nothing."""

    async def server(self, me):
        if me.address.index == 0:
            await super().server(me)


@pytest.mark.parametrize(
    ("algorithm", "check", "message"),
    [
        (Standing(), "finds_the_minimum", "no less than"),
        (Standing(), "learns_from_any_sampling", "with sampling queue, the loss went from"),
        (Standing(), "learns_with_any_optimizer", "with AdamW, the loss went from"),
        (Remembering(), "repeats_itself", "two runs with one seed differ"),
        (Careless(), "counts_every_sample", "samples computed"),
        (Impatient(), "counts_every_sample", "while me.training, workers must go on"),
        (Impatient(), "ends_with_the_time", "the run ended at"),
        (Tireless(), "counts_every_sample", "updates were made after the budget was spent, not at most 0"),
        (Tireless(), "ends_with_the_time", "and the run went on until"),
        (Looking(), "takes_the_same_time_without_gradients", "does it read a value"),
        (Favouring(), "takes_the_same_time_without_gradients", "updates happen at other times"),
        (Selfish(), "keeps_replicas_identical", "replicas_identical is promised"),
        (Leaving(), "ends_though_workers_differ", "a run ended early"),
        (OneServer(), "shares_its_layers_among_servers", "a run ended early"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Algorithm) else None,
)
def test_a_mistake_is_found_and_named(algorithm, check, message):
    with pytest.raises(ConformanceError, match=f"^{type(algorithm).__name__}, {check}: .*{message}"):
        check_algorithm(algorithm, only=check)


def test_every_check_finds_a_mistake_above():
    (cases,) = [mark for mark in test_a_mistake_is_found_and_named.pytestmark if mark.name == "parametrize"]
    assert {check for _, check, _ in cases.args[1]} == set(CHECKS)


def test_what_an_algorithm_does_by_its_nature_can_be_said():
    check_algorithm(Careless(), only="counts_every_sample", drops_samples=True)
    check_algorithm(Impatient(), only="counts_every_sample", ends_by_itself=True)
    check_algorithm(Tireless(), only="counts_every_sample", in_flight=49)
    check_algorithm(Standing(), without=("finds_the_minimum", "learns_from_any_sampling", "learns_with_any_optimizer"))


def test_a_number_of_workers_is_kept():
    @dataclass(frozen=True, kw_only=True)
    class ForThree(Mine):
        async def worker(self, me):
            assert len(me.workers) == 3
            await super().worker(me)

    check_algorithm(ForThree(), num_workers=3)


def test_a_check_that_there_is_not_is_refused():
    with pytest.raises(InputError, match="unknown check 'finds_the_minimun'; did you mean 'finds_the_minimum'"):
        check_algorithm(Mine(), only="finds_the_minimun")
    with pytest.raises(InputError, match="unknown check 'finds_the_minimun'"):
        check_algorithm(Mine(), without=["finds_the_minimun"])

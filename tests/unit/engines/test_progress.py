"""How far a run is, as far as one node knows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ownpace.core.contract.values import Gradient, Parameters, Shard
from ownpace.engines.progress import Progress

sizes = st.lists(st.integers(0, 50), max_size=20)


def gradient(samples: int, *versions: int) -> Gradient:
    return Gradient(torch.zeros(1), samples, versions or (0,))


def parameters(version: int, index: int = 0) -> Parameters:
    return Parameters(torch.zeros(1), version, Shard(index, index, index + 1))


@given(sizes, st.integers(1, 300))
def test_training_ends_when_the_samples_of_the_budget_are_reached(samples: list[int], budget: int) -> None:
    progress = Progress(budget)
    for count in samples:
        assert progress.training == (progress.samples < budget)
        progress.made_update(gradient(count))
    assert progress.samples == sum(samples)
    assert progress.version == len(samples)
    assert progress.training == (sum(samples) < budget)


def test_without_a_budget_it_ends_when_told_so() -> None:
    progress = Progress(math.inf)
    progress.made_update(gradient(10**12))
    assert progress.training
    progress.hear(0, stop=True)
    assert not progress.training
    progress.hear(0, stop=False)  # who has not heard of it yet does not revoke it
    assert not progress.training


@given(st.lists(st.integers(0, 100), min_size=1), st.booleans())
def test_the_largest_count_that_was_heard_of_counts(heard: list[int], counts_alone: bool) -> None:
    progress = Progress(10**6, counts_alone=counts_alone)
    for samples in heard:
        progress.hear(samples, stop=False)
    assert progress.samples == (0 if counts_alone else max(heard))
    assert progress.training


def test_who_counts_alone_still_hears_that_it_is_over() -> None:
    progress = Progress(100, counts_alone=True)
    progress.hear(1000, stop=True)
    assert (progress.samples, progress.training) == (0, False)


@given(st.permutations([(30, False), (10, True), (20, False)]))
def test_the_order_of_what_is_heard_does_not_matter(heard: list[tuple[int, bool]]) -> None:
    progress = Progress(100)
    for samples, stop in heard:
        progress.hear(samples, stop)
    assert (progress.samples, progress.stop) == (30, True)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_staleness_counts_the_updates_since_a_gradient_was_begun(lags: list[int]) -> None:
    progress = Progress(math.inf)
    for made, lag in enumerate(lags):
        begun = max(0, made - lag)
        assert progress.made_update(gradient(1, begun)) == made - begun


@given(st.lists(st.tuples(st.integers(0, 50), st.none() | st.floats(0, 100)), max_size=20))
def test_the_schedule_goes_on_by_the_samples_unless_told_otherwise(made: list[tuple[int, float | None]]) -> None:
    progress = Progress(math.inf)
    for samples, advance in made:
        progress.made_update(gradient(samples), advance)
    expected = sum(samples if advance is None else advance for samples, advance in made)
    assert progress.scheduled == pytest.approx(expected)
    assert progress.samples == sum(samples for samples, _ in made)


def test_what_is_heard_moves_the_schedule_too() -> None:
    progress = Progress(math.inf)
    progress.made_update(gradient(10), advance=25)
    progress.hear(40, stop=False)
    assert (progress.samples, progress.scheduled) == (40, 55)


@given(st.integers(1, 4), st.data())
def test_a_worker_is_as_old_as_the_oldest_of_its_shards(num_shards: int, data: st.DataObject) -> None:
    progress, newest = Progress(math.inf, num_shards), [0] * num_shards
    arrivals = st.lists(st.tuples(st.integers(0, num_shards - 1), st.integers(1, 5)), max_size=12)
    for index, further in data.draw(arrivals):
        newest[index] += further
        progress.placed(parameters(newest[index], index))
        assert progress.versions == tuple(newest)
        assert progress.version == min(newest)
    assert progress.samples == 0  # the samples come with the message


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_gradient_is_of_ones_own_versions_or_of_the_points(num_shards: int) -> None:
    progress = Progress(math.inf, num_shards)
    for index in range(num_shards):
        progress.placed(parameters(5 + index, index))
    assert progress.versions_at(None) == tuple(range(5, 5 + num_shards))
    assert progress.versions_at(parameters(4)) == tuple(range(4, 4 + num_shards))  # one update earlier


def test_ones_own_update_is_one_of_every_shard() -> None:
    progress = Progress(math.inf, num_shards=3)
    progress.made_update(gradient(8, 0, 0, 0))
    assert (progress.version, progress.versions) == (1, (1, 1, 1))

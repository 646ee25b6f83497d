"""What rank 0 says at the end."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
import torch
from tests.summaries import plain_but

from ownpace import join, make_algorithm
from ownpace.algorithms.pace import PaceSgd
from ownpace.auto.looking import Auto
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Worker
from ownpace.drop_in.closing import last_line, warn_of_large_updates
from ownpace.report.summary import Summary, UpdateSamples


def ended(largest: int | None) -> Summary:
    return plain_but(
        algorithm="PaceSgd",
        samples=8192,
        updates=64,
        samples_per_s=1234.0,
        share_of_limit=0.912,
        update_samples=UpdateSamples(128.0, largest),
    )


def test_one_line_says_how_large_updates_were_and_how_fast_it_went() -> None:
    assert last_line(ended(192), PaceSgd(), 4) == (
        "ownpace: pace on 4 workers: 8,192 samples in 64 updates of 128 on average (at most 192), "
        "1,234 samples/s, 91 % of the sum of their paces"
    )


def test_an_algorithm_of_ones_own_goes_by_the_name_of_its_class() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Own(Algorithm):
        async def worker(self, me: Worker) -> None:
            me.step(me.no_gradient())

    summary = dataclasses.replace(ended(None), algorithm="Own")
    assert last_line(summary, Own(), 1).startswith("ownpace: Own on 1 worker: 8,192 samples in 64 updates of 128 on")


def test_who_has_chosen_another_names_it() -> None:
    auto = Auto()
    assert last_line(dataclasses.replace(ended(None), algorithm="Auto"), auto, 2).startswith("ownpace: Auto on 2 ")
    auto.chosen[:] = [PaceSgd()]
    assert last_line(ended(None), auto, 2).startswith("ownpace: pace (chosen by auto) on 2 workers: ")
    with pytest.warns(UserWarning, match="an update had 800 samples"):  # what it has gone on as counts
        warn_of_large_updates(ended(800), auto, 32, 4)


@pytest.mark.parametrize(
    ("name", "parameters", "largest", "warns"),
    [
        ("abs", {}, 260, False),  # twice as many, and one more of each worker
        ("abs", {}, 261, True),
        ("abs", {"max_batch": 400}, 400, False),
        ("pace", {}, 261, True),  # more than its bound: several batches for one step, say
        ("pace", {"max_batch": 0}, 10**6, False),  # allowed by name
        ("pace", {"target_batch": 512}, 1024, False),
        ("pace", {"target_batch": 64}, 133, True),
        ("local", {}, 10**6, False),  # prescribes its rounds
    ],
)
def test_larger_updates_than_asked_for_are_warned_of(
    name: str, parameters: dict[str, object], largest: int, warns: bool
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_large_updates(ended(largest), make_algorithm(name, parameters), 32, 4)
    assert bool(caught) == warns
    if warns:
        assert f"an update had {largest:,} samples" in str(caught[0].message)
        assert "max_batch" in str(caught[0].message)
        assert "target_batch" in str(caught[0].message)


@pytest.mark.parametrize(
    ("parameters", "mean", "warns"),
    [({}, 512.0, False), ({}, 513.0, True), ({"steps": 5}, 513.0, False), ({"max_batch": 10**6}, 10**5, False)],
)
def test_longer_rounds_than_asked_for_are_warned_of(parameters: dict[str, object], mean: float, warns: bool) -> None:
    summary = dataclasses.replace(ended(10**6), update_samples=UpdateSamples(mean, 10**6))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_large_updates(summary, make_algorithm("stride", parameters), 32, 4)
    assert bool(caught) == warns
    if warns:
        assert "a round of stride had 513 samples on average, where 256 were asked for" in str(caught[0].message)
        assert '"max_batch": 256' in str(caught[0].message)


@pytest.mark.parametrize(("asked", "called"), [("pace", "pace"), ("auto", "sync")])
def test_a_summary_calls_the_algorithm_at_work_as_the_user_does(asked: str, called: str) -> None:
    model: torch.nn.Module = torch.nn.Linear(2, 1)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with join(asked, quiet=True) as fleet:
        model, optimizer = fleet.wrap(model, optimizer)
        for x in fleet.batches([torch.ones(2)] * 64, batch_size=1):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert fleet.summary is not None
    assert fleet.summary.algorithm == called

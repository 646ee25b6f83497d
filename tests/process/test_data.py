"""Every kind of data, on two ranks and alone."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.process.scenarios_data import get_batch, learn
from tests.process.small_net import Numbers, make_net, mean_loss, sgd
from tests.process.started import PATIENCE_S, Start, importable, torchrun

import ownpace

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)


def run(scenario: str, start: Start, folder: Path) -> list[Any]:
    """Run a scenario on two ranks; returns what each saw."""
    started = start(torchrun("-m", "tests.process.scenarios_data", scenario, str(folder)), PYTHONPATH=importable())
    assert started.ends() == 0, started.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def samples(ranks: list[Any], name: str, loop: int = 0) -> Counter[int]:
    return Counter(index for rank in ranks for index in rank[name]["seen"][loop])


def test_every_kind_of_data_on_two_ranks(start: Start, tmp_path: Path) -> None:
    ranks = run("every_kind", start, tmp_path)
    everything = list(range(61))
    assert samples(ranks, "loader") == dict.fromkeys(everything, 2)
    assert samples(ranks, "stream") == dict.fromkeys(everything, 2)
    assert samples(ranks, "stream, with workers") == dict.fromkeys(everything, 1)
    assert samples(ranks, "in order") == dict.fromkeys(everything, 1)
    assert all(rank["in order"]["seen"][0] == sorted(rank["in order"]["seen"][0]) for rank in ranks)
    weighted = samples(ranks, "weighted")
    assert min(weighted) >= 30
    assert weighted.total() == 122
    assert max(weighted.values()) < 20
    function = samples(ranks, "function")
    assert (len(function), function.total()) == (120, 120)  # of a million: no rank drew what the other did
    whole = samples(ranks, "whole batches")
    assert (len(whole), whole.total()) == (56, 56)
    for name in ("loader", "stream", "stream, with workers", "weighted", "function", "in order", "whole batches"):
        assert ranks[0][name]["weights"] == ranks[1][name]["weights"], name
        learnt = {"loader": 122, "stream": 122, "weighted": 122, "function": 120, "whole batches": 56}.get(name, 61)
        assert ranks[0][name]["summary"]["samples"] == learnt, name


@pytest.mark.slow
def test_batches_can_be_gone_through_again(start: Start, tmp_path: Path) -> None:
    ranks = run("again", start, tmp_path)
    for loop in (0, 2):
        assert samples(ranks, "several", loop) == dict.fromkeys(range(61), 1)
    assert ranks[0]["several"]["seen"][0] != ranks[0]["several"]["seen"][2]
    assert max(samples(ranks, "several", 1).values()) == 1
    for rank in ranks:
        assert rank["several"]["lengths"] == [4]
        assert rank["shapes"]["counts"] == [4, 4, 4]
    for name in ("several", "shapes"):
        assert ranks[0][name]["weights"] == ranks[1][name]["weights"]


@pytest.mark.slow
def test_data_that_differs_is_refused_in_every_loop(start: Start, tmp_path: Path) -> None:
    ranks = run("different_data", start, tmp_path)
    parts = {
        "contents": "the digest of some samples of rank 1 is ",
        "stream": "the digest of some samples of rank 1 is ",
        "sampler": "the order of rank 1 is that of list (",
        "batch size": "the batch size of rank 1 is 9, that of rank 0 is 8",
        "limit": "the end of the loop of rank 1 is None updates, 9 samples",
        "second": "the number of samples of rank 1 is 17, that of rank 0 is 16",
    }
    for name, part in parts.items():
        for rank in ranks:
            assert part in rank[name], name
            assert "\n" not in rank[name]
    assert [rank["nothing"] for rank in ranks] == ["", ""]


@pytest.mark.parametrize(
    ("scenario", "mark"),
    [
        ("longer_stream", "the end of epoch 1 is after item"),
        pytest.param("other_stream", "item 32 is ", marks=pytest.mark.slow),
    ],
)
def test_streams_that_differ_later_on_are_refused(start: Start, tmp_path: Path, scenario: str, mark: str) -> None:
    for words in run(scenario, start, tmp_path):
        assert "read different data: " in words
        assert mark in words


@pytest.mark.parametrize("algorithm", ["sync", "pace", "local"])
def test_a_function_feeds_a_fleet_of_one(algorithm: str) -> None:
    seen = learn(algorithm, (get_batch, {"batch_size": 8, "samples": 60}))
    assert (len(seen["seen"][0]), seen["summary"]["samples"]) == (60, 60)


def test_updates_end_a_loop_over_a_function() -> None:
    seen = learn("sync", (get_batch, {"batch_size": 8, "updates": 5}))
    assert (seen["summary"]["updates"], seen["summary"]["samples"]) == (5, 40)


def test_a_loop_over_a_function_may_be_left() -> None:
    net = make_net()
    optimizer = sgd(net)
    steps = 0
    with ownpace.join("sync") as fleet:
        fleet.wrap(net, optimizer)
        for x, y, _ in fleet.batches(lambda: get_batch(8), 8):
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps == 5:
                break
    assert fleet.summary is not None
    assert (fleet.summary.updates, fleet.summary.samples) == (5, 40)


def test_the_scripts_own_random_numbers_stay_as_they_are() -> None:
    """What a script draws is what it would draw with a plain loop, whatever the fleet looks at."""
    torch.manual_seed(3)
    expected = torch.rand(8)
    torch.manual_seed(3)
    drawn = []
    with ownpace.join("sync") as fleet:
        net = torch.nn.Linear(6, 3)
        torch.manual_seed(3)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        fleet.wrap(net, optimizer)
        for x, y, _ in fleet.batches(Numbers(64), 8):
            drawn.append(torch.rand(1))
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert torch.equal(torch.cat(drawn), expected)


def with_next_taken_early(algorithm: str, *, before_forward: bool) -> None:
    """A loop that takes the next batch before the step of this one, as some scripts do to hide loading."""
    net = make_net()
    optimizer = sgd(net)
    with ownpace.join(algorithm) as fleet:
        fleet.wrap(net, optimizer)
        batches = iter(fleet.batches(Numbers(64), 8))
        following = next(batches)
        while following is not None:
            x, y, _ = following
            if before_forward:
                following = next(batches, None)
            loss = mean_loss(net, x, y)
            if not before_forward:
                following = next(batches, None)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("algorithm", ["sync", "pace", "async"])
def test_a_batch_taken_between_forward_and_backward_pass_is_refused(algorithm: str) -> None:
    with pytest.raises(ownpace.InputError, match="from before the latest batch was taken") as raised:
        with_next_taken_early(algorithm, before_forward=False)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("algorithm", ["sync", "pace"])
def test_a_batch_taken_before_the_step_of_the_last_is_refused_at_the_end(algorithm: str) -> None:
    early = pytest.warns(UserWarning, match="take each batch after the step of the last")
    with early, pytest.raises(ownpace.InputError, match="each after the step before"):
        with_next_taken_early(algorithm, before_forward=True)


def test_losses_of_several_batches_for_one_backward_pass_are_refused() -> None:
    """Nothing could tell how many of the batches they were of."""
    net = make_net()

    def run() -> None:
        with ownpace.join("sync") as fleet:
            fleet.wrap(net, sgd(net))
            losses = []
            for x, y, _ in fleet.batches(Numbers(64), 8):
                losses.append(mean_loss(net, x, y))
                if len(losses) == 2:
                    sum(losses).backward()

    with pytest.raises(ownpace.InputError, match="from before the latest batch was taken"):
        run()

"""What scripts do at odd moments: write to parameters or gradients, save right after loading, skip, unwrap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.process.ranks import run
from tests.process.small_net import Numbers, make_net, mean_loss
from tests.process.started import PATIENCE_S, Start
from torch import Tensor, nn

import ownpace

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)
SIZE = 64


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a node may not answer for 10 s: it would be started again, and a batch dealt twice."""
    monkeypatch.setenv("OWNPACE_SILENCE_S", str(PATIENCE_S))


def learn(
    fleet: Any, net: nn.Module, optimizer: torch.optim.Optimizer, *, stop: int | None = None, skip: int = -1
) -> tuple[list[int], Any]:
    """A loop over numbered samples; returns those that it saw, and the state at the break."""
    seen: list[int] = []
    for number, (x, y, indices) in enumerate(fleet.batches(Numbers(SIZE), 4)):
        seen += indices.tolist()
        if number == skip:
            continue
        mean_loss(net, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number + 1 == stop:
            return seen, fleet.state_dict()
    return seen, None


def fleet_of(algorithm: str, **parameters: Any) -> tuple[Any, nn.Module, torch.optim.Optimizer]:
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    fleet = ownpace.join(algorithm, parameters=parameters, quiet=True)
    return fleet, net, optimizer


@pytest.mark.slow
def test_servers_deal_what_is_left() -> None:
    fleet, net, optimizer = fleet_of("async")
    with fleet:
        fleet.wrap(net, optimizer)
        before, state = learn(fleet, net, optimizer, stop=6)
    fleet, net, optimizer = fleet_of("async")
    with fleet:
        fleet.wrap(net, optimizer)
        fleet.load_state_dict(state)
        after, _ = learn(fleet, net, optimizer)
        assert fleet.samples == SIZE
    assert sorted(before + after) == [*range(SIZE)]


def test_a_state_that_is_saved_right_after_loading_is_the_same() -> None:
    fleet, net, optimizer = fleet_of("sync")
    with fleet:
        fleet.wrap(net, optimizer)
        learn(fleet, net, optimizer)
        before, state = learn(fleet, net, optimizer, stop=6)
    for _ in range(2):
        fleet, net, optimizer = fleet_of("sync")
        with fleet:
            fleet.wrap(net, optimizer)
            fleet.load_state_dict(state)
            again = fleet.state_dict()
            assert {key: again[key] for key in ("loop", "began", "progress")} == {
                key: state[key] for key in ("loop", "began", "progress")
            }
            state = again
    fleet, net, optimizer = fleet_of("sync")
    with fleet:
        fleet.wrap(net, optimizer)
        fleet.load_state_dict(state)
        after, _ = learn(fleet, net, optimizer)
        assert (fleet.samples, fleet.epoch) == (2 * SIZE, 2)
    assert sorted(before + after) == [*range(SIZE)]


def test_skipped_batches_of_a_round_are_used_up() -> None:
    fleet, net, optimizer = fleet_of("local", steps=2)
    with fleet:
        fleet.wrap(net, optimizer)
        _, state = learn(fleet, net, optimizer, stop=6, skip=1)  # steps 1 and 3, then 4 and 5; 6 is in mid-round
    assert state is not None
    assert state["left"].tolist() == [[5 * 4, SIZE]]


def test_rates_of_numpy_can_be_loaded_again(tmp_path: Path) -> None:
    for resume in (False, True):
        fleet, net, optimizer = fleet_of("sync")
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: np.interp([step], [0, 9], [1, 2])[0])
        with fleet:
            fleet.wrap(net, optimizer, scheduler=schedule)
            if resume:
                fleet.load(tmp_path / "saved.pt")
                assert schedule.last_epoch == SIZE // 4
            else:
                learn(fleet, net, optimizer)
                fleet.save(tmp_path / "saved.pt")


class Mixed(nn.Module):
    """Parameters of two types."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Linear(4, 4).bfloat16()
        self.wide = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.wide(self.narrow(x.bfloat16()).float())
        return y


def test_weights_that_are_loaded_after_wrap_count_whatever_their_type() -> None:
    net = Mixed()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    with ownpace.join("pace", quiet=True) as fleet:
        fleet.wrap(net, optimizer)
        for value in (1.0, 2.0):  # before the first loop, and between loops
            net.load_state_dict({key: torch.full_like(old, value) for key, old in net.state_dict().items()})
            for x in fleet.batches(torch.ones(16, 4), 4):
                optimizer.zero_grad()
                net(x).mean().backward()
                optimizer.step()
            assert all(bool((parameter == value).all()) for parameter in net.parameters())


@pytest.mark.parametrize("algorithm", ["sync", "pace"])
@pytest.mark.parametrize("last", [False, True])
def test_clipped_weights_stay_clipped_or_are_refused(algorithm: str, last: bool) -> None:
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    of_generator = torch.optim.SGD(generator.parameters(), lr=0.1)
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.5)

    def clip() -> None:
        for parameter in critic.parameters():
            parameter.data.clamp_(-0.01, 0.01)

    def train() -> None:
        with ownpace.join(algorithm, quiet=True) as fleet:
            fleet.wrap(generator, of_generator)
            fleet.wrap(critic, of_critic)
            for x in fleet.batches(torch.ones(32, 2), 4):
                of_critic.zero_grad()
                (critic(generator(x).detach()).mean() - critic(x).mean()).backward()
                of_critic.step()
                if not last:
                    clip()
                of_generator.zero_grad()
                (-critic(generator(x)).mean()).backward()
                of_generator.step()
                if last:
                    clip()
                assert max(float(p.detach().abs().max()) for p in critic.parameters()) <= 0.01

    if algorithm == "pace" and not last:
        with pytest.raises(ownpace.InputError, match=r"in the middle of a batch.*register_step_post_hook"):
            train()
    else:
        train()


def test_a_batch_that_is_skipped_after_zeroing_in_place_does_not_count() -> None:
    fleet, net, optimizer = fleet_of("sync")
    with fleet:
        fleet.wrap(net, optimizer)
        for number, x in enumerate(fleet.batches(torch.ones(40, 6), 4)):
            optimizer.zero_grad(set_to_none=False)
            if number % 2:
                continue
            net(x).square().mean().backward()
            optimizer.step()
        assert fleet.samples == 20
        # Accumulated in place, they all count.
        for number, x in enumerate(fleet.batches(torch.ones(40, 6), 4)):
            if number % 2 == 0:
                optimizer.zero_grad(set_to_none=False)
            (net(x).square().mean() / 2).backward()
            if number % 2:
                optimizer.step()
        assert fleet.samples == 60


def test_a_batch_that_is_taken_early_is_warned_of() -> None:
    fleet, net, optimizer = fleet_of("sync")
    with fleet:
        fleet.wrap(net, optimizer)
        batches = iter(fleet.batches(torch.ones(40, 6), 4))
        early = next(batches)
        x, early = early, next(batches)
        net(x).square().mean().backward()
        with pytest.warns(UserWarning, match="is still held; if this step is of it"):
            optimizer.step()
        optimizer.zero_grad()
        del early
        for number, x in enumerate(batches):  # skipping is no mistake
            if number % 2 == 0:
                net(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        fresh = fleet.batches(torch.ones(40, 6), 4)
        with pytest.raises(ownpace.InputError, match=r"within another one \(zip\?\).*ordinary DataLoader"):
            for _ in zip(fresh, fleet.batches(torch.ones(40, 6), 4), strict=False):
                pass


def test_skipping_the_first_batch_is_not_warned_of() -> None:
    fleet, net, optimizer = fleet_of("sync")
    with fleet:
        fleet.wrap(net, optimizer)
        for number, x in enumerate(fleet.batches(torch.ones(40, 6), 4)):
            if number:
                net(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()


def test_a_schedule_steps_again_after_unwrap() -> None:
    fleet, net, optimizer = fleet_of("sync")
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with fleet:
        fleet.wrap(net, optimizer, scheduler=schedule)
        learn(fleet, net, optimizer)
        fleet.unwrap()
        (before,) = schedule.get_last_lr()
        optimizer.step()
        schedule.step()
        assert schedule.get_last_lr() == [before / 2]


@pytest.mark.slow
def test_two_ranks_at_odd_moments(start: Start, tmp_path: Path) -> None:
    ranks = run("everything", start, tmp_path, "tests.process.scenarios_odd_moments")
    assert [rank["off"] for rank in ranks] == [{"data": 0, "other": 0, "skipped": 0}] * 2
    # A rank that never steps a model itself sees the steps of the others.
    assert len(set(ranks[0]["seen"])) > 1
    assert all("gradients were changed" in refusal for rank in ranks for refusal in rank["refusals"])
    assert [rank["loaded"] for rank in ranks] == [80, 80]
    (told,), untold = ranks[0]["centers"]
    assert told.startswith("center, which no optimizer has, is another one on each rank after this loop")
    assert [untold, *ranks[1]["centers"]] == [[], [], []]
    for clamps in (rank["clamps"] for rank in ranks):
        assert "ranks are at different updates" in clamps["pace"]
        assert "parameter servers hold the model" in clamps["async"]
        assert "register_step_post_hook" in clamps["pace"]
        assert clamps["pace, hook"] == clamps["sync"] == "at most 0.05"


def test_a_schedule_does_not_count_a_broken_round_twice() -> None:
    state = None
    for stop in (14, None):  # within the second round of eight steps, which is made again
        fleet, net, optimizer = fleet_of("local", steps=8)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        with fleet:
            fleet.wrap(net, optimizer, scheduler=schedule)
            if state is not None:
                fleet.load_state_dict(state)
                assert schedule.last_epoch == 14
            _, state = learn(fleet, net, optimizer, stop=stop)
    assert schedule.last_epoch == SIZE // 4

"""What scripts do wrong, or not quite right: it is counted right, or said."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.process.ranks import launch
from tests.process.small_net import Numbers, close, flat, make_net, mean_loss, sgd
from tests.process.started import PATIENCE_S, Start
from torch import Tensor, nn

import ownpace
from ownpace.drop_in.other_steps import OtherSteps
from ownpace.drop_in.taken_early import TakenEarly
from ownpace.engines.process.node.flat_steps import FlatSteps
from ownpace.engines.process.node.user_pair import UserPair


@pytest.mark.parametrize("zeroing", ["before", "after, in place"])
def test_a_batch_that_is_skipped_while_old_gradients_are_there_is_not_counted(zeroing):
    """Zeroing at the top of the loop is as usual as at its end; then the last step's gradients are still there."""
    net = make_net()
    optimizer = sgd(net)
    with ownpace.join("sync", quiet=True) as fleet:
        fleet.wrap(net, optimizer)
        for number, (x, y, _) in enumerate(fleet.batches(Numbers(40), 8)):
            if number == 2:
                continue
            if zeroing == "before":
                optimizer.zero_grad()
            mean_loss(net, x, y).backward()
            optimizer.step()
            if zeroing != "before":
                optimizer.zero_grad(set_to_none=False)
            if number == 3:
                with pytest.raises(ownpace.InputError, match="twice for one batch"):
                    optimizer.step()
        assert fleet.samples == 32
    assert fleet.summary.update_samples.max == 8


def _zero_by_hand(optimizer: torch.optim.Optimizer) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = None


ZEROING: dict[str, Callable[[torch.optim.Optimizer], None]] = {
    "to none": lambda optimizer: optimizer.zero_grad(),
    "in place": lambda optimizer: optimizer.zero_grad(set_to_none=False),
    "by hand": _zero_by_hand,
}


@pytest.mark.parametrize("algorithm", ["sync", "stride"])
@pytest.mark.parametrize("zeroing", ZEROING)
def test_a_batch_without_a_step_is_not_accumulated_if_its_gradient_is_zeroed_later(zeroing, algorithm):
    """A step is skipped after its backward pass (a norm that is not finite, say), and the next batch begins anew."""
    net = make_net()
    optimizer = sgd(net)
    skipped = {1, 4, 5, 9}
    plain = copy.deepcopy(net)
    plain_optimizer = sgd(plain)
    with ownpace.join(algorithm, quiet=True) as fleet:
        fleet.wrap(net, optimizer)
        for number, (x, y, _) in enumerate(fleet.batches(Numbers(96), 8)):
            ZEROING[zeroing](optimizer)
            mean_loss(net, x, y).backward()
            if number not in skipped:
                optimizer.step()
                plain_optimizer.zero_grad()
                mean_loss(plain, x, y).backward()
                plain_optimizer.step()
        assert (fleet.samples, fleet.steps) == (64, 8)
    close(flat(net), flat(plain))


def test_accumulation_goes_on_after_a_step_that_was_skipped():
    """Every other batch a step; one is skipped, and what was accumulated for it is cleared."""
    net = make_net()
    optimizer = sgd(net)
    with ownpace.join("sync", quiet=True) as fleet:
        fleet.wrap(net, optimizer)
        for number, (x, y, _) in enumerate(fleet.batches(Numbers(96), 8)):
            if number % 2 == 0:
                optimizer.zero_grad()
            (mean_loss(net, x, y) / 2).backward()
            if number % 2 and number != 5:
                optimizer.step()
        assert (fleet.samples, fleet.updates, fleet.steps) == (80, 5, 5)
    assert fleet.summary.update_samples.max == 16


def test_accumulated_batches_without_a_step_are_told_of():
    net = make_net()
    optimizer = sgd(net)
    with ownpace.join("sync", quiet=True) as fleet:
        fleet.wrap(net, optimizer)

        def loop() -> None:
            for number, (x, y, _) in enumerate(fleet.batches(Numbers(40), 8)):
                mean_loss(net, x, y).backward()
                if number % 2:
                    optimizer.step()
                    optimizer.zero_grad()

        with pytest.warns(UserWarning, match="ended with 8 samples that were accumulated, but never stepped with"):
            loop()
        assert fleet.samples == 32


def test_next_after_the_end_is_explained():
    def script() -> None:
        net = make_net()
        optimizer = sgd(net)
        with ownpace.join("sync", quiet=True) as fleet:
            fleet.wrap(net, optimizer)
            batches = iter(fleet.batches(Numbers(16), 8))
            while True:
                x, y, _ = next(batches)
                mean_loss(net, x, y).backward()
                optimizer.step()
                optimizer.zero_grad()

    with pytest.raises(ownpace.InputError, match=r"next\(\) was called on a loop"):
        script()


def test_a_model_that_servers_hold_cannot_be_changed_between_loops():
    net = make_net()
    optimizer = sgd(net)
    with ownpace.join("async", quiet=True) as fleet:
        fleet.wrap(net, optimizer)
        for change in (False, True):
            if change:
                next(net.parameters()).data.zero_()
            batches = iter(fleet.batches(Numbers(16), 8))
            if change:
                with pytest.raises(ownpace.InputError, match="parameter servers hold it and would not know"):
                    next(batches)
                break
            for x, y, _ in batches:
                mean_loss(net, x, y).backward()
                optimizer.step()
                optimizer.zero_grad()


def test_a_checkpoint_of_other_data_is_refused(tmp_path):
    for size in (40, 24):
        net = make_net()
        optimizer = sgd(net)
        with ownpace.join("sync", quiet=True) as fleet:
            fleet.wrap(net, optimizer)
            if size == 24:
                fleet.load(tmp_path / "run.pt")
                with pytest.raises(ownpace.InputError, match="number of samples was 40, here it is 24"):
                    next(iter(fleet.batches(Numbers(size), 8)))
                break
            for x, y, _ in fleet.batches(Numbers(size), 8):
                mean_loss(net, x, y).backward()
                optimizer.step()
                optimizer.zero_grad()
                fleet.save(tmp_path / "run.pt")


def learn(
    fleet: Any, net: nn.Module, optimizer: torch.optim.Optimizer, after: Callable[[int], None], size: int = 48
) -> None:
    for number, (x, y, _) in enumerate(fleet.batches(Numbers(size), 8, shuffle=False)):
        mean_loss(net, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        after(number)


@pytest.mark.parametrize("algorithm", ["sync", "balanced", "stride"])
def test_alone_what_reads_the_model_after_a_step_finds_the_step_made(algorithm: str) -> None:
    """An average of the weights, as many scripts keep one, is that of a plain loop."""
    averages = []
    for in_fleet in (False, True):
        net = make_net()
        optimizer, weight = sgd(net), net.get_parameter("0.weight")
        average = weight.detach().clone()

        def take_in(_: int, weight: Tensor = weight, average: Tensor = average) -> None:
            average.lerp_(weight.detach(), 0.1)

        if in_fleet:
            with ownpace.join(algorithm, quiet=True) as fleet:
                fleet.wrap(net, optimizer)
                learn(fleet, net, optimizer, take_in)
        else:
            for first in range(0, 48, 8):
                mean_loss(net, Numbers(48).x[first : first + 8], Numbers(48).y[first : first + 8]).backward()
                optimizer.step()
                optimizer.zero_grad()
                take_in(first)
        averages.append(average)
    torch.testing.assert_close(averages[0], averages[1], rtol=1e-6, atol=1e-7)


def test_tensors_that_were_taken_of_a_model_before_wrap_are_told_of() -> None:
    net = make_net()
    taken = list(net.state_dict().values())
    told = pytest.warns(UserWarning, match=r"another tensor is in the memory of 0\.weight")
    with ownpace.join("sync", quiet=True) as fleet, told:
        fleet.wrap(net, sgd(net))
    assert taken


def test_nothing_is_told_of_a_model_that_nobody_has_taken_anything_of() -> None:
    net, other = make_net(norm=True), make_net(seed=1)
    nn.utils.spectral_norm(net[3])  # keeps its weight beside the parameter, until the next forward pass
    weight, bias = other.get_parameter("0.weight"), other.get_parameter("3.bias")
    other[3].weight = nn.Parameter(weight.data.flatten()[:24].view(3, 8))  # in the same memory
    mean_loss(net, Numbers(8).x, Numbers(8).y).backward()
    copy.deepcopy(net.state_dict())
    with warnings.catch_warnings(), ownpace.join("sync", quiet=True) as fleet:
        warnings.simplefilter("error")
        fleet.wrap(net, sgd(net))
        fleet.wrap(other, torch.optim.SGD([weight, bias], lr=0.1))


def test_a_new_optimizer_in_the_middle_is_refused() -> None:
    net = make_net()
    optimizer = sgd(net)
    with ownpace.join("sync", quiet=True) as fleet:
        fleet.wrap(net, optimizer)
        learn(fleet, net, optimizer, lambda _: None)
        new = torch.optim.Adam(net.parameters(), lr=0.01)
        with pytest.raises(ownpace.InputError, match="was not given the Adam that steps parameters of its model"):
            learn(fleet, net, new, lambda _: None)
    mean_loss(net, Numbers(8).x, Numbers(8).y).backward()
    new.step()  # afterwards it is nobody's business


def test_an_optimizer_of_something_else_is_told_of_once() -> None:
    other, free = make_net(), torch.zeros(3, requires_grad=True)
    net = make_net()
    pair = UserPair(net, sgd(net))
    steps = OtherSteps(lambda: [pair], lambda: True, alone=False)
    steps.watch()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            free.grad = torch.ones(3)
            torch.optim.SGD([free], lr=0.1).step()  # inputs that are learnt, say: each rank has its own
            with pytest.raises(UserWarning, match="each rank makes them for itself"):
                sgd(other).step()
            sgd(other).step()
    finally:
        steps.release()


def test_watching_other_optimizers_leaves_the_fleets_own_steps_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    made, real = [], FlatSteps.step

    def step(steps: FlatSteps) -> None:
        made.append(steps)
        real(steps)

    monkeypatch.setattr(FlatSteps, "step", step)
    net = make_net()
    optimizer = sgd(net)
    with ownpace.join("sync", quiet=True) as fleet:
        fleet.wrap(net, optimizer)
        learn(fleet, net, optimizer, lambda _: None)
    assert len(made) == 6


def test_parameters_that_were_given_other_memory_are_noticed_at_the_next_step() -> None:
    net = make_net()
    optimizer = sgd(net)
    reached = []

    def normalise(number: int) -> None:
        reached.append(number)
        if number == 1:
            weight = net.get_parameter("0.weight")
            weight.data = weight.data / 2

    def script() -> None:
        with ownpace.join("sync", quiet=True) as fleet:
            fleet.wrap(net, optimizer)
            learn(fleet, net, optimizer, normalise)

    with pytest.raises(ownpace.InputError, match=r"write to parameters in place \(p\.data\.copy_"):
        script()
    assert reached == [0, 1]


def test_many_batches_without_any_step_are_told_of() -> None:
    early = TakenEarly()
    for _ in range(255):
        early.hand_out(None, before_was_skipped=False)
    with pytest.warns(UserWarning, match=r"256 batches were taken, and optimizer\.step\(\) was not called once"):
        early.hand_out(None, before_was_skipped=False)


def test_a_loop_without_any_step_is_told_of() -> None:
    net = make_net()
    optimizer = sgd(net)
    with ownpace.join("sync", quiet=True) as fleet:
        fleet.wrap(net, optimizer)

        def accumulate() -> None:
            for x, y, _ in fleet.batches(Numbers(16), 8):
                mean_loss(net, x, y).backward()

        with pytest.warns(UserWarning, match="accumulated, but never stepped with") as told:
            accumulate()
        assert len(told) == 1  # and not of that once more
        optimizer.zero_grad()
        learn(fleet, net, optimizer, lambda _: None)
        with pytest.warns(UserWarning, match=r"without any optimizer\.step of this rank, after 2 batches"):
            list(fleet.batches(Numbers(16), 8))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            next(iter(fleet.batches(Numbers(16), 8)))  # to look at one


@pytest.mark.parametrize("writes_before", [False, True])
def test_parameters_that_are_written_to_late_in_a_loop_are_noticed(writes_before: bool) -> None:
    """Where that would be lost: once, or by clipping, which has nothing to do until then."""
    net = make_net()
    optimizer = sgd(net)
    reached = []

    def clip(number: int) -> None:
        reached.append(number)
        with torch.no_grad():
            if writes_before or number == 30:
                net.get_parameter("0.weight").clamp_(max=100.0 if number < 30 else 0.0)

    def script() -> None:
        with ownpace.join("pace", quiet=True) as fleet:
            fleet.wrap(net, optimizer)
            for number, (x, y, _) in enumerate(fleet.batches(Numbers(64), 8, epochs=8)):
                mean_loss(net, x, y).backward()
                clip(number)
                optimizer.step()
                optimizer.zero_grad()
                fleet.evaluate(lambda model: model(Numbers(8).x))

    with pytest.raises(ownpace.InputError, match=r"written to in the middle of a batch"):
        script()
    assert reached == list(range(31))


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE_S)
def test_a_rank_that_waits_in_a_collective_of_the_scripts_own_is_told_of(start: Start, tmp_path: Path) -> None:
    _, _, ranks = launch("barrier", start, tmp_path, "tests.process.scenarios_own_collective")
    assert "one rank may wait there, and all others here" in ranks[1]["warned"][0]
    assert len(ranks[1]["warned"]) == 1
    assert ranks[0]["warned"] == []
    assert all(rank["error"] for rank in ranks)

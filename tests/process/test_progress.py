"""The fleet's progress and what follows it: schedules, and loops that end after so many updates."""

from __future__ import annotations

import copy
import json
import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.process.scenarios_progress import ALGORITHMS, EPOCHS, LR, SIZE
from tests.process.small_net import Numbers, flat, make_net, mean_loss, sgd
from tests.process.started import PATIENCE_S, Start, importable, torchrun
from torch.optim import Optimizer, lr_scheduler

import ownpace

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)


def chained(optimizer: Optimizer) -> lr_scheduler.LRScheduler:
    warm_up = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
    return lr_scheduler.ChainedScheduler([warm_up, lr_scheduler.ExponentialLR(optimizer, 0.9)], optimizer)


def sequential(optimizer: Optimizer) -> lr_scheduler.LRScheduler:
    warm_up = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
    return lr_scheduler.SequentialLR(optimizer, [warm_up, lr_scheduler.CosineAnnealingLR(optimizer, 12)], [4])


KINDS: dict[str, Callable[[Optimizer], lr_scheduler.LRScheduler]] = {
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5)),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=17),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 16),
    "restarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5),
    "sequential": sequential,
    "chained": chained,
}


@pytest.mark.parametrize("kind", KINDS)
def test_alone_a_followed_schedule_is_that_of_a_plain_loop(kind: str) -> None:
    """61 samples twice, in batches of 8: 16 steps, the last of 2 samples."""
    data, seen = Numbers(61), []
    net = make_net()
    optimizer = sgd(net)
    scheduler = KINDS[kind](optimizer)
    of_torch = type(scheduler)
    with warnings.catch_warnings(), ownpace.join("sync") as fleet:
        warnings.simplefilter("error")
        fleet.wrap(net, optimizer, scheduler=scheduler)
        for x, y, indices in fleet.batches(data, 8, epochs=2):
            seen.append((indices.tolist(), optimizer.param_groups[0]["lr"]))
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        state = copy.deepcopy(scheduler.state_dict())
    assert type(scheduler) is of_torch
    assert len(seen) == 16

    other = make_net()
    plain = sgd(other)
    plain_scheduler = KINDS[kind](plain)
    for indices, rate in seen:
        assert rate == plain.param_groups[0]["lr"]
        mean_loss(other, data.x[indices], data.y[indices]).backward()
        plain.step()
        plain.zero_grad()
        plain_scheduler.step()
    assert state.keys() == plain_scheduler.state_dict().keys()
    assert scheduler.get_last_lr() == plain_scheduler.get_last_lr()
    torch.testing.assert_close(flat(net), flat(other), rtol=1e-5, atol=1e-6)
    scheduler.step()  # the script's own again
    plain_scheduler.step()
    assert scheduler.get_last_lr() == plain_scheduler.get_last_lr()


def test_within_a_round_of_local_steps_a_schedule_goes_on() -> None:
    net, rates, steps = make_net(), [], []
    optimizer = sgd(net)
    with ownpace.join("local", parameters={"steps": 8}) as fleet:
        fleet.wrap(net, optimizer, scheduler=lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4))
        for x, y, _ in fleet.batches(Numbers(64), 8):
            rates.append(optimizer.param_groups[0]["lr"])
            assert (fleet.updates, fleet.samples) == (0, 0)
            steps.append(fleet.steps)
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert (fleet.updates, fleet.samples, fleet.epoch) == (1, 64, 1)
    assert [*steps, fleet.steps] == list(range(9))  # a script that sets rates by itself has the same to go by
    assert rates == pytest.approx([0.01, 0.0325, 0.055, 0.0775, 0.1, 0.1, 0.1, 0.1])


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("algorithm", ["sync", "stride"])
def test_a_script_that_accumulates_has_its_schedule_by_its_steps(algorithm: str, first: int) -> None:
    """One that steps after every other batch; or after its first, and then so."""
    net, rates = make_net(), []
    optimizer = sgd(net)
    with ownpace.join(algorithm) as fleet:
        fleet.wrap(net, optimizer, scheduler=lr_scheduler.CosineAnnealingLR(optimizer, 8))
        for number, (x, y, _) in enumerate(fleet.batches(Numbers(112 + 8 * first), 8), 1):
            (mean_loss(net, x, y) / 2).backward()
            if number % 2 == first % 2:
                rates.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                optimizer.zero_grad()
    plain = [0.1 * (1 + math.cos(math.pi * step / 8)) / 2 for step in range(8)]
    if first == 1:  # one batch was worth a step, until the second step told; it is half of one now
        plain = [*plain[:2], *plain[1:7]]
    assert rates == pytest.approx(plain)
    assert fleet.steps == 8


def test_what_a_fleet_cannot_step_is_refused() -> None:
    optimizer = sgd(make_net())
    with ownpace.join("sync") as fleet:
        with pytest.raises(ownpace.InputError, match=r"ReduceLROnPlateau, .* after each loop"):
            fleet.schedule(lr_scheduler.ReduceLROnPlateau(optimizer))
        with pytest.raises(ownpace.InputError, match=r"was given a SGD; .* fleet.updates"):
            fleet.schedule(optimizer)  # type: ignore[type-var]
        with pytest.raises(ownpace.InputError, match="every"):
            fleet.schedule(lr_scheduler.StepLR(optimizer, 1), every="batch")  # type: ignore[arg-type]
        once = fleet.schedule(lr_scheduler.StepLR(optimizer, 1))
        with pytest.raises(ownpace.InputError, match="the same scheduler twice"):
            fleet.schedule(once)


def test_a_schedule_that_seems_to_count_epochs_is_told_of() -> None:
    net = make_net()
    optimizer = sgd(net)
    by_update = lr_scheduler.StepLR(optimizer, 1, 0.9)

    def one_loop(fleet: Any, after_step: Callable[[], None]) -> None:
        for x, y, _ in fleet.batches(Numbers(16), 8):
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            after_step()

    with warnings.catch_warnings(), ownpace.join("sync", quiet=True) as fleet:
        warnings.simplefilter("error")
        fleet.wrap(net, optimizer, scheduler=by_update)
        one_loop(fleet, by_update.step)
        with pytest.raises(UserWarning, match=r'between loops .* every="epoch"'):
            by_update.step()
        by_update.step()  # told once
        with pytest.raises(ownpace.InputError, match=r"called with 0\.5, but the fleet counts its steps"):
            one_loop(fleet, lambda: by_update.step(0.5))  # type: ignore[arg-type]  # as for warm restarts

    net = make_net()
    optimizer = sgd(net)
    with warnings.catch_warnings(), ownpace.join("sync", quiet=True) as fleet:
        warnings.simplefilter("error")
        fleet.wrap(net, optimizer)
        by_epoch = fleet.schedule(lr_scheduler.StepLR(optimizer, 1, 0.9), every="epoch")
        for _ in range(2):
            one_loop(fleet, lambda: None)
            by_epoch.step()
    assert by_epoch.get_last_lr() == pytest.approx([0.1 * 0.9**2])


def ranks_of(scenario: str, start: Start, folder: Path) -> tuple[list[dict[str, Any]], str]:
    """What both ranks of a scenario wrote, and what was said on standard error."""
    command = torchrun("-m", "tests.process.scenarios_progress", scenario, str(folder))
    started = start(command, PYTHONPATH=importable())
    assert started.ends() == 0, started.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)], started.stderr


@pytest.mark.slow
def test_updates_have_the_samples_that_were_asked_for(start: Start, tmp_path: Path) -> None:
    ranks, said = ranks_of("bounds", start, tmp_path)
    for label, one in ranks[0].items():
        sizes = one["sizes"]
        assert sum(sizes) == 512, label
        assert one["largest"] == max(sizes), label
        target = {"pace, prescribed": 21, "abs, prescribed": 21, "acco, prescribed": 42}.get(label)
        if target is not None:
            # Where the data ends, a worker may have none left for its part; of sums under way, there is one.
            assert sizes.count(target) >= 512 // target - 3, (label, sizes)
            assert max(sizes) == target, label
        most = {"pace": 2 * 2 * 8, "pace, bounded": 24}.get(label)
        if most is not None:
            assert max(sizes) <= most + 2, label  # a sample that would be left alone goes with the batch before
            assert max(sizes) > 16, label  # rank 0 has not waited when it could compute
        assert ranks[1][label]["warned"] == []
        assert bool(one["warned"]) == (label == "abs"), label
    assert max(ranks[0]["abs"]["sizes"]) > 32
    assert "where 16 were asked for (8 samples × 2 workers)" in ranks[0]["abs"]["warned"][0]
    lines = [line for line in said.splitlines() if line.startswith("ownpace: ")]
    assert len(lines) == len(ranks[0])
    assert re.match(
        r"ownpace: pace on 2 workers: 512 samples in \d+ updates of \d+ on average \(at most \d+\), ", lines[0]
    )


def test_a_rank_without_a_step_of_its_own_counts_by_those_of_others(start: Start, tmp_path: Path) -> None:
    ranks: list[Any] = ranks_of("accumulated", start, tmp_path)[0]
    assert ranks == [[4, 4]] * 2  # 128 samples, of which each of 2 workers takes 4 · 4 for a step


def test_progress_and_schedules_follow_the_fleet_whichever_rank_is_slow(start: Start, tmp_path: Path) -> None:
    ranks, _ = ranks_of("schedules", start, tmp_path)
    assert len(ranks[0]) == 2 * len(ALGORITHMS)
    for label, one in ranks[0].items():
        other, name = ranks[1][label], label.split()[0]
        assert one["begin"] == other["begin"] == [0, 0, 0], label
        assert one["weights"] == other["weights"], label
        assert one["ends"] == other["ends"], label
        whole, limited, left = one["ends"]
        # All data: the schedule has ended, and the one by epochs has halved twice.
        assert whole[1:3] == [SIZE * EPOCHS, EPOCHS], label
        assert whole[3] < 1e-3 * LR, label
        assert whole[4] == 0.25, label
        # Three updates more; one or two are under way in some. Rounds of local steps are of 32 samples; those of stride
        # may be longer, where sums take longer, and all data be learnt from by then.
        made = limited[0] - whole[0]
        assert (1 if limited[2] > EPOCHS else 3) <= made <= (3 if name in ("sync", "balanced", "local") else 5), label
        if name != "stride":
            assert limited[1] - whole[1] <= 2 * 16 * made, label
            assert limited[2] == EPOCHS, label
        assert left[2] == limited[2], label
        if name == "async":
            continue  # what each rank has heard last
        of_update: dict[int, list[int]] = {}
        for updates, *rest in [*one["seen"], *other["seen"]]:
            assert of_update.setdefault(updates, rest) == rest, label
        assert len(of_update) > 3

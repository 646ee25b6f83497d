"""The drop-in in a fleet of one: a user's loop learns what it would without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from tests.process.scenarios import Counting
from tests.process.small_net import (
    MakeOptimizer,
    Numbers,
    adamw,
    close,
    flat,
    make_net,
    mean_loss,
    on_one_machine,
    sgd,
    train,
    two_groups,
    wrapped,
)
from tests.process.started import PATIENCE_S, importable
from torch import nn

import ownpace
from ownpace.core.contract.events import Event, Update
from ownpace.drop_in.batches import Batches

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)


@pytest.mark.parametrize("make_optimizer", [sgd, adamw, two_groups])
@pytest.mark.parametrize("algorithm", ["sync", "balanced"])
def test_a_fleet_of_one_is_a_plain_loop(algorithm: str, make_optimizer: MakeOptimizer) -> None:
    seen = train(algorithm, 50, make_optimizer, gamma=0.9, epochs=2)
    assert [len(batch) for batch in seen["loops"][0]] == [8] * 12 + [4]
    expected = on_one_machine(50, [[batch] for batch in seen["loops"][0]], make_optimizer, gamma=0.9)
    torch.testing.assert_close(torch.tensor(seen["weights"]), expected, rtol=1e-6, atol=1e-7)
    assert (seen["summary"]["samples"], seen["summary"]["updates"]) == (100, 13)
    assert list(seen["summary"]["busy"]) == ["worker-0"]


@pytest.mark.parametrize("make_optimizer", [sgd, adamw, two_groups])
@pytest.mark.parametrize(
    ("algorithm", "parameters"),
    [
        ("pace", {}),
        ("stride", {}),
        ("local", {"steps": 3}),
        ("diloco", {"steps": 3, "outer_lr": 1.0, "outer_momentum": 0.0}),
        ("wp", {"steps": 4}),
        ("simuparallel", {"steps": 5}),
    ],
)
def test_alone_many_algorithms_are_a_plain_loop(
    algorithm: str, parameters: dict[str, Any], make_optimizer: MakeOptimizer
) -> None:
    """Those that look ahead as well: with any optimizer, they see where it will be."""
    seen = train(algorithm, 50, make_optimizer, epochs=2, join={"parameters": parameters})
    expected = on_one_machine(50, [[batch] for batch in seen["loops"][0]], make_optimizer)
    close(torch.tensor(seen["weights"]), expected)


def test_alone_od_is_a_plain_loop_if_it_knows_the_momentum() -> None:
    parameters = {"form": "all-reduce", "warmup": 2, "local_momentum": 0.9}
    seen = train("od", 50, sgd, epochs=2, join={"parameters": parameters})
    close(torch.tensor(seen["weights"]), on_one_machine(50, [[batch] for batch in seen["loops"][0]], sgd))


@pytest.mark.parametrize(
    "algorithm", [name for name, cls in ownpace.ALGORITHMS.items() if not cls().has_servers and name != "layered"]
)
def test_alone_every_sample_counts(algorithm: str) -> None:
    seen = train(algorithm, 50)
    assert sum(map(len, seen["loops"][0])) == 50
    assert seen["summary"]["samples"] == 50


@pytest.mark.parametrize(
    ("make_optimizer", "servers", "by_layer"), [(sgd, 2, True), (adamw, 1, False), (two_groups, 2, False)]
)
def test_a_server_has_the_optimizer_and_follows_its_schedule(
    make_optimizer: MakeOptimizer, servers: int, by_layer: bool
) -> None:
    clip = 0.5 if servers > 1 else None
    join = {"servers": servers, "parameters": {"by_layer": by_layer}}
    options: dict[str, Any] = {"join": join, "wrap": {"clip_norm": clip}}
    seen = train("async", 50, make_optimizer, gamma=0.9, schedule_first=servers > 1, **options)
    updates = [[batch] for batch in seen["loops"][0]]
    expected = on_one_machine(50, updates, make_optimizer, gamma=0.9, clip_sum=clip)
    torch.testing.assert_close(torch.tensor(seen["weights"]), expected, rtol=1e-5, atol=1e-6)


def batches_of_one(
    algorithm: str, **options: Any
) -> Iterator[tuple[Any, nn.Sequential, torch.optim.Optimizer, Batches]]:
    net = make_net()
    optimizer = options.pop("optimizer", sgd)(net)
    with ownpace.join(algorithm) as fleet:
        fleet.wrap(net, optimizer)
        yield fleet, net, optimizer, fleet.batches(Numbers(options.pop("size", 32)), 8, **options)


def test_accumulating_two_batches_is_one_of_twice_the_size() -> None:
    seen = train("sync", 64, sgd, every=2)
    batches = seen["loops"][0]
    doubled = [[[*one, *other]] for one, other in zip(batches[::2], batches[1::2], strict=True)]
    close(torch.tensor(seen["weights"]), on_one_machine(64, doubled, sgd))
    assert seen["summary"]["updates"] == 4


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("algorithm", ["sync", "pace"])
def test_a_grad_scaler_skips_infinite_gradients(algorithm: str, fused: bool) -> None:
    def make_optimizer(net: nn.Sequential) -> torch.optim.Optimizer:
        return torch.optim.AdamW(net.parameters(), lr=0.01, fused=fused)

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    used, skipped = [], 0
    for _, net, optimizer, batches in batches_of_one(algorithm, size=40, optimizer=make_optimizer):
        for number, (x, y, indices) in enumerate(batches):
            before = scaler.get_scale()
            scaler.scale(mean_loss(net, x, y) * (torch.inf if number == 2 else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if scaler.get_scale() < before:
                skipped += 1
            else:
                used.append([indices.tolist()])
    assert (skipped, len(used)) == (1, 4)
    assert scaler.get_scale() == 512.0
    torch.testing.assert_close(flat(net), on_one_machine(40, used, make_optimizer), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["sync", "pace"])
def test_evaluating_leaves_the_model_as_it_was(algorithm: str) -> None:
    def look(net: nn.Module) -> tuple[bool, bool]:
        return any(module.training for module in net.modules()), torch.is_grad_enabled()

    def refuse(net: nn.Module) -> None:
        raise KeyError("the user's own")

    for fleet, net, optimizer, batches in batches_of_one(algorithm):
        assert fleet.evaluate(look) == (False, False)
        net[1].eval()  # a user may freeze a part
        for x, y, _ in batches:
            assert fleet.evaluate(look) == (False, False)
            assert [module.training for module in net] == [True, False, True, True]
            assert net.training
            with pytest.raises(KeyError, match="the user's own"):
                fleet.evaluate(refuse)
            assert net.training
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert torch.equal(fleet.evaluate(flat), flat(net))


def test_a_compiled_model_trains() -> None:
    net = make_net()
    optimizer = sgd(net)
    before = flat(net)
    used = []
    with ownpace.join() as fleet:
        model, optimizer = fleet.wrap(cast(nn.Module, torch.compile(net, backend="aot_eager")), optimizer)
        for x, y, indices in fleet.batches(Numbers(24), 8):
            used.append([indices.tolist()])
            mean_loss(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert not torch.equal(flat(net), before)
    close(flat(net), on_one_machine(24, used, sgd))


def test_a_batch_whose_gradient_was_thrown_away_counts_nothing() -> None:
    seen: list[Event] = []
    with ownpace.join("sync", on_event=seen.append, detail=True) as fleet:
        net, optimizer = wrapped(fleet)
        for number, (x, y, _) in enumerate(fleet.batches(Numbers(40), 8)):
            mean_loss(net, x, y).backward()
            if number != 2:
                optimizer.step()
            optimizer.zero_grad()
    assert [event.samples for event in seen if isinstance(event, Update)] == [8] * 4


def test_an_optimizer_may_go_from_one_fleet_to_the_next() -> None:
    net = make_net()
    optimizer = sgd(net)
    for _ in range(2):
        with ownpace.join("sync") as fleet:
            fleet.wrap(net, optimizer)
            for x, y, _ in fleet.batches(Numbers(16), 8):
                mean_loss(net, x, y).backward()
                optimizer.step()
                optimizer.zero_grad()
        assert fleet.summary is not None
        assert fleet.summary.updates == 2


def test_a_server_begins_anew_with_each_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its coroutine keeps in variables is of one loop; its parameters are of all."""
    monkeypatch.setenv("PYTHONPATH", importable())  # the server is a process of its own, and has to find the algorithm
    monkeypatch.setattr(Counting, "told", [])
    seen = train(Counting(), 24, calls=2)
    assert Counting.told == [1, 2, 3, 4] * 2  # three batches, and word that there are no more
    updates = [[batch] for loop in seen["loops"] for batch in loop]
    close(torch.tensor(seen["weights"]), on_one_machine(24, updates, sgd))


def test_a_gradient_that_is_refused_may_be_followed_by_another() -> None:
    """A script that catches the error and leaves the batch out goes on, and its loop ends as it should."""
    data, net = Numbers(64), make_net()
    batches, refused = 0, []
    with ownpace.join("pace") as fleet:
        model, optimizer = fleet.wrap(net, sgd(net))
        for x, y, _ in fleet.batches(data, 8):
            optimizer.zero_grad()
            batches += 1
            (mean_loss(model, x, y) * (float("nan") if batches == 2 else 1.0)).backward()
            try:
                optimizer.step()
            except ownpace.DivergenceError as error:
                refused.append(str(error))
    assert batches == 8
    where = "the gradient of layer '0.weight' on worker-0 is nan at sample 0"  # nothing is known of the script's loss
    assert refused == [f"{where}: training diverged; try a smaller lr"]
    assert torch.isfinite(flat(net)).all()


@pytest.mark.parametrize("algorithm", ["sync", "pace"])
def test_batches_may_be_made_before_models_are_wrapped(algorithm: str) -> None:
    """A schedule is made for their number; and a second model may come after them."""
    net, other = make_net(), make_net(seed=1)
    optimizer, others = sgd(net), sgd(other)
    began = [flat(net), flat(other)]
    with ownpace.join(algorithm) as fleet:
        batches = fleet.batches(Numbers(40), 8, epochs=2)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=len(batches))
        fleet.wrap(net, optimizer, scheduler=scheduler)
        between = fleet.batches(Numbers(16), 8)
        fleet.wrap(other, others)
        for loop in (batches, between):
            for x, y, _ in loop:
                for model, its_optimizer in ((net, optimizer), (other, others)):
                    its_optimizer.zero_grad()
                    mean_loss(model, x, y).backward()
                    its_optimizer.step()
    assert fleet.samples == 96
    assert scheduler.get_last_lr() == [0.0]
    assert not any(torch.equal(before, flat(model)) for before, model in zip(began, (net, other), strict=True))

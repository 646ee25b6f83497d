"""What the drop-in refuses, and how it ends when a rank fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.process.ranks import launch, run
from tests.process.small_net import Numbers, flat, make_net, mean_loss, sgd, wrapped
from tests.process.started import PATIENCE_S, Start

import ownpace

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)


@pytest.mark.slow
def test_ranks_that_differ_are_refused(start: Start, tmp_path: Path) -> None:
    ranks = run("refused_loops", start, tmp_path)
    parts = {
        "model": "the model of rank 1 is 21 parameters in 2 layers",
        "optimizer": "'lr': 0.2",
        "kind": "the optimizer of rank 1 is AdamW",
        "algorithm": "the algorithm of rank 1 is AsyncSgd(by_layer=False), that of rank 0 is SyncSgd(via='ring')",
        "other way round": "the algorithm of rank 1 is SyncSgd(via='ring'), that of rank 0 is AsyncSgd(by_layer=False)",
        "samples": "the number of samples of rank 1 is 17, that of rank 0 is 16",
    }
    for name, part in parts.items():
        for rank in ranks:
            message = rank[name]
            assert message.startswith("the ranks do not fit together: "), name
            assert part in message
            assert "rank 1" in message
            assert "rank 0" in message
            assert "\n" not in message
    assert [rank["nothing"] for rank in ranks] == ["", ""]


@pytest.mark.parametrize("scenario", ["failing_rank_1", pytest.param("failing_rank_0", marks=pytest.mark.slow)])
def test_a_rank_that_fails_ends_everything(start: Start, tmp_path: Path, scenario: str) -> None:
    started, code, ranks = launch(scenario, start, tmp_path)
    assert code != 0
    assert ranks == []
    assert 'KeyError: "the user\'s own mistake"' in started.stderr


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ownpace.InputError, match="unknown algorithm 'snyc'; did you mean 'sync'"):
        ownpace.join("snyc")
    with pytest.raises(ownpace.InputError, match="unknown backend 'mpi'"):
        ownpace.join(backend="mpi")
    with pytest.raises(ownpace.InputError, match="staleness"):
        ownpace.join("stale", parameters={"staleness": -1})
    net = make_net()
    with ownpace.join() as fleet:
        fleet.wrap(net, sgd(net))
        with pytest.raises(ownpace.InputError, match="unknown sampling 'queu'; did you mean 'queue'"):
            fleet.batches(Numbers(8), 8, sampling="queu")  # type: ignore[arg-type]  # the point
        with pytest.raises(ownpace.InputError, match="batch_size is 0"):
            fleet.batches(Numbers(8), 0)


def test_a_fleet_without_a_model_is_refused() -> None:
    with ownpace.join() as fleet:
        for call in (lambda: next(iter(fleet.batches(Numbers(8), 8))), lambda: fleet.evaluate(flat)):
            with pytest.raises(ownpace.InputError, match=r"call fleet\.wrap"):
                call()


def test_steps_that_belong_to_no_batch_are_refused() -> None:
    outside = pytest.raises(ownpace.InputError, match=r"outside of fleet\.batches")
    net = make_net()
    optimizer = sgd(net)
    with ownpace.join("sync") as fleet:
        fleet.wrap(net, optimizer)
        with outside:
            optimizer.step()
        for number, (x, y, _) in enumerate(fleet.batches(Numbers(32), 8)):
            mean_loss(net, x, y).backward()
            with pytest.raises(ownpace.InputError, match="was given a closure"):
                optimizer.step(lambda: 0.0)
            optimizer.step()
            if number == 0:
                with pytest.raises(ownpace.InputError, match="twice for one batch"):
                    optimizer.step()
                with pytest.raises(ownpace.InputError, match="within another one"):
                    next(iter(fleet.batches(Numbers(32), 8)))
            optimizer.zero_grad()
        with outside:
            optimizer.step()
    optimizer.step()  # an ordinary one again
    assert fleet.summary.updates == 4


def test_a_model_that_was_moved_after_wrap_is_refused() -> None:
    with ownpace.join("sync") as fleet:
        net, _ = wrapped(fleet)
        net.double()
        with pytest.raises(ownpace.InputError, match="move or convert the model before"):
            next(iter(fleet.batches(Numbers(40), 8)))


def test_a_step_without_a_backward_pass_is_refused() -> None:
    with ownpace.join("sync") as fleet:
        net, optimizer = wrapped(fleet)
        for x, y, _ in fleet.batches(Numbers(16), 8):
            with pytest.raises(ownpace.InputError, match="no parameter has a gradient"):
                optimizer.step()
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()


def test_a_negative_norm_is_refused() -> None:
    with ownpace.join("sync") as fleet, pytest.raises(ownpace.InputError, match="clip_norm is -1"):
        fleet.wrap(make_net(), sgd(make_net()), clip_norm=-1.0)

"""Replicas agree bit for bit, whatever schedules the ranks have; or all ranks are told where they differ."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.process.ranks import launch, run
from tests.process.scenarios_settings import ALGORITHMS, SCHEDULES
from tests.process.small_net import Numbers, close, flat, make_net, mean_loss
from tests.process.started import PATIENCE_S, Start

import ownpace

MODULE = "tests.process.scenarios_settings"
pytestmark = pytest.mark.timeout(2 * PATIENCE_S)


@pytest.mark.slow
def test_replicas_agree_whatever_is_scheduled(start: Start, tmp_path: Path) -> None:
    one, other = run("schedules", start, tmp_path, MODULE)
    assert len(one) == sum(len(names) for _, names in ALGORITHMS.values())
    for name in one:
        assert one[name]["weights"] == other[name]["weights"], name
        promised = not name.startswith(("two to one", "async"))  # of these, nothing is promised, but it holds as well
        for rank in (one, other):
            assert rank[name]["replicas_identical"] is (True if promised else None), name
        if name.startswith("two to one"):
            assert one[name]["batches"] > other[name]["batches"], name
    (warned,) = other["stride, half_the_rate"]["warned"]
    assert "is 0.05 on this rank and 0.1 on rank 0, and each makes its local steps with its own" in warned


@pytest.mark.slow
def test_every_rank_is_told_which_layer_of_which_rank_differs(start: Start, tmp_path: Path) -> None:
    started, code, ranks = launch("parted", start, tmp_path, MODULE)
    assert len(ranks) == 2, started.stderr
    assert ranks[0] == ranks[1]
    told = ranks[0]
    assert set(told) == {"sync, within", "sync, after", "balanced, within"}
    for name, (kind, message) in told.items():
        assert kind == "replicas-differ", name
        assert re.match(r"the parameters differ: layer '[03]\.(weight|bias)'", message), message
        assert "on rank 1 from that of rank 0, since some update after " in message
        assert "\n" not in message
    # Written to after the sixth update; by the eighth, gradients have spread it to other layers.
    assert "after 4, update 8 at the latest; only optimizer.step()" in told["sync, within"][1]
    assert re.search(r"after \d+, update \d+ at the latest;", told["balanced, within"][1])
    assert "layer '3.weight' on rank 1" in told["sync, after"][1]
    assert "after 8, the end; only optimizer.step()" in told["sync, after"][1]
    assert code == 1
    assert started.stderr.count("ReplicasDiffer: the parameters differ: layer '3.weight' on rank 1") >= 2


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        *(("pace", name) for name in SCHEDULES),
        ("sync", "one_cycle_sgd"),
        *(("async", name) for name in ("one_cycle_sgd", "one_cycle_adamw", "decay_schedule")),
    ],
)
def test_alone_a_schedule_is_that_of_a_plain_loop(algorithm: str, name: str) -> None:
    """Also where the steps are a server's: all settings reach it."""
    nets = make_net(), make_net()
    (optimizer, step), (plain, plain_step) = (SCHEDULES[name](net) for net in nets)
    with ownpace.join(algorithm) as fleet:
        fleet.wrap(nets[0], optimizer)
        for x, y, _ in fleet.batches(Numbers(64), 8, epochs=2):
            for net, one in zip(nets, (optimizer, plain), strict=True):
                one.zero_grad()
                mean_loss(net, x, y).backward()
                one.step()
            step()
            plain_step()
    close(flat(nets[0]), flat(nets[1]))

"""A run that is broken off and gone on with: alone, where it must end where an unbroken one ends, and on two ranks."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.process.ranks import run
from tests.process.scenarios_checkpoint import ALGORITHMS, SIZE
from tests.process.small_net import Numbers, flat, make_net, mean_loss
from tests.process.started import PATIENCE_S, Start

import ownpace

EPOCHS, LENGTH, BATCH = 3, 40, 8
pytestmark = pytest.mark.timeout(2 * PATIENCE_S)


class Script:
    """A script as a user would write it, with dropout, momentum and a schedule."""

    def __init__(self, path: Path, algorithm: str, **parameters: Any) -> None:
        self.path = path
        self.algorithm = algorithm
        self.parameters = parameters

    def train(self, *, save_at: int | None = None, resume: bool = False, **data: Any) -> dict[str, Any]:
        """Train to the end; or save a checkpoint after so many batches, and break off a little later."""
        torch.manual_seed(3)
        net = make_net()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        seen: list[list[int]] = []
        with ownpace.join(self.algorithm, parameters=self.parameters, quiet=True) as fleet:
            fleet.wrap(net, optimizer, scheduler=schedule)
            if resume:
                fleet.load(self.path)
            for number, (x, y, indices) in enumerate(
                fleet.batches(Numbers(LENGTH), BATCH, **(data or {"epochs": EPOCHS}))
            ):
                if number == save_at:
                    fleet.save(self.path)
                    saved = len(seen), fleet.updates
                if save_at is not None and number == save_at + 2:
                    return {"seen": seen[: saved[0]], "updates": saved[1]}
                seen.append(indices.tolist())
                loss = mean_loss(net, torch.nn.functional.dropout(x, 0.2), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            progress = fleet.updates, fleet.samples, fleet.epoch
        return {"seen": seen, "weights": flat(net), "progress": progress, "rate": schedule.get_last_lr()}


@pytest.mark.parametrize("name", ["checkpoint.pt", "checkpoint.safetensors"])
@pytest.mark.parametrize(
    ("algorithm", "parameters"), [("sync", {}), ("diloco", {"steps": 2, "by_pace": False}), ("balanced", {})]
)
def test_a_run_that_goes_on_ends_where_an_unbroken_one_does(algorithm, parameters, name, tmp_path):
    script = Script(tmp_path / name, algorithm, **parameters)
    unbroken = script.train()
    first = script.train(save_at=6)
    second = script.train(resume=True)
    assert first["seen"] + second["seen"] == unbroken["seen"]
    torch.testing.assert_close(second["weights"], unbroken["weights"], rtol=0, atol=0)
    assert second["progress"] == unbroken["progress"] == (unbroken["progress"][0], EPOCHS * LENGTH, EPOCHS)
    assert second["rate"] == unbroken["rate"]


@pytest.mark.parametrize(
    ("algorithm", "updates", "batches"),
    [("pace", 5, 5), ("stride", 3, 5)],  # the sixth batch is under way; or it is in the middle of a round
)
def test_what_is_in_flight_is_dealt_again(algorithm, updates, batches, tmp_path):
    script = Script(tmp_path / "checkpoint.pt", algorithm)
    first = script.train(save_at=6)
    second = script.train(resume=True)
    assert first["updates"] == updates
    counts = Counter(chain(*first["seen"][:batches], *second["seen"]))
    assert counts == dict.fromkeys(range(LENGTH), EPOCHS)
    assert second["progress"][1:] == (EPOCHS * LENGTH, EPOCHS)


def test_a_limit_on_updates_counts_those_before(tmp_path):
    script = Script(tmp_path / "checkpoint.pt", "sync")
    script.train(save_at=4, updates=7)
    assert len(script.train(resume=True, updates=7)["seen"]) == 3


def test_checkpoints_that_do_not_fit_are_refused(tmp_path):
    script = Script(tmp_path / "checkpoint.pt", "sync")
    script.train(save_at=1)
    net = make_net()
    optimizer = torch.optim.AdamW(net.parameters())
    with ownpace.join("sync", quiet=True) as fleet:
        with pytest.raises(ownpace.InputError, match="a checkpoint needs a model"):
            fleet.state_dict()
        fleet.wrap(net, optimizer)
        with pytest.raises(ownpace.InputError, match="has 1 schedulers, this fleet 0"):
            fleet.load(script.path)
        with pytest.raises(ownpace.InputError, match=r"not a state of fleet\.state_dict"):
            fleet.load_state_dict(net.state_dict())
        for x, y, _ in fleet.batches(Numbers(16), 8):
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            state = fleet.state_dict()
        with pytest.raises(ownpace.InputError, match="after the first loop"):
            fleet.load_state_dict(state)


def test_two_ranks_go_on_with_the_samples_that_are_left(start: Start, tmp_path: Path) -> None:
    """Every sample is learnt from exactly once: before the checkpoint, or after it."""
    for name in ("begin", "go_on"):
        (tmp_path / name).mkdir()
    run("begin", start, tmp_path / "begin", "tests.process.scenarios_checkpoint")
    ranks = run("go_on", start, tmp_path / "go_on", "tests.process.scenarios_checkpoint")
    for name in ALGORITHMS:
        saved = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        learnt_before = saved["models"][0]["marks"].nonzero().flatten().tolist()
        assert len(learnt_before) == saved["progress"]["samples"] > 0, name
        assert sorted([*learnt_before, *(sample for rank in ranks for sample in rank[name]["seen"])]) == [
            *range(SIZE)
        ], name
        assert ranks[0][name]["marks"] == ranks[1][name]["marks"], name
        assert all(ranks[0][name]["marks"]), name
        assert [rank[name]["samples"] for rank in ranks] == [SIZE, SIZE], name
        assert [rank[name]["epoch"] for rank in ranks] == [1, 1], name

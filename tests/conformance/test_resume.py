"""A run that is killed and goes on from its folder is the run that was never killed: files and all, byte for byte."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ownpace import ALGORITHMS, Config, execute
from ownpace.core.contract.events import Event
from ownpace.core.learning.seeds import derive
from ownpace.fleet import Fleet, Machine, ServerMachine
from ownpace.run.resume import Resumption, find_resumption
from ownpace.testing.blobs import Blobs

FLEET = Fleet(
    machine=(Machine(samples_per_s=3000.0, jitter=0.2), Machine(samples_per_s=1000.0, count=3, jitter=0.1)),
    server=(ServerMachine(), ServerMachine()),
)
BLOBS = "ownpace.testing.blobs:Blobs"
SAMPLINGS: dict[str, Any] = dict(zip(ALGORITHMS, cycle(("queue", "iid", "shards")), strict=False))
OPTIMIZERS: dict[str, Any] = dict(
    zip(ALGORITHMS, cycle(({"momentum": 0.9}, {"optimizer": "adam", "lr": 0.01})), strict=False)
)
PARAMETERS: dict[str, dict[str, object]] = {"od": {"warmup": 2}, "grouping": {"prerun": 2}}
"""So that what begins after a warm-up has begun before the first checkpoint."""


class Killed(Exception):
    """No error of ours, so nothing is written after it."""


def killed_after(number: int):
    """Raises when that many events have come."""
    seen = 0

    def on_event(event: Event) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            raise Killed

    return on_event


def go_on(run: Path, **changes: Any) -> Resumption:
    resumption = find_resumption(run, changes)
    execute(resumption.config, run, resumption=resumption)
    return resumption


def files(run: Path) -> dict[str, Any]:
    """All that a run has written, but for what the clock on the wall says."""
    found: dict[str, Any] = {
        p.name: p.read_bytes() for p in sorted(run.iterdir()) if p.suffix != ".json" and p.is_file()
    }
    summary = json.loads((run / "summary.json").read_text())
    found["summary"] = {name: value for name, value in summary.items() if name not in ("wall_seconds", "out")}
    found["config"] = (run / "config.json").read_text()
    found["checkpoints"] = [path.name for path in sorted((run / "checkpoints").iterdir())]
    return found


def assert_goes_on_as_if_nothing_had_been(config: Config, folder: Path) -> None:
    execute(config, folder / "whole")
    expected = files(folder / "whole")
    num_events = expected["events.jsonl"].count(b"\n")
    first = expected["events.jsonl"].index(b'"generation"')
    # Anywhere after the first checkpoint, in the middle of whatever is under way; the moment is that of the algorithm.
    before = expected["events.jsonl"][:first].count(b"\n")
    moment = before + 1 + derive(config.seed, len(str(config.algorithm)), num_events) % (num_events - before - 2)
    with pytest.raises(Killed):
        execute(config, folder / "killed", on_event=killed_after(moment))
    assert not (folder / "killed" / "model.safetensors").exists()
    # Given again, it is the same: from Python, a task may be one that no name leads to.
    go_on(folder / "killed", **({} if isinstance(config.task, str) else {"task": config.task}))
    assert files(folder / "killed") == expected


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_goes_on_as_if_nothing_had_been(name, tmp_path):
    config: dict[str, Any] = {"lr": 0.02, **OPTIMIZERS[name]}
    assert_goes_on_as_if_nothing_had_been(
        Config(
            algorithm=name, parameters=PARAMETERS.get(name, {}), task=BLOBS, fleet=FLEET, batch_size=8,
            samples=1200, checkpoint_every=300, sampling=SAMPLINGS[name], seed=3, **config,
        ),
        tmp_path,
    )  # fmt: skip


class Normed(Blobs):
    """With BatchNorm, whose statistics are each worker's own, and dropout, which draws from torch's generator."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 2))


def test_so_do_batch_norm_dropout_and_a_schedule(tmp_path):
    config = Config(
        algorithm="pace", task=Normed(), fleet=FLEET, samples=700, checkpoint_every=200, momentum=0.9,
        schedule="cosine", warmup_samples=100, target=0.2, eval_every=150,
    )  # fmt: skip
    assert_goes_on_as_if_nothing_had_been(config, tmp_path)


@pytest.mark.parametrize("sampling", ["queue", "iid"])
def test_so_does_a_recipe_that_changes_images_at_random(sampling, tmp_path):
    recipe: dict[str, Any] = {"task_parameters": {"crop": 2, "flip": True, "label_smoothing": 0.1}, "nesterov": True}
    config = Config(
        algorithm="abs", task="digits", fleet=FLEET, samples=3000, checkpoint_every=1000, momentum=0.9, clip_norm=2.0,
        sampling=sampling, lr=0.02, **recipe,
    )  # fmt: skip
    assert_goes_on_as_if_nothing_had_been(config, tmp_path)


def test_killed_again_and_again_it_still_is_the_same_run(tmp_path):
    config = Config(task=BLOBS, algorithm="async", fleet=FLEET, samples=900, checkpoint_every=100, batch_size=8)
    execute(config, tmp_path / "whole")
    with pytest.raises(Killed):
        execute(config, tmp_path / "killed", on_event=killed_after(200))
    reached = set()
    for _ in range(4):
        resumption = find_resumption(tmp_path / "killed", {})
        reached.add(resumption.samples)
        # What was recorded before is shown again, and then comes about one checkpoint's worth.
        shown = (tmp_path / "killed" / "events.jsonl").read_bytes()[: resumption.position.num_bytes]
        with pytest.raises(Killed):
            execute(
                resumption.config, tmp_path / "killed", resumption=resumption,
                on_event=killed_after(shown.count(b"\n") + 200),
            )  # fmt: skip
    assert len(reached) == 4
    go_on(tmp_path / "killed")
    assert files(tmp_path / "killed") == files(tmp_path / "whole")


def test_longer_is_the_run_that_was_longer_from_the_start(tmp_path):
    config = Config(
        task=BLOBS, algorithm="stale", fleet=FLEET, samples=500, checkpoint_every=200, batch_size=8, eval_every=90
    )
    execute(config, tmp_path / "short")
    resumption = go_on(tmp_path / "short", samples=1000)
    assert 400 <= resumption.samples < 500
    execute(config.override(samples=1000), tmp_path / "long")
    short, long = files(tmp_path / "short"), files(tmp_path / "long")
    # The first record has the length that the run was begun with.
    cut = [found.pop("events.jsonl").split(b"\n", 1)[1] for found in (short, long)]
    assert cut[0] == cut[1]
    assert short == long


@pytest.mark.parametrize("fleet", ["x2", "3,2,1,1,1"])
def test_another_fleet_goes_on_where_the_first_was(fleet, tmp_path):
    config = Config(task="quadratic", algorithm="pace", fleet="2,1,1", samples=1500, checkpoint_every=300, batch_size=8)
    with pytest.raises(Killed):
        execute(config, tmp_path / "r", on_event=killed_after(300))
    if fleet == "x2":
        fleet = "2,1"  # virtual time needs paces
    resumption = go_on(tmp_path / "r", fleet=fleet)
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["reason"] == "finished"
    assert summary["samples"] >= 1500
    assert resumption.samples > 0
    assert len(Config.load(tmp_path / "r").fleet.workers) == fleet.count(",") + 1
    torch.testing.assert_close(summary["loss"], 0.0, atol=5.0, rtol=0)


def test_so_do_events_that_have_a_bound(tmp_path):
    config = Config(
        algorithm="async", task=BLOBS, fleet=FLEET, samples=8000, checkpoint_every=1000, batch_size=8, timing_only=True,
        events_limit_mb=1,
    )  # fmt: skip
    assert_goes_on_as_if_nothing_had_been(config, tmp_path)
    assert len(list((tmp_path / "killed").glob("events*"))) > 1

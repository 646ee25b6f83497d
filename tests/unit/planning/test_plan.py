"""Plans whose answer is obvious, and what a plan holds."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from ownpace.core.contract.errors import InputError, Interrupted
from ownpace.fleet import Fleet, Machine, Network, paces
from ownpace.planning import Plan, PlanProgress, choose_by_speed, plan
from ownpace.planning.candidates import candidates
from ownpace.planning.command import command_for, fleet_text
from ownpace.planning.deadlines import Deadlines
from ownpace.run import Config
from ownpace.testing.blobs import Blobs

ONE_IS_SLOW = paces(2000, 2000, 20)
SLOW_NETWORK = paces(2000, 2000, 2000, network=Network(bandwidth_bytes_per_s=1e4, latency_s=0.5))


def planned(fleet: Fleet | str, algorithms: list[str], **more: Any) -> Plan:
    made = plan(
        Config(task=Blobs(), batch_size=8, momentum=0.0, epochs=8, target=0.97),
        fleet,
        algorithms=algorithms,
        seeds=(0, 1),
        processes=1,
        **{"what_if": (), **more},
    )
    json.dumps(made.to_json(), allow_nan=False)
    return made


def test_who_waits_for_a_slow_machine_loses():
    made = planned(ONE_IS_SLOW, ["sync", "pace", "balanced"], what_if=["drop:worker@20", "drop:worker@2000"])
    assert made.choice.algorithm in ("pace", "balanced")
    rows = {row.algorithm: row for row in made.ranking}
    assert made.ranking[-1].algorithm == "sync"
    assert rows["sync"].samples_per_s < 0.2 * rows["balanced"].samples_per_s
    assert rows["sync"].time_to_target > 5 * rows["balanced"].time_to_target
    assert "as soon as sync" in made.verdict
    assert rows["balanced"].lr == rows["sync"].lr  # the same updates
    slow, fast = made.what_if["drop:worker@20"], made.what_if["drop:worker@2000"]
    assert list(made.what_if) == ["drop:worker@20", "drop:worker@2000"]
    assert fast.gain is None or fast.gain < 0.3 < slow.gain
    assert "Keep worker@2000 (2 machines)" in made.verdict


def test_on_a_slow_network_local_steps_win():
    made = planned(SLOW_NETWORK, ["balanced", "diloco"])
    assert made.choice.algorithm == "diloco"
    assert made.ranking[0].timing.network_use < made.ranking[1].timing.network_use
    assert made.ranking[0].samples_per_s > 5 * made.ranking[1].samples_per_s


def test_speeds_alone_say_that_they_are_only_that():
    made = planned("4,1", ["sync", "balanced", "diloco"], timing_only=True, what_if=["network:x10"])
    assert made.timing_only
    assert made.ranking[0].samples_per_s >= made.ranking[-1].samples_per_s
    assert made.choice.algorithm == "balanced"  # exact, and nobody is faster by half
    assert made.choice.lr is None
    assert made.what_if["network:x10"].time_to_target is None
    assert "By speed alone" in made.verdict


def test_what_is_known_is_told_when_it_is_interrupted():
    def stop_at(stage: str, done: int):
        def on_progress(now: PlanProgress) -> None:
            if (now.stage, now.done) == (stage, done):
                raise KeyboardInterrupt

        return on_progress

    made = planned("4,1", ["sync", "balanced"], on_progress=stop_at("learning rates", 4))
    assert made.interrupted
    assert made.timing_only
    assert any("interrupted" in line for line in made.uncertain)
    with pytest.raises(Interrupted):
        planned("4,1", ["sync", "balanced"], on_progress=stop_at("speeds", 1))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"algorithms": ["snyc"]}, "did you mean 'sync'"),
        ({"algorithms": []}, "at least one"),
        ({"seeds": ()}, "at least one"),
        ({"what_if": ["drop:all"]}, "this fleet's machines"),
        ({"fleet": "x4"}, "ownpace measure"),
        ({"seconds": 0}, "seconds is 0; it must be"),
        ({"config": Config(task=Blobs(), target=2)}, "target is 2; it is an accuracy"),
        ({"config": Config(task=Blobs(), epochs=-1)}, "epochs is -1"),
    ],
)
def test_bad_input_is_found_before_anything_runs(more, said):
    with pytest.raises(InputError, match=said):
        plan(**{"config": Config(task=Blobs()), "fleet": "4,1", "processes": 1, **more})


def test_who_takes_part_depends_on_the_fleet():
    alike, why = candidates(paces(1000, 1000, 1000))
    assert "backup" in why
    assert not {each.name for each in alike} & set(why)
    assert "backup" not in candidates(paces(1000, 1000, 1000, jitter=2.0))[1]
    sites = Fleet(machine=(Machine(samples_per_s=1, site="a"), Machine(samples_per_s=1, site="b")))
    assert "layered" not in candidates(sites)[1]


def test_in_a_script_speed_decides_and_exact_methods_come_first():
    alike = choose_by_speed(paces(1000, 1000), 10_000, 32).choice
    assert alike.algorithm in ("sync", "balanced")
    unlike = choose_by_speed(paces(4000, 500), 10_000, 32)
    assert unlike.choice.algorithm == "balanced"
    assert "times sync" in unlike.choice.why
    far = choose_by_speed(SLOW_NETWORK, 1_000_000, 32).choice
    assert far.algorithm not in ("sync", "balanced")


def test_the_command_says_all_that_matters():
    config = Config(task="mnist", model="cnn", fleet="my fleet.toml", batch_size=16, target=0.9, nesterov=True)
    words = shlex.split(command_for(config, "stale", {"staleness": 5}, 0.125))
    assert words[:4] == ["ownpace", "train", "--algorithm", "stale"]
    text = " ".join(words)
    for part in ("-p staleness=5", "--fleet my fleet.toml", "--task mnist", "--model cnn", "--batch-size 16"):
        assert part in text
    for part in ("--nesterov", "--lr 0.125", "--target 0.9"):
        assert part in text
    assert fleet_text(paces(4000, 500, jitter=0.0)) == "4,0.5"
    assert fleet_text(paces(4000, 500)) == "fleet.toml"
    assert "--task ownpace.testing.blobs:Blobs" in command_for(Config(task=Blobs()), "sync", {}, None)


@pytest.mark.parametrize(
    ("late", "said"),
    [
        ("first_search", "balanced: not searched, so all are ranked by speed alone"),
        ("searches", "pace: not searched"),
        ("end", "drop:worker@1000: not answered"),
    ],
)
def test_when_the_time_is_up_a_plan_says_what_is_missing(monkeypatch, late, said):
    monkeypatch.setattr(Deadlines, late, 0.0)
    made = planned("4,1", ["sync", "balanced", "pace"], what_if=["drop:worker@1000"])
    assert any(line.startswith(said) for line in made.uncertain)
    assert made.timing_only == (late == "first_search")
    assert not any("learnt nothing" in line for line in made.uncertain)
    assert bool(made.what_if) == (late != "end")
    assert ("pace may be better" in made.verdict) == (late == "searches")

"""Plans whose answer is obvious, and what a plan holds."""

from __future__ import annotations

import json
import shlex
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ownpace.core.contract.errors import InputError, Interrupted
from ownpace.fleet import Between, Fleet, Machine, Network, ServerMachine, paces
from ownpace.planning import Plan, PlanProgress, choose_by_speed, deadlines, driving, plan, planner, trial
from ownpace.planning.candidates import candidates
from ownpace.planning.command import command_for, fleet_text
from ownpace.planning.deadlines import Deadlines
from ownpace.planning.ranking import Known
from ownpace.planning.timing import Timing
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
    assert fast.gain is None or fast.gain < 0.5 < slow.gain
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


SITES = Fleet(
    machine=(
        Machine(name="west", count=2, samples_per_s=3000, site="a"),
        Machine(name="east", count=2, samples_per_s=1500, site="b"),
    ),
    network=Network(
        bandwidth_bytes_per_s=1.25e9, latency_s=1e-5, between=Between(bandwidth_bytes_per_s=1e6, latency_s=1e-3)
    ),
    server=(ServerMachine(site="b"),),
)


def by_speed(fleet: Fleet, algorithms: list[str], what_if: list[str]) -> Plan:
    return plan(Config(task="digits"), fleet, algorithms=algorithms, what_if=what_if, timing_only=True, processes=1)


def test_by_speed_alone_the_choice_is_compared_with_itself():
    # On a better network, exact updates are fast enough to be taken, and slower than the choice is here.
    made = by_speed(SITES, ["sync", "balanced", "stride"], ["network:x10", "drop:west"])
    better, without = made.what_if["network:x10"], made.what_if["drop:west"]
    assert (made.choice.algorithm, better.algorithm, without.algorithm) == ("stride", "balanced", "balanced")
    assert better.gain == pytest.approx(1.0, abs=0.02)
    assert without.gain == pytest.approx(1 / 3, abs=0.02)
    assert better.samples_per_s < 0.9 * made.ranking[0].samples_per_s
    rate = f"({better.samples_per_s:,.0f} samples/s)"
    assert f"10 times the network: not worth it (0% more samples/s); then balanced is enough {rate}." in made.verdict
    assert "Keep west (2 machines): without, 67% fewer samples/s; then balanced is enough" in made.verdict


def test_by_speed_alone_a_worse_fleet_may_ask_for_another_choice():
    made = by_speed(paces(4000, 1000), ["sync", "balanced", "stride"], ["bandwidth:x0.01"])
    worse = made.what_if["bandwidth:x0.01"]
    assert (made.choice.algorithm, worse.algorithm) == ("balanced", "stride")
    assert worse.gain < 0.9
    assert f"fewer samples/s; then take stride ({worse.samples_per_s:,.0f} samples/s)." in made.verdict


def test_nobody_is_faster_than_the_machines():
    made = by_speed(SITES, ["stride", "acco", "pace"], [])
    for row in made.ranking:
        assert row.samples_per_s < 1.001 * 9000, row
        assert row.share_of_limit == pytest.approx(row.samples_per_s / 9000)


def test_by_speed_alone_few_large_updates_are_not_chosen():
    slow = paces(3000, 3000, network=Network(bandwidth_bytes_per_s=3e5, latency_s=1e-3))
    made = by_speed(slow, ["sync", "balanced", "acco", "diloco"], ["network:x10"])
    rows = {row.algorithm: row for row in made.ranking}
    assert rows["acco"].samples_per_update > 2.5 * rows["sync"].samples_per_update
    assert made.ranking[0].algorithm == "acco"
    assert made.choice.algorithm == "diloco"
    assert by_speed(slow, ["acco"], []).choice.algorithm == "acco"  # where nobody else is there


def test_the_choice_is_asked_on_other_fleets_whoever_is_faster():
    speed = {"acco": (400, 999), "pace": (390, 999), "abs": (380, 999), "stride": (300, 64), "sync": (100, 64)}
    timings = {name: Timing(rate, 1.0, samples, 1.0, None, 20) for name, (rate, samples) in speed.items()}
    entered = {each.name: each for each in candidates(SITES, list(speed))[0]}
    known = Known(Config(), SITES, {}, candidates=entered, timings=timings)
    assert known.chosen().algorithm == "stride"
    assert [entrant.candidate.name for entrant in known.worth_asking(4)] == list(speed)


def test_a_task_or_its_name_will_do():
    of_name, of_task, of_config = (
        plan(given, "4,1", algorithms=["sync"], what_if=["none"], timing_only=True, processes=1)
        for given in ("quadratic", Blobs(), Config(task=Blobs()))
    )
    assert "--task quadratic" in of_name.choice.command
    assert of_task.choice == of_config.choice
    assert not of_name.what_if


def stop_at(stage: str, done: int):
    def on_progress(now: PlanProgress) -> None:
        if (now.stage, now.done) == (stage, done):
            raise KeyboardInterrupt

    return on_progress


def test_what_is_known_is_told_when_it_is_interrupted():
    made = planned("4,1", ["sync", "balanced"], on_progress=stop_at("learning rates", 4))
    assert made.interrupted
    assert any("interrupted" in line for line in made.uncertain)
    # Four trials are enough to say that a rate gets there, and when.
    assert (made.choice.algorithm, made.timing_only) == ("balanced", False)
    assert made.ranking[0].time_to_target is not None
    early = planned("4,1", ["sync", "balanced"], on_progress=stop_at("learning rates", 0))
    assert (early.choice.algorithm, early.interrupted, early.timing_only) == ("balanced", True, True)
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
        ({"config": Config(task=Blobs(), fleet=[]), "fleet": None}, "no machine|list of paces"),
        ({"fleet": []}, "no machine|list of paces"),
        ({"config": "digit"}, "did you mean 'digits'"),
        ({"config": {"task": "digits"}}, "the name of one, or an ownpace.Config"),
        ({"what_if": ["none", "network:x10"]}, "or none alone"),
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
        ("first_search", "ranked by speed alone: the time is not enough"),
        ("searches", "pace: not searched"),
        ("end", "drop:worker@1000: not answered"),
    ],
)
def test_when_the_time_is_up_a_plan_says_what_is_missing(monkeypatch, late, said):
    monkeypatch.setattr(Deadlines, late, 0.0)
    monkeypatch.setattr(Deadlines, "from_now", lambda self: self)
    monkeypatch.setattr(Deadlines, "left_to_search_s", 100.0)
    made = planned("4,1", ["sync", "balanced", "pace"], what_if=["drop:worker@1000"])
    assert any(line.startswith(said) for line in made.uncertain)
    assert made.timing_only == (late == "first_search")
    assert not any("learnt nothing" in line for line in made.uncertain)
    assert bool(made.what_if) == (late != "end")
    assert ("pace may be better" in made.verdict) == (late == "searches")


class Clock:
    """Time that passes when somebody looks: as slow a machine as one likes, and the same on all."""

    def __init__(self, monkeypatch, step_s: float) -> None:
        self.now, self.step_s = 0.0, step_s
        for module in (planner, deadlines, driving, trial):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=self.look, process_time=self.look))

    def look(self) -> float:
        self.now += self.step_s
        return self.now


@pytest.mark.parametrize(
    ("step_s", "algorithms", "target"),
    [(1e-4, 2, True), (0.003, 2, True), (0.01, 2, True), (0.05, 1, True), (0.2, 0, False), (1.0, 0, False)],
    ids=["fast", "enough", "slow", "slower", "too slow", "hopeless"],
)
def test_on_a_slow_machine_the_verdict_comes_in_time_from_what_is_known(monkeypatch, step_s, algorithms, target):
    clock = Clock(monkeypatch, step_s)
    asked = {"what_if": ["drop:worker@1000", "network:x10"], "seconds": 60.0}
    made = planned("4,2,1,1", ["sync", "balanced", "pace", "diloco"], **asked)
    assert clock.now < 60 + 100 * step_s
    searched = [row for row in made.ranking if row.time_to_target is not None and not row.note]
    assert len(searched) >= algorithms
    assert (made.target is not None) == target
    assert ("speed alone" in made.verdict.splitlines()[0]) != target
    if not target:
        assert any("--seconds" in line and "--model" in line for line in made.uncertain)


def test_without_a_word_about_time_a_plan_takes_two_minutes_at_most(monkeypatch):
    clock = Clock(monkeypatch, 1.0)
    planned("4,2,1,1", ["sync", "balanced", "pace", "diloco"], what_if=None)
    assert clock.now < 120 + 30


class Slow(Blobs):
    """Gradients that take long, whatever the machine."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        for _ in range(100):
            torch.linalg.inv(torch.eye(200) + 0.1)
        return super().loss(outputs, targets)


def test_slow_gradients_do_not_make_a_plan_longer():
    made = plan(Config(task=Slow()), "4,2,1,1", seconds=5, processes=1)
    # Without a limit, it takes many minutes.
    assert made.seconds < 60
    assert made.choice.algorithm

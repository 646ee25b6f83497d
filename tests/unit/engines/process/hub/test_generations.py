"""Who goes on when nodes die and join: the hub's part, without any process."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from ownpace import make_algorithm
from ownpace.core.contract.errors import ReplicasDiffer
from ownpace.core.learning.layout import Layout
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.engines.process.hub.config import Elasticity
from ownpace.engines.process.hub.generations import Generations
from ownpace.engines.process.hub.late_watch import LateWatch
from ownpace.engines.process.meet.restarts import Restarts
from ownpace.engines.process.meet.run_state import StateCollector
from ownpace.engines.process.node.terms import RunTerms
from ownpace.engines.process.talk.control import Control, Release, Start, Stop, Welcome
from ownpace.engines.process.talk.regrouping import Regroup, RegroupPlan, Standing

WORKERS = ("a", "b", "c")


class Led:
    """Generations, and what they have told to whom."""

    def __init__(self, algorithm: str = "sync", **config: object) -> None:
        layers = Layout.of([("w", torch.Size([2, 3]), False), ("v", torch.Size([4]), False)]).layers
        servers = 1 if make_algorithm(algorithm).has_servers else 0
        terms = RunTerms(make_algorithm(algorithm), WORKERS, servers, layers, torch.float32, OptimizerSpec(), 1000)
        self.told: list[tuple[Control, list[str]]] = []
        self.restarts = Restarts()
        self.generations = Generations(
            Elasticity(terms, **config),  # type: ignore[arg-type]
            self._tell,
            self.restarts,
            StateCollector(),
        )
        for name in sorted(self.generations.members.there):
            self.generations.take_prepared(name, 0, [])

    def _tell(self, control: Control, names: Iterable[str]) -> None:
        self.told.append((control, list(names)))

    def last(self, kind: type[Control]) -> tuple[Control, list[str]]:
        return [told for told in self.told if isinstance(told[0], kind)][-1]

    def stand(self, name: str, version: int = 5, used: tuple[int, ...] = (8, 8, 8), *, is_new: bool = False) -> None:
        number = self.generations.number
        standing = Standing(number, is_new, version, 24 * version, 0.0, list(used), [version])
        self.generations.take_standing(name, standing)

    @property
    def plan(self) -> RegroupPlan:
        plan, _ = self.last(RegroupPlan)
        assert isinstance(plan, RegroupPlan)
        return plan


def test_all_that_are_prepared_start_together():
    led = Led()
    assert led.generations.phase == "running"
    assert led.last(Start)[1] == ["a", "b", "c"]


def test_the_survivor_with_most_updates_gives_what_it_has_to_those_behind():
    led = Led()
    led.generations.lose("b")
    assert led.last(Regroup) == (Regroup(1), ["a", "c"])
    led.stand("a", 5)
    assert led.generations.phase == "standing"
    led.stand("c", 6, (9, 9, 9))
    assert (led.plan.workers, led.plan.giver, led.plan.receivers) == (["a", "c"], "c", ["a"])
    assert (led.plan.used, led.plan.version, led.plan.budget) == ([9, 9, 9], 6, 1000)
    led.generations.take_prepared("a", 1, [6])
    led.generations.take_prepared("c", 1, [6])
    assert led.last(Start)[1] == ["a", "c"]
    assert [worker.index for worker in led.generations.roster.workers] == [0, 1]


def test_another_death_begins_it_again_and_what_was_said_before_counts_no_more():
    led = Led()
    led.generations.lose("b")
    led.stand("a")
    led.generations.take_standing("c", Standing(0, False, 9, 9, 0.0, [], []))  # of another attempt
    led.generations.lose("c")
    assert led.generations.number == 2
    led.stand("a")
    assert led.plan.workers == ["a"]


def test_replicas_that_differ_do_not_start():
    led = Led()
    led.generations.lose("b")
    led.stand("a")
    led.stand("c")
    led.generations.take_prepared("a", 1, [5])
    with pytest.raises(ReplicasDiffer):
        led.generations.take_prepared("c", 1, [6])


def test_a_worker_that_comes_is_let_in_at_a_border_in_good_order():
    led = Led()
    led.generations.lose("b")
    for name in ("a", "c"):
        led.stand(name)
    for name in ("a", "c"):
        led.generations.take_prepared(name, 1, [5])
    assert led.generations.welcome("b")
    assert led.last(Welcome) == (Welcome(is_late=True), ["b"])
    led.generations.take_prepared("b", 0, [])
    assert led.last(Stop) == (Stop(is_border=True), ["a", "c"])
    assert not led.generations.worker_ended("a", is_through=False)
    assert led.generations.worker_ended("c", is_through=False)
    led.generations.next()
    assert led.last(Regroup)[1] == ["a", "b", "c"]
    for name in ("a", "b", "c"):
        led.stand(name, is_new=name == "b")
    assert (led.plan.receivers, led.plan.fresh) == (["b"], ["b"])


@pytest.mark.parametrize("config", [{"on_failure": "stop"}, {"min_workers": 3}])
def test_some_runs_do_not_go_on(config):
    assert not Led(**config).generations.goes_on_without("b")
    assert Led().generations.goes_on_without("b")


def test_a_full_fleet_lets_nobody_in():
    assert not Led().generations.welcome("d")
    led = Led(max_workers=2)
    led.generations.lose("b")
    assert not led.generations.welcome("b")


def test_a_server_is_waited_for_only_where_it_can_be_started_again():
    led = Led("async")
    assert not led.generations.goes_on_without("server-0")
    led.restarts.names = {"server-0"}
    assert not led.generations.goes_on_without("server-0"), "there is no snapshot of it"
    led.generations.lose("server-0")
    for name in WORKERS:
        led.stand(name)
    assert led.generations.phase == "standing"
    led.generations.take_prepared("server-0", 0, [])
    assert led.last(Regroup)[1] == ["a", "b", "c", "server-0"]


def test_who_keeps_the_others_waiting_at_a_border_is_said_once():
    led, now = Led(), [0.0]
    watch = LateWatch(lambda: now[0])

    def looked(at_s: float) -> str:
        now[0] = at_s
        return watch.look(led.generations.members.awaited) or ""

    assert looked(9.0) == ""  # all are at work
    led.generations.worker_ended("a", is_through=False)
    led.generations.worker_ended("b", is_through=False)
    assert [looked(10.0), looked(15.0)] == ["", ""]
    assert looked(15.1).startswith("the others have been waiting for c for 5 s, at a border")
    assert looked(99.0) == ""
    led.generations.worker_ended("c", is_through=False)
    assert looked(100.0) == ""
    led.generations.next()
    assert led.generations.members.awaited == []


def test_at_the_end_all_are_released_and_who_dies_then_is_not_missed():
    led = Led()
    for name in WORKERS:
        led.generations.worker_ended(name, is_through=False)
    led.generations.release()
    assert led.last(Release)[1] == ["a", "b", "c"]
    assert led.generations.goes_on_without("c")
    led.generations.lose("c")
    assert led.generations.phase == "closing"


def test_nodes_that_go_on_dying_are_started_later_and_later():
    now = [0.0]
    started: list[str] = []
    restarts = Restarts(lambda: now[0])
    restarts.names = {"a"}
    restarts.start = started.append
    assert not restarts.ask("b")
    for number, pause_s in enumerate((0.0, 0.5, 1.0, 2.0)):
        assert restarts.ask("a")
        if pause_s:
            now[0] += pause_s - 0.01
            restarts.look()
            assert len(started) == number
            now[0] += 0.01
        restarts.look()
        assert len(started) == number + 1


def test_a_node_that_dies_before_it_has_said_that_it_is_there_is_started_once_more():
    led = Led(on_failure="restart")
    led.generations.lose("b")
    assert led.generations.restarts("b")
    led.generations.welcome("b")
    led.generations.take_prepared("b", 0, [])
    led.generations.lose("b")  # while the others come to a border for it
    led.generations.lose("c")
    assert led.last(Regroup)[1] == ["a"]
    led.generations.release()
    assert not led.generations.restarts("b")


def test_a_newcomer_that_rounds_unlike_the_others_is_told_of_to_all():
    led = Led()
    led.generations.complain("b", 0)
    led.generations.lose("c")
    for name in ("a", "b"):
        led.stand(name)
    assert not led.plan.round_unlike
    led.generations.round_unlike = True
    led.generations.lose("b")
    led.stand("a")
    assert led.plan.round_unlike

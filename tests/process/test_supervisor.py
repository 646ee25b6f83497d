"""The children of a process: their death is noticed once, and none is left behind."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch
from tests.process.started import PATIENCE_S, entry, until

from ownpace.algorithms import make_algorithm
from ownpace.algorithms.async_ import AsyncSgd
from ownpace.core.contract.errors import MachineDied, OwnpaceError, PeerLost
from ownpace.core.learning.layout import Layout
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.engines.process.meet.rendezvous import LOOPBACK, Rendezvous, local_store
from ownpace.engines.process.meet.supervisor import NodeOrder, Supervisor
from ownpace.engines.process.node.terms import RunTerms
from ownpace.engines.process.talk.run_key import RunKey

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)
TERMS = RunTerms(
    algorithm=make_algorithm("async"),
    workers=("worker-0",),
    num_servers=2,
    layers=Layout.of([("weight", torch.Size([4]), False), ("bias", torch.Size([2]), False)]).layers,
    dtype=torch.float32,
    optimizer=OptimizerSpec(),
)


class Children:
    """A supervisor whose children are servers that wait for parameters, and wait."""

    def __init__(self, way: str, caplog: pytest.LogCaptureFixture) -> None:
        self.supervisor = Supervisor()
        self.store, port = local_store()
        self.rendezvous = Rendezvous(LOOPBACK, port, "test", RunKey.new().secret, LOOPBACK)
        self._begin = getattr(self.supervisor, way)
        self._caplog = caplog

    def start(self, number: int, rendezvous: Rendezvous | None = None, terms: RunTerms = TERMS) -> int:
        """Start a child; returns its process."""
        order = NodeOrder("server", number, f"server-{number}", terms, rendezvous or self.rendezvous)
        with self._caplog.at_level(logging.INFO, logger="ownpace"):
            self._begin(order)
        return int(self._caplog.messages[-1].rsplit(" ", 1)[1])  # "… as process 4711"

    def until_there(self, number: int) -> None:
        until(lambda: self.store.check([f"test/node/server-{number}"]), "the child begins to listen")

    def until_deaths(self, samples: int) -> list[OwnpaceError]:
        found: list[OwnpaceError] = []

        def is_noticed() -> bool:
            found.extend(self.supervisor.deaths(samples))
            return bool(found)

        until(is_noticed, "the death is noticed")
        return found


@pytest.fixture(params=["fork", "spawn"])
def children(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[Children]:
    opened = Children(request.param, caplog)
    yield opened
    opened.supervisor.end(0.0)


def runs(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    return Path(f"/proc/{pid}").exists() and entry(pid, "stat").rsplit(b")", 1)[-1].split()[:1] != [b"Z"]


def test_a_child_that_is_killed_is_reported_once_with_its_signal(children):
    pid = children.start(0)
    children.start(1)
    children.until_there(0)
    assert children.supervisor.deaths() == []
    os.kill(pid, signal.SIGKILL)
    (death,) = children.until_deaths(1200)
    assert isinstance(death, MachineDied)
    assert str(death).startswith("server-0 was killed by SIGKILL after 1200 samples; ")
    assert children.supervisor.deaths(1300) == []


@pytest.mark.parametrize("children", ["spawn"], indirect=True)
def test_a_signal_without_a_name_is_reported_by_its_number(children):
    pid = children.start(0)
    children.until_there(0)
    os.kill(pid, 40)
    (death,) = children.until_deaths(0)
    assert str(death).startswith("server-0 was killed by signal 40; ")


@pytest.mark.parametrize("children", ["spawn"], indirect=True)
def test_a_child_that_dies_with_its_order_unread_is_reported_and_not_waited_for(children):
    """A large model has an order that no pipe holds as a whole; a child reads it when it has imported torch."""
    layers = Layout.of([(f"layer{number}.weight", torch.Size([4]), False) for number in range(5000)]).layers
    pid = children.start(0, terms=replace(TERMS, layers=layers))
    os.kill(pid, signal.SIGKILL)
    (death,) = children.until_deaths(0)
    assert "server-0 was killed by SIGKILL" in str(death)


def test_a_child_that_ends_too_early_is_reported_with_its_exit_code(children):
    children.start(0, replace(children.rendezvous, store_port=9, timeout_s=0.2))
    (death,) = children.until_deaths(0)
    assert isinstance(death, PeerLost)
    assert str(death) == f"server-0 is gone: it ended with exit code {MachineDied.exit_code}"


@pytest.mark.parametrize("children", ["fork"], indirect=True)
def test_children_outlive_the_server_that_they_were_forked_from(children):
    pid = children.start(0)
    children.until_there(0)
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]  # not in its stubs
    os.kill(server, signal.SIGKILL)
    until(lambda: not runs(server), "it is gone")
    assert children.supervisor.deaths() == []
    other = children.start(1)
    children.until_there(1)
    os.kill(pid, signal.SIGKILL)
    (death,) = children.until_deaths(0)
    assert death.blame == "server-0"
    assert runs(other)
    children.supervisor.end(0.0)
    assert not runs(other)


def test_no_child_is_left_at_the_end(children):
    pids = [children.start(number) for number in (0, 1)]
    children.until_there(0)
    assert all(map(runs, pids))
    children.supervisor.end(0.0)
    assert not any(map(runs, pids))
    assert children.supervisor.deaths() == []  # they are forgotten


@pytest.mark.parametrize("children", ["fork"], indirect=True)
def test_nodes_are_forked_with_all_imported_that_the_first_optimizer_needs(children):
    """Importing it takes a node more time than all else that it does before it is there."""
    children.start(0)
    preloaded = forkserver._forkserver._preload_modules  # type: ignore[attr-defined]  # not in its stubs
    code = f"""
import sys, torch
for name in {preloaded}: __import__(name)
before = set(sys.modules)
torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))])
print(len(sys.modules.keys() - before))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert int(ran.stdout) < 50


def test_code_of_the_script_reaches_a_child_of_either_kind(children):
    """A lambda as optimizer, and an algorithm that no child can import: they travel by their code."""

    @dataclass(frozen=True, kw_only=True)
    class Mine(AsyncSgd):
        more: int = 3

    Mine.__module__, Mine.__qualname__ = "__main__", "Mine"
    build = OptimizerSpec(custom=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    children.start(0, terms=replace(TERMS, algorithm=Mine(), optimizer=build))
    children.until_there(0)

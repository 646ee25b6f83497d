"""Whatever befalls a run on real processes: it ends with one readable error, and nothing is left running."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from ownpace.core.contract.events import End, read_events

MARK = "OWNPACE_TEST_MARK"
ROOT = Path(__file__).parent.parent.parent
FOR_LONG = ("--samples", "100000000")
TORCHRUN = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}


def until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait for something to become true; that it does not in time is a failure."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}, but not within {seconds:g} s"
        time.sleep(0.02)


def entry(pid: int, name: str) -> bytes:
    """A file of a process in /proc; empty, if it is gone or a zombie's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


class Started:
    """A command that runs in a session of its own. All processes that come of it carry a mark."""

    def __init__(self, folder: Path, command: list[str], **environment: str) -> None:
        self.out = folder / "out"
        self._mark = f"{MARK}={uuid.uuid4()}"
        name, value = self._mark.split("=")
        inherited = {key: text for key, text in os.environ.items() if key not in TORCHRUN}
        with (folder / f"{value}.out").open("w") as stdout, (folder / f"{value}.err").open("w") as stderr:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**inherited, "OMP_NUM_THREADS": "1", name: value, **environment},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        self._stdout, self._stderr = Path(stdout.name), Path(stderr.name)

    @property
    def stdout(self) -> str:
        return self._stdout.read_text()

    @property
    def stderr(self) -> str:
        return self._stderr.read_text()

    @property
    def errors(self) -> list[str]:
        """What ownpace itself says; torchrun says more."""
        return [line for line in self.stderr.splitlines() if line.startswith("ownpace: ")]

    def alive(self) -> dict[int, str]:
        """The processes that came of this command, with their command lines. Zombies have no environment."""
        mark = self._mark.encode()
        pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
        marked = [pid for pid in pids if mark in entry(pid, "environ").split(b"\0")]
        return {pid: entry(pid, "cmdline").replace(b"\0", b" ").decode() for pid in marked}

    def nodes(self) -> list[int]:
        """The launcher's nodes, in the order in which it started them: they are the forkserver's children."""
        alive = self.alive()
        stats = {pid: entry(pid, "stat").rsplit(b")", 1)[-1].split() for pid in alive}
        parents = {pid: int(stat[1]) for pid, stat in stats.items() if stat}
        children = [pid for pid, parent in parents.items() if "forkserver" in alive.get(parent, "")]
        return sorted(children, key=lambda pid: (int(stats[pid][19]), pid))

    def ranks(self) -> dict[int, int]:
        """The process of each of torchrun's ranks."""
        found = {}
        for pid, command in self.alive().items():
            variables = dict(line.partition(b"=")[::2] for line in entry(pid, "environ").split(b"\0"))
            if b"RANK" in variables and "ownpace train" in command:
                found[int(variables[b"RANK"])] = pid
        return found

    def helper(self) -> int:
        """The server that rank 0 started."""
        (pid,) = (pid for pid, command in self.alive().items() if "help_out" in command)
        return pid

    def until_training(self, seconds: float = 40) -> None:
        """Wait until updates are made."""
        events = self.out / "events.jsonl"

        def trains() -> bool:
            assert self.process.poll() is None, self.stderr
            return events.exists() and '"kind":"update"' in events.read_text()

        until(trains, seconds, "training begins")

    def ends(self, seconds: float = 15) -> int:
        """Wait for the end, and see to it that nobody is left then."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {seconds:g} s: {self.alive()}\n{self.stderr}")
        until(lambda: not self.alive(), 3, "nobody is left")
        return code

    def kill(self) -> None:
        """Leave nothing behind, whatever a test found."""
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Started] = []

    def begin(command: list[str], **environment: str) -> Started:
        started.append(Started(tmp_path, command, **environment))
        return started[-1]

    yield begin
    for one in started:
        one.kill()


def train(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ownpace", "train", *arguments, "--json", "--out", "out"]


def launcher(*arguments: str, fleet: str = "2,1") -> list[str]:
    return train("--engine", "process", "--fleet", fleet, *arguments)


def torchrun(*arguments: str) -> list[str]:
    where = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    return [sys.executable, "-m", "torch.distributed.run", *where, *train(*arguments)[1:]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def one_line(started: Started) -> str:
    """The error of a command that says nothing else."""
    lines = started.stderr.splitlines()
    assert len(lines) == 1, started.stderr
    assert lines[0].startswith("ownpace: ")
    return lines[0]


def check_folder(folder: Path, error: str = "") -> End:
    """A folder in which every file is there and whole, and tells of the same end."""
    assert json.loads((folder / "config.json").read_text())["engine"] == "process"
    events = list(read_events(folder / "events.jsonl"))
    end = events[-1]
    assert isinstance(end, End)
    assert sum(isinstance(event, End) for event in events) == 1
    assert end.reason == (error.removeprefix("ownpace: ") or "finished")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["reason"] == end.reason
    assert summary["samples"] == end.sums.samples
    assert load_file(folder / "model.safetensors")
    return end


# ---- the launcher ----


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_ctrl_c_or_a_batch_system_ends_a_run_in_order_and_nothing_ever_listened_beyond_this_machine(start, number):
    run = start(launcher("--algorithm", "async", *FOR_LONG))
    run.until_training()
    addresses = [address for pid in run.alive() for address in listening(pid)]
    assert len(addresses) >= 5  # the store, the hub, two workers, one server
    assert {address for address in addresses if address not in LOOPBACK} == set()

    os.killpg(run.process.pid, number)  # all of its processes get it
    assert run.ends() == 130
    error = one_line(run)
    assert "interrupted at sample" in error
    end = check_folder(run.out, error)
    assert 0 < end.sums.samples < 100_000_000
    assert json.loads(run.stdout.splitlines()[-1])["samples"] == end.sums.samples


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same in IPv6's clothes, and ::1, as the kernel spells them."""


def listening(pid: int) -> list[str]:
    """The addresses that a process listens on."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just been closed
            inodes.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for name in ("tcp", "tcp6") for line in entry(pid, f"net/{name}").decode().splitlines()]
    return [row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes]


def test_listening_sees_what_listens_everywhere():
    with socket.socket() as everywhere, socket.socket() as here:
        everywhere.bind(("0.0.0.0", 0))
        here.bind(("127.0.0.1", 0))
        before = sorted(listening(os.getpid()))
        everywhere.listen()
        here.listen()
        assert sorted(listening(os.getpid())) == sorted([*before, "00000000", "0100007F"])


def test_sigterm_ends_a_run_in_order(start):
    run = start(launcher(*FOR_LONG))
    run.until_training()
    run.process.terminate()
    assert run.ends() == 130
    check_folder(run.out, one_line(run))


def test_ctrl_c_before_training_ends_it_at_once(start):
    run = start(launcher(*FOR_LONG))
    until(lambda: any("forkserver" in command for command in run.alive().values()), 20, "the launcher starts nodes")
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.ends() == 130
    assert "interrupted" in one_line(run)


def test_a_second_ctrl_c_does_not_wait_for_a_slow_worker(start):
    run = start(launcher("--algorithm", "async", *FOR_LONG, fleet="4,0.0005"))  # worker-1: a batch a minute
    run.until_training()
    os.killpg(run.process.pid, signal.SIGINT)
    until(lambda: stands_still(run.out / "events.jsonl"), 10, "worker-0 stops")
    assert run.process.poll() is None
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.ends(5) == 130
    check_folder(run.out, one_line(run))


def stands_still(path: Path) -> bool:
    """Whether nothing is written to a file for a second: nodes report four times in that."""
    before = path.stat()
    time.sleep(1)
    return path.stat().st_mtime_ns == before.st_mtime_ns


def test_nobody_outlives_a_launcher_that_is_killed(start):
    run = start(launcher("--algorithm", "async", *FOR_LONG))
    run.until_training()
    assert len(run.alive()) >= 5  # the launcher, the forkserver, two workers, one server
    run.process.kill()
    assert run.ends() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("algorithm", "node"), [("sync", 1), pytest.param("async", 0, marks=pytest.mark.slow), ("async", 2)]
)
def test_a_node_that_is_killed_is_named(start, algorithm, node):
    run = start(launcher("--algorithm", algorithm, *FOR_LONG))
    run.until_training()
    nodes = run.nodes()
    assert len(nodes) == (3 if algorithm == "async" else 2)
    os.kill(nodes[node], signal.SIGKILL)
    assert run.ends() == 4
    error = one_line(run)
    assert error.startswith(f"ownpace: {['worker-0', 'worker-1', 'server-0'][node]} was killed by SIGKILL after ")
    check_folder(run.out, error)


def test_an_exception_in_a_task_names_the_worker_and_the_exception(start, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        """
import multiprocessing

import ownpace
from ownpace.tasks import Digits


class Failing(Digits):
    calls = 0

    def loss(self, outputs, targets):
        Failing.calls += 1
        if Failing.calls == 20 and multiprocessing.current_process().name == "worker-1":
            raise KeyError("no such pixel")
        return super().loss(outputs, targets)


if __name__ == "__main__":
    ownpace.train("out", engine="process", fleet="2,1", task=Failing(), samples=100_000_000)
"""
    )
    run = start([sys.executable, str(script)])
    assert run.ends(30) == 1
    last = run.stderr.splitlines()[-1]
    assert "worker-1: KeyError: 'no such pixel'" in last
    assert "in loss" in run.stderr  # the worker's own traceback says where
    check_folder(run.out, last.partition(": ")[2])


def test_divergence_names_worker_sample_and_layer(start):
    # At 1e9 all ReLUs can die at once: the loss is large, finite, and stays.
    run = start(launcher("--lr", "1e30", *FOR_LONG))
    assert run.ends(30) == 3
    error = one_line(run)
    assert "on worker-" in error
    assert "at sample" in error
    assert "layer '" in error
    assert "smaller lr" in error
    check_folder(run.out, error)


# ---- torchrun ----


def test_torchrun_writes_one_folder(start, tmp_path):
    run = start(torchrun("--algorithm", "async", "--samples", "2000"))
    assert run.ends(40) == 0
    end = check_folder(run.out)
    assert end.sums.samples >= 2000
    assert len(run.stdout.splitlines()) == 1
    assert json.loads(run.stdout)["engine"] == "process"
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["out"]


@pytest.mark.parametrize("victim", [pytest.param("rank 0", marks=pytest.mark.slow), "rank 1", "server-0"])
def test_nobody_outlives_a_torchrun_that_lost_somebody(start, victim):
    run = start(torchrun("--algorithm", "async", *FOR_LONG))
    run.until_training()
    os.kill(run.helper() if victim == "server-0" else run.ranks()[int(victim[-1])], signal.SIGKILL)
    assert run.ends(40) != 0
    if victim == "server-0":
        assert any("server-0 was killed by SIGKILL" in line for line in run.errors)
    if victim != "rank 0":  # who writes the folder
        (end,) = (event for event in read_events(run.out / "events.jsonl") if isinstance(event, End))
        assert end.reason != "finished"


def test_ctrl_c_ends_torchrun_in_order(start):
    run = start(torchrun("--algorithm", "async", *FOR_LONG))
    run.until_training()
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.ends(40) != 0
    (error,) = set(run.errors)
    assert "interrupted at sample" in error
    check_folder(run.out, error)


# ---- what cannot be run ----


def test_a_fleet_of_another_size_than_torchruns_world(start):
    run = start(torchrun("--fleet", "4,2,1,1"))
    assert run.ends(30) != 0
    (error,) = set(run.errors)
    assert "the fleet has 4 workers, but torchrun started 2 processes; start 4" in error
    assert not run.out.exists()


def test_timing_only_is_for_the_virtual_engine(start):
    run = start(launcher("--timing-only"))
    assert run.ends(30) == 2
    assert "use the engine 'virtual'" in one_line(run)
    assert not run.out.exists()


def rank(number: int, port: int, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """What starts one of two ranks by hand."""
    place = {"RANK": str(number), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return train("--samples", "200", *arguments), place


@pytest.mark.slow
def test_a_rendezvous_that_nobody_answers_at(start):
    port = free_port()
    command, place = rank(1, port)
    run = start(command, **place)
    assert run.ends(40) == 4
    assert f"nobody answers at the rendezvous 127.0.0.1:{port}" in one_line(run)


@pytest.mark.slow
def test_a_rank_that_does_not_come(start):
    command, place = rank(0, free_port())
    run = start(command, **place)
    assert run.ends(50) == 4
    assert "not all 2 ranks came within 30 s" in one_line(run)


def test_a_port_that_is_in_use(start):
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        command, place = rank(0, port)
        run = start(command, **place)
        assert run.ends(30) == 2
    assert f"port {port} on 127.0.0.1 is in use" in one_line(run)
    assert not run.out.exists()


def test_ranks_with_different_keys(start):
    port = free_port()
    runs = []
    for number in (0, 1):
        command, place = rank(number, port)
        runs.append(start(command, **place, OWNPACE_KEY=f"the key of rank {number}"))
    for run in reversed(runs):
        assert run.ends(30) == 2
        assert "different run keys" in one_line(run)
    assert not runs[0].out.exists()


@pytest.mark.parametrize(
    ("option", "values", "words"),
    [
        ("--lr", ("0.1", "0.2"), ["the optimizer of rank 1 is", "lr=0.2", "that of rank 0 is", "lr=0.1"]),
        ("--algorithm", ("sync", "async"), ["the algorithm of rank 1 is AsyncSgd()", "that of rank 0 is SyncSgd("]),
    ],
)
def test_ranks_that_would_train_different_things(start, option, values, words):
    port = free_port()
    runs = []
    for number in (0, 1):
        command, place = rank(number, port, option, values[number])
        runs.append(start(command, **place))
    for run in runs:
        assert run.ends(30) == 2
        error = one_line(run)
        assert [word for word in words if word not in error] == []
    assert not runs[0].out.exists()

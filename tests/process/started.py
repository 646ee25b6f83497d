"""Commands that tests start: watched from outside, by what they write and by their entries in /proc."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from ownpace.core.contract.event_file import read_events
from ownpace.core.contract.events import End

PATIENCE_S = 240.0
"""How long anything may take that only a hanging program does not do in time, even next to many busy processes."""
ROOT = Path(__file__).parent.parent.parent
FOR_LONG = ("--samples", "100000000")
_HINT = "ownpace: go on from sample "
_MARK = "OWNPACE_TEST_MARK"
_TORCHRUN = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something to become true; that it never does is a failure."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}, but not within {PATIENCE_S:g} s"
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
        value = str(uuid.uuid4())
        self._mark = f"{_MARK}={value}"
        inherited = {key: text for key, text in os.environ.items() if key not in _TORCHRUN}
        with (folder / f"{value}.out").open("w") as stdout, (folder / f"{value}.err").open("w") as stderr:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**inherited, "OMP_NUM_THREADS": "1", _MARK: value, **environment},
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
        lines = [line for line in self.stderr.splitlines() if line.startswith("ownpace: ")]
        return [line for line in lines if not line.startswith(_HINT)]

    @property
    def hint(self) -> str:
        """What it says of going on."""
        (line,) = {line for line in self.stderr.splitlines() if line.startswith(_HINT)}
        return line

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
        (pid,) = (pid for pid, command in self.alive().items() if "be_spawned_node" in command)
        return pid

    def until_training(self) -> None:
        """Wait until updates are made."""
        events = self.out / "events.jsonl"

        def trains() -> bool:
            code = self.process.poll()
            assert code is None, f"ended with {code}: {self.stdout}{self.stderr}"
            return events.exists() and '"kind":"update"' in events.read_text()

        until(trains, "training begins")

    def ends(self) -> int:
        """Wait for the end, and see to it that no process is left then."""
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {PATIENCE_S:g} s: {self.alive()}\n{self.stderr}")
        until(lambda: not self.alive(), "no process is left")
        return code

    def kill(self) -> None:
        """Leave nothing behind, whatever a test found."""
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


Start = Callable[..., Started]


def train(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ownpace", "train", *arguments, "--json", "--out", "out"]


def launcher(*arguments: str, fleet: str = "2,1") -> list[str]:
    return train("--engine", "process", "--fleet", fleet, *arguments)


def torchrun(*command: str) -> list[str]:
    """Two ranks of a module or script."""
    where = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    return [sys.executable, "-m", "torch.distributed.run", *where, *command]


def torchrun_train(*arguments: str) -> list[str]:
    return torchrun(*train(*arguments)[1:])


def importable() -> str:
    """A PYTHONPATH with which processes find the modules of tests, wherever they are started."""
    return os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def one_line(started: Started) -> str:
    """The error of a command that says nothing else."""
    lines = [line for line in started.stderr.splitlines() if not line.startswith(_HINT)]
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

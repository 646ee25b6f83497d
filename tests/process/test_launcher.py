"""Whatever befalls a run that the launcher started: it ends with one readable error, and nothing is left running."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import signal
import socket
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

import pytest
from tests.process.started import FOR_LONG, PATIENCE_S, check_folder, entry, importable, launcher, one_line, until

from ownpace.run.checkpoints import Checkpoints, go_on_from, samples_of

pytestmark = pytest.mark.timeout(3 * PATIENCE_S)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)], ids=["ctrl-c", "sigterm"]
)
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


@pytest.mark.slow
def test_sigterm_ends_a_run_in_order(start):
    run = start(launcher(*FOR_LONG))
    run.until_training()
    run.process.terminate()
    assert run.ends() == 130
    check_folder(run.out, one_line(run))


@pytest.mark.slow
def test_ctrl_c_before_training_ends_it_at_once(start):
    run = start(launcher(*FOR_LONG))
    until(lambda: any("forkserver" in command for command in run.alive().values()), "the launcher starts nodes")
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.ends() == 130
    assert "interrupted" in one_line(run)


def test_a_second_ctrl_c_does_not_wait_for_a_slow_worker(start):
    # worker-1 takes a minute for a batch. After one Ctrl-C the run gives it 15 s to come to an end.
    run = start(launcher("--algorithm", "async", "--log-files", *FOR_LONG, fleet="4,0.0005"))
    run.until_training()
    first_s = time.time()
    os.killpg(run.process.pid, signal.SIGINT)
    until(lambda: stands_still(run.out / "events.jsonl"), "worker-0 stops")
    assert run.process.poll() is None
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.ends() == 130
    check_folder(run.out, one_line(run))
    assert end_of_run_s(run.out / "logs" / "hub.log") < first_s + 15


def stands_still(path: Path) -> bool:
    """Whether nothing is written to a file for a second: nodes report four times in that."""
    before = path.stat()
    time.sleep(1)
    return path.stat().st_mtime_ns == before.st_mtime_ns


def end_of_run_s(log: Path) -> float:
    """When the hub decided that the run was over; all that follows may take its time on a busy machine."""
    (line,) = (line for line in log.read_text().splitlines() if "the run ends" in line)
    return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp()


TORCHS_OWN = f"torchinductor_{getpass.getuser()}"
"""What torch leaves in the temporary folder."""


def test_nothing_outlives_a_launcher_that_is_killed(start):
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:  # with a short name: sockets lie there
        run = start(launcher("--algorithm", "async", "--checkpoint-every", "2000", *FOR_LONG), TMPDIR=temporary)
        until(lambda: Checkpoints(run.out).newest_first(), "there is a checkpoint")
        assert len(run.alive()) >= 5  # the launcher, the forkserver, two workers, one server
        run.process.kill()
        assert run.ends() == -signal.SIGKILL
        # One of those that it left says so, and no other.
        assert run.errors == ["ownpace: the process that led the run is gone, and so the run has ended"]
        newest = Checkpoints(run.out).newest_first()[0]
        assert run.hint == f"ownpace: {go_on_from(newest)}"
        assert not [path for path in Path(temporary).iterdir() if path.name != TORCHS_OWN]
        # Nor does the run that goes on leave anything.
        command = ["-m", "ownpace", "train", "--resume", str(run.out), "--samples", str(samples_of(newest) + 2000)]
        again = start([sys.executable, *command], TMPDIR=temporary)
        assert again.ends() == 0, again.stderr
        assert not any(Path(temporary).glob("ownpace-*/*"))


@pytest.mark.slow
def test_a_temporary_folder_may_have_a_long_name(start, tmp_path):
    temporary = tmp_path / ("long" * 30)
    temporary.mkdir()
    run = start(launcher("--samples", "2000"), TMPDIR=str(temporary))
    assert run.ends() == 0, run.stderr
    assert not [path for path in temporary.iterdir() if path.name != TORCHS_OWN]


@pytest.mark.slow
def test_a_launcher_that_is_stopped_is_given_nothing_more(start):
    """A server gives it all that it holds once a second: not taken, that would fill the memory."""
    task = ("--task", "tests.process.wide:Wide", "--batch-size", "8")
    run = start(launcher("--algorithm", "async", *task, *FOR_LONG), PYTHONPATH=importable())
    run.until_training()
    run.process.send_signal(signal.SIGSTOP)
    server = run.nodes()[0]
    before = given_memory(server)
    time.sleep(6)
    assert given_memory(server) <= before + 1
    run.process.send_signal(signal.SIGCONT)
    run.process.terminate()
    assert run.ends() == 130


def given_memory(pid: int) -> int:
    """How many pieces of memory a process has open that others can open, too."""
    found = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just been closed
            found += str(descriptor.readlink()).startswith("/memfd:ownpace ")
    return found


@pytest.mark.parametrize(
    ("algorithm", "victim"),
    [
        *(pytest.param(*each, marks=pytest.mark.slow) for each in [("sync", "worker-1"), ("async", "worker-0")]),
        ("async", "server-0"),
    ],
)
def test_a_node_that_is_killed_is_named(start, algorithm, victim):
    run = start(launcher("--algorithm", algorithm, "--on-failure", "stop", *FOR_LONG))
    run.until_training()
    names = ["server-0"] * (algorithm == "async") + ["worker-0", "worker-1"]  # as they are started
    nodes = dict(zip(names, run.nodes(), strict=True))
    os.kill(nodes[victim], signal.SIGKILL)
    assert run.ends() == 4
    error = one_line(run)
    assert error.startswith(f"ownpace: {victim} was killed by SIGKILL after ")
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
    ownpace.train(out="out", engine="process", fleet="2,1", task=Failing(), samples=100_000_000)
"""
    )
    run = start([sys.executable, str(script)])
    assert run.ends() == 1
    last = run.stderr.splitlines()[-1]
    assert "worker-1: KeyError: 'no such pixel'" in last
    assert "in loss" in run.stderr  # the worker's own traceback says where
    check_folder(run.out, last.partition(": ")[2])


@pytest.mark.slow
def test_divergence_names_worker_sample_and_layer(start):
    # At 1e9 all ReLUs can die at once: the loss is large, finite, and stays.
    run = start(launcher("--lr", "1e12", *FOR_LONG))
    assert run.ends() == 3
    error = one_line(run)
    assert "on worker-" in error
    assert "at sample" in error
    assert "layer '" in error
    assert "smaller lr" in error
    check_folder(run.out, error)


@pytest.mark.slow
def test_log_files_tell_what_each_node_did(start):
    run = start(launcher("--algorithm", "async", "--samples", "2000", "--log-files"))
    assert run.ends() == 0, run.stderr
    logs = {path.name: path.read_text() for path in (run.out / "logs").iterdir()}
    assert sorted(logs) == ["hub.log", "server-0.log", "worker-0.log", "worker-1.log"]
    for name in ("server-0", "worker-0", "worker-1"):
        assert f"{name} listens at tcp://127.0.0.1:" in logs[f"{name}.log"]
        assert f"{name} starts" in logs[f"{name}.log"]
        assert f"forked {name} as process" in logs["hub.log"]
    assert "the run ends: finished" in logs["hub.log"]

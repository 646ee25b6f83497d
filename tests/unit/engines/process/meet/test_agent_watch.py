"""A rank notices that torchrun's agent is gone; whoever does not belong to one is left alone."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading

import pytest

from ownpace.engines.process.meet.agent_watch import AgentWatch, find_agent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
FIND = "from ownpace.engines.process.meet.agent_watch import find_agent; print(find_agent())"


def found(command: list[str], **variables: str) -> str:
    return subprocess.run(
        command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True, check=True, timeout=240
    ).stdout.strip()


def test_the_agent_is_the_first_that_torchrun_did_not_start():
    """Directly, and behind a shell."""
    python = [sys.executable, "-c", FIND]
    script = f'"{sys.executable}" -c "{FIND}"; true'
    assert found(python, TORCHELASTIC_RUN_ID="none") == str(os.getpid())
    assert found(["sh", "-c", script], TORCHELASTIC_RUN_ID="none") == str(os.getpid())
    assert find_agent() is None  # nobody but torchrun starts what belongs to it


def test_who_is_gone_is_noticed_and_who_stays_is_not():
    child = subprocess.Popen(["sleep", "1000"])
    gone = threading.Event()
    watch, other = AgentWatch(gone.set, child.pid, grace_s=1000), AgentWatch(gone.set, os.getpid())
    assert not gone.wait(0.2)
    child.kill()
    assert gone.wait(60)  # a zombie has ended
    watch.close()
    other.close()
    child.wait()
    AgentWatch(gone.clear, None).close()
    assert gone.is_set()


def test_it_is_noticed_by_who_has_many_files_open():
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < 1200:
        pytest.skip("a process may not open so many files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before, 1200), most))
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    child, gone = subprocess.Popen(["sleep", "1000"]), threading.Event()
    watch = AgentWatch(gone.set, child.pid, grace_s=1000)
    try:
        child.kill()
        assert gone.wait(60)
    finally:
        watch.close()
        child.wait()
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


@pytest.mark.parametrize("leaves", [True, False])
def test_a_process_that_does_not_leave_the_run_is_ended(leaves):
    script = f"""
import subprocess, sys, threading, time
from ownpace.engines.process.meet.agent_watch import AgentWatch
agent = subprocess.Popen(["sleep", "1000"])
noticed = threading.Event()
watch = AgentWatch(noticed.set, agent.pid, grace_s=1000 if {leaves} else 0.1)
agent.kill()
noticed.wait()
if {leaves}:
    watch.close()
else:
    time.sleep(1000)
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=240).returncode == (0 if leaves else 4)

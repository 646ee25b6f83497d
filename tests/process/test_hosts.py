"""Several hosts, each a network namespace of its own with nothing in common but a cable. Needs root and `ip`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from tests.process.started import PATIENCE_S, until

from ownpace.core.contract.event_file import read_events
from ownpace.core.contract.events import Fault, Generation

ME = os.getpid() % 100_000  # tests that run side by side have hosts of their own
HOSTS = {f"ownpace-a{ME}": "10.77.0.1", f"ownpace-b{ME}": "10.77.0.2"}
LINKS = (f"own-a{ME}", f"own-b{ME}")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3 * PATIENCE_S),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"),
]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@pytest.fixture
def hosts():
    try:
        for name in HOSTS:
            ip("netns", "add", name)
    except subprocess.CalledProcessError:
        pytest.skip("network namespaces cannot be made here")
    try:
        ip("link", "add", LINKS[0], "type", "veth", "peer", "name", LINKS[1])
        for (name, address), link in zip(HOSTS.items(), LINKS, strict=True):
            ip("link", "set", link, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", link, "up")
        yield list(HOSTS)
    finally:
        for name in HOSTS:
            ip("netns", "del", name)


@pytest.mark.parametrize("algorithm", ["sync", "async"])
def test_two_hosts_train_together_with_a_server_on_each(hosts, algorithm, tmp_path):
    fleet = tmp_path / "fleet.toml"
    fleet.write_text("[[machine]]\ncount = 4\n[[server]]\nhost = 0\n[[server]]\nhost = 1\n")
    started = []
    for number, host in enumerate(hosts):
        command = ["ip", "netns", "exec", host, sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
        command += ["--node-rank", str(number), "--nproc-per-node", "2", "--master-addr", HOSTS[hosts[0]]]
        command += ["--master-port", "29777", "-m", "ownpace", "train", "--algorithm", algorithm, "--json"]
        command += ["--fleet", str(fleet), "--epochs", "4", "--out", str(tmp_path / "run")]
        (tmp_path / host).mkdir()  # hosts share no files
        secret = (
            {"OWNPACE_KEY": "a key that all hosts were given"} if algorithm == "sync" else {"OWNPACE_INSECURE": "1"}
        )
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path / host), **secret}
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    result = json.loads(outputs[0].splitlines()[-1])
    assert result["reason"] == "finished"
    assert result["samples"] >= 4 * 1437
    assert len(result["busy"]) == 4
    assert outputs[1] == ""  # the first host alone speaks
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize(("backend", "algorithm"), [("static", "async"), ("c10d", "sync"), ("c10d", "async")])
def test_two_hosts_go_on_after_the_rank_of_one_was_killed(hosts, backend, algorithm, start, tmp_path):
    """With a server on each, which dies with the rank that started it."""
    fleet = tmp_path / "fleet.toml"
    fleet.write_text("[[machine]]\ncount = 2\nsamples_per_s = 300\n[[server]]\nhost = 0\n[[server]]\nhost = 1\n")
    runs = []
    for number, host in enumerate(hosts):
        where = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "2"]
        if backend == "c10d":
            where += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{HOSTS[hosts[0]]}:29777", "--rdzv-id", "hosts"]
            # In a namespace, no name of the host leads to this address.
            where += ["--local-addr", HOSTS[host], "--rdzv-conf", f"is_host={int(number == 0)}"]
        else:
            where += ["--node-rank", str(number), "--master-addr", HOSTS[hosts[0]], "--master-port", "29777"]
        command = ["ip", "netns", "exec", host, sys.executable, "-m", "torch.distributed.run", *where, "-m", "ownpace"]
        command += ["train", "--algorithm", algorithm, "--fleet", str(fleet), "--samples", "12000", "--json"]
        command += ["--checkpoint-every", "1500", "--out", str(tmp_path / "out")]
        (tmp_path / host).mkdir()  # hosts share no files but the folder of the run
        runs.append(start(command, TMPDIR=str(tmp_path / host), OWNPACE_KEY="a key that all hosts were given"))
    checkpoints = tmp_path / "out" / "checkpoints"
    until(lambda: checkpoints.exists() and any(checkpoints.glob("*.safetensors")), "a checkpoint is there")
    (victim,) = (ranks[1] for run in runs if 1 in (ranks := run.ranks()))
    os.kill(victim, signal.SIGKILL)
    assert [run.ends() for run in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    events = list(read_events(tmp_path / "out" / "events.jsonl"))
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["samples"] >= 12000
    if backend == "static":  # the others have gone on, and taken both in again
        assert {event.who for event in events if isinstance(event, Fault)} == {"worker-1", "server-1"}
        changes = [event.members for event in events if isinstance(event, Generation) and event.members is not None]
        assert not changes or changes[-1] == ["worker-0", "worker-1"]

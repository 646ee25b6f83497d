"""Two sites, each a network namespace, and a slow cable between them: predictions hold. Needs root, `ip` and `tc`."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.process.started import PATIENCE_S

from ownpace import make_algorithm
from ownpace.core.contract.events import Update
from ownpace.fleet import fleet_from
from ownpace.tasks import Digits
from ownpace.testing import simulate
from ownpace.testing.torture_process.hosts import address, inside, namespaces

BYTES_PER_S = 500_000
"""Of the cable, each direction: slow enough that nothing else counts much, however busy the machine is."""
SAMPLES = 30 * 4 * 32
WIRE = 1448 / 1514
"""What is left of it for data: Ethernet, IP and TCP write headers, too."""
FLEET = f"""
[[machine]]
name = "east"
site = "east"
count = 2
samples_per_s = 400
[[machine]]
name = "west"
site = "west"
count = 2
samples_per_s = 400
[network]
bandwidth_bytes_per_s = 1e9
latency_s = 1e-4
[network.between]
bandwidth_bytes_per_s = {BYTES_PER_S * WIRE}
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3 * PATIENCE_S),
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"), reason="needs root and iproute2 with tc"
    ),
]


@pytest.fixture
def sites() -> Iterator[list[str]]:
    try:
        with namespaces() as hosts:
            for host in hosts[:2]:
                # What leaves a host waits in a queue that drops nothing, as TCP would take that for a slower cable.
                shape = ["tbf", "rate", f"{BYTES_PER_S}bps", "burst", "10kb", "limit", "8mb"]
                subprocess.run([*inside(host), "tc", "qdisc", "add", "dev", "cable", "root", *shape], check=True)
            yield hosts[:2]
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a slow cable between network namespaces cannot be made here: {error}")


def measured_s(hosts: list[str], algorithm: str, folder: Path) -> float:
    (folder / "fleet.toml").write_text(FLEET)
    options = f"--algorithm {algorithm} --task digits --model lenet --samples {SAMPLES} --eval-every 100000"
    files = ["--fleet", str(folder / "fleet.toml"), "--out", str(folder / "run")]
    started = []
    for number, host in enumerate(hosts):
        command = [*inside(host), sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
        command += ["--node-rank", str(number), "--nproc-per-node", "2", "--master-addr", address(0)]
        command += ["--master-port", "29778", "-m", "ownpace", "train", *options.split(), *files]
        (folder / host).mkdir()  # hosts share no files
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / host), "OWNPACE_KEY": "k" * 20}
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
    try:
        assert [process.wait(timeout=PATIENCE_S) for process in started] == [0, 0]
    finally:
        for process in started:
            process.kill()
    lines = [json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines()]
    return period_s([line["t"] for line in lines if line["kind"] == "update"])


def period_s(times: list[float]) -> float:
    """From one update to the next; the first ones are not counted."""
    return statistics.median(b - a for a, b in itertools.pairwise(sorted(times)[2:]))


def predicted_s(algorithm: str) -> float:
    fleet = fleet_from(tomllib.loads(FLEET))
    _, events = simulate(
        make_algorithm(algorithm), fleet, task=Digits("lenet"), samples=SAMPLES, batch_size=32, timing_only=True
    )
    return period_s([event.t for event in events if isinstance(event, Update)])


@pytest.mark.parametrize("algorithm", ["sync", "layered"])
def test_a_slow_cable_between_two_sites_costs_what_was_predicted(sites, algorithm, tmp_path):
    expected = predicted_s(algorithm)
    assert expected > 3 * 32 / 400  # most of it is the cable
    assert measured_s(sites, algorithm, tmp_path) == pytest.approx(expected, rel=0.15)

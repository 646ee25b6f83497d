"""What cannot be run is refused in one line, on every rank, before anything is written."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest
from tests.process.started import PATIENCE_S, free_port, launcher, one_line, torchrun_train, train

pytestmark = pytest.mark.timeout(3 * PATIENCE_S)


@pytest.mark.slow
def test_a_fleet_of_another_size_than_torchruns_world(start):
    run = start(torchrun_train("--fleet", "4,2,1,1"))
    assert run.ends() != 0
    (error,) = set(run.errors)
    assert "the fleet has 4 workers, but torchrun started 2 processes; start 4" in error
    assert not run.out.exists()


def test_timing_only_is_for_the_virtual_engine(start):
    run = start(launcher("--timing-only"))
    assert run.ends() == 2
    assert "use the engine 'virtual'" in one_line(run)
    assert not run.out.exists()


def test_a_time_out_that_is_no_time(start):
    run = start(launcher(), OWNPACE_TIMEOUT_S="soon")
    assert run.ends() == 2
    assert "OWNPACE_TIMEOUT_S is 'soon'; it must be a number of seconds" in one_line(run)


def rank(number: int, port: int, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """What starts one of two ranks by hand."""
    place = {"RANK": str(number), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return train("--samples", "200", *arguments), place


def test_a_rendezvous_where_no_process_answers(start):
    port = free_port()
    command, place = rank(1, port)
    run = start(command, **place, OWNPACE_TIMEOUT_S="0.5")
    assert run.ends() == 4
    assert f"no process answers at the rendezvous 127.0.0.1:{port} within 0.5 s" in one_line(run)


def test_a_rank_that_does_not_come(start):
    command, place = rank(0, free_port())
    run = start(command, **place, OWNPACE_TIMEOUT_S="0.5")
    assert run.ends() == 4
    assert "not all 2 ranks joined within 0.5 s" in one_line(run)


def test_a_port_that_is_in_use(start):
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        command, place = rank(0, port)
        run = start(command, **place)
        assert run.ends() == 2
    assert f"port {port} on 127.0.0.1 is in use" in one_line(run)
    assert not run.out.exists()


def test_ranks_with_different_keys(start):
    port = free_port()
    runs = []
    for number in (0, 1):
        command, place = rank(number, port)
        runs.append(start(command, **place, OWNPACE_KEY=f"the key of rank {number}"))
    for run in reversed(runs):
        assert run.ends() == 2
        assert "different run keys" in one_line(run)
    assert not runs[0].out.exists()


def test_ranks_that_have_no_safe_way_to_share_a_key(start, tmp_path):
    """Two temporary folders are two hosts, as far as files can tell."""
    port = free_port()
    runs = []
    for number in (0, 1):
        (tmp_path / str(number)).mkdir()
        command, place = rank(number, port)
        runs.append(start(command, **place, TMPDIR=str(tmp_path / str(number))))
    for run in reversed(runs):
        assert run.ends() == 2
        assert "rank 1 cannot read the key that rank 0 made on its host; give all ranks" in one_line(run)
    assert not runs[0].out.exists()


@pytest.mark.parametrize(
    ("option", "values", "words"),
    [
        ("--lr", ("0.1", "0.2"), ["the optimizer of rank 1 is", "lr=0.2", "that of rank 0 is", "lr=0.1"]),
        pytest.param(
            "--algorithm",
            ("sync", "async"),
            ["the algorithm of rank 1 is AsyncSgd(", "that of rank 0 is SyncSgd("],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_ranks_that_would_train_different_things(start, option, values, words):
    port = free_port()
    runs = []
    for number in (0, 1):
        command, place = rank(number, port, option, values[number])
        runs.append(start(command, **place))
    for run in runs:
        assert run.ends() == 2
        error = one_line(run)
        assert [word for word in words if word not in error] == []
    assert not runs[0].out.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", ["", "ip link set lo up; ip address del 127.0.0.1/8 dev lo; "], ids=["down", "IPv6 alone"]
)
def test_a_machine_whose_processes_cannot_reach_each_other(start, more):
    """As in a container without a network."""
    if os.geteuid() or subprocess.run(["unshare", "-n", "ip", "link"], capture_output=True, check=False).returncode:
        pytest.skip("only root can make a network namespace")
    run = start(["unshare", "-n", "sh", "-c", f'{more}exec "$@"', "sh", *launcher("--samples", "100")])
    assert run.ends() == 2
    assert "127.0.0.1, where processes of one machine meet, cannot be used" in run.errors[-1]
    assert "Traceback" not in run.stderr

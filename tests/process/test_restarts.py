"""A run that torchrun starts again, on a store in which the dead left everything."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from tests.process.started import PATIENCE_S, Started, check_folder, free_port, importable, train, until

from ownpace.core.contract.event_file import read_events
from ownpace.core.contract.events import Generation, Update
from ownpace.run.standing import standing_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * PATIENCE_S)]
SCRIPT = """
import os, pathlib, signal, torch, ownpace
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(512, 10), torch.randint(2, (512,)))
model = torch.nn.Linear(10, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with ownpace.join("sync", quiet=True) as fleet:
    model, optimizer = fleet.wrap(model, optimizer)
    for number, (x, y) in enumerate(fleet.batches(data, batch_size=16)):
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == 5 and fleet.rank == 1 and not pathlib.Path("killed").exists():
            pathlib.Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
print(f"rank {fleet.rank}: {fleet.samples} samples after {os.environ['TORCHELASTIC_RESTART_COUNT']} restarts")
"""


def test_two_agents_that_count_restarts_differently_meet_again(start, tmp_path):
    """Each agent counts its own restarts: after one has lost its rank, they are one apart."""
    (tmp_path / "script.py").write_text(SCRIPT)
    port = str(free_port())
    where = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-backend", "c10d"]
    where += ["--rdzv-id", "again", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    runs = [start([sys.executable, "-m", "torch.distributed.run", *where, "script.py"]) for _ in range(2)]
    assert [run.ends() for run in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    said = sorted(line for run in runs for line in run.stdout.splitlines())
    assert [line.partition(" after")[0] for line in said] == ["rank 0: 512 samples", "rank 1: 512 samples"]
    assert {line[-10:] for line in said} == {"0 restarts", "1 restarts"}


def agents(*arguments: str, nnodes: int = 1, backend: str = "static", restarts: int = 2) -> list[list[str]]:
    """The command of each agent, with three ranks in all."""
    port = str(free_port())
    commands = []
    for node in range(nnodes):
        where = ["--nnodes", str(nnodes), "--nproc-per-node", str(3 // nnodes), "--max-restarts", str(restarts)]
        if backend == "c10d":
            where += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", f"of {port}"]
        else:
            where += ["--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", port]
        run = train("--task", "ownpace.testing.blobs:Blobs", "--fleet", "0.2,0.2,0.1"[: 4 * (3 // nnodes) * nnodes - 1])
        commands.append([sys.executable, "-m", "torch.distributed.run", *where, *run[1:], *arguments])
    return commands


def until_checkpoint(run: Started) -> None:
    until(lambda: run.out.exists() and any((run.out / "checkpoints").glob("*.safetensors")), "a checkpoint is there")


def updates(folder: Path) -> list[int]:
    return [event.total_samples for event in read_events(folder / "events.jsonl") if isinstance(event, Update)]


@pytest.mark.parametrize(("algorithm", "victim"), [("sync", 1), ("async", 0), ("pace", 2)])
def test_a_run_that_torchrun_starts_again_goes_on_from_its_last_checkpoint(start, algorithm, victim):
    (command,) = agents("--algorithm", algorithm, "--samples", "3000", "--checkpoint-every", "600")
    run = start(command, PYTHONPATH=importable())
    until_checkpoint(run)
    os.kill(run.ranks()[victim], signal.SIGKILL)
    assert run.ends() == 0, run.stderr
    end = check_folder(run.out)
    assert end.sums.samples >= 3000
    # What was recorded after the checkpoint is cut off: nothing is there twice, and nothing is missing.
    samples = updates(run.out)
    assert samples == sorted(set(samples))
    assert samples[0] < 600


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_two_agents_go_on_after_one_has_lost_its_rank(start, backend, tmp_path):
    """Static: the rank is started again alone, and joins the other. c10d: both are started again, from a checkpoint."""
    often = ("--samples", "20000", "--checkpoint-every", "600", "--log-files")
    commands = agents("--algorithm", "sync", *often, nnodes=2, backend=backend)
    key = {"OWNPACE_KEY": "a key that all hosts were given", "PYTHONPATH": importable()}
    runs = [start(command, **key) for command in commands]
    until_checkpoint(runs[0])
    (victim,) = (rank[1] for run in runs if 1 in (rank := run.ranks()))
    os.kill(victim, signal.SIGKILL)
    assert [run.ends() for run in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    assert check_folder(tmp_path / "out").sums.samples >= 20000
    events = list(read_events(tmp_path / "out" / "events.jsonl"))
    joins = [event.why for event in events if isinstance(event, Generation)].count("join")
    assert joins == (1 if backend == "static" else 0)


def test_what_no_start_can_mend_is_said_again_at_once(start):
    """A run that diverged would do so again, after hours."""
    (command,) = agents("--algorithm", "sync", "--samples", "100000", "--lr", "1000", "--checkpoint-every", "50")
    command[command.index("ownpace.testing.blobs:Blobs")] = "quadratic"
    run = start(command, PYTHONPATH=importable())
    assert run.ends() != 0
    mark = json.loads((run.out / "torchrun.json").read_text())
    lines = [line for line in run.errors if mark["message"] in line]
    assert mark["code"] == "diverged"
    assert len(lines) == 3, run.stderr  # the first start and two more


def test_without_restarts_a_run_that_lost_its_first_rank_ends_and_says_how_to_go_on(start):
    (command,) = agents("--algorithm", "sync", "--samples", "1000000", "--checkpoint-every", "600", restarts=0)
    run = start(command, PYTHONPATH=importable())
    until_checkpoint(run)
    os.kill(run.ranks()[0], signal.SIGKILL)
    assert run.ends() != 0
    newest = next(each for each in standing_of(run.out).checkpoints if each.problem is None)
    assert any("rank 0 is gone" in line for line in run.errors)
    assert run.hint == f"ownpace: go on from sample {newest.samples:,} with: ownpace train --resume out"

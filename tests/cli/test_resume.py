"""`--resume` and `ownpace show`, as users meet them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from ownpace.run.checkpoints import Checkpoints

ARGUMENTS = "--task quadratic --fleet 2,1 --batch-size 8 --eval-every 4000 --checkpoint-every 2000"
FLEET = """
[[machine]]
samples_per_s = 1000
count = 2
[[fault]]
worker = "worker-1"
at_s = 0.3
kind = "kill"
"""


def test_killed_by_the_system_it_goes_on_as_if_nothing_had_been(ownpace, tmp_path):
    command = f"{sys.executable} -m ownpace train {ARGUMENTS} --samples 1000000000 --out killed --verbose"
    with subprocess.Popen(command.split(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 90
        while len(Checkpoints(tmp_path / "killed").newest_first()) < 2:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    code, out, _ = ownpace("show killed")
    assert code == 0
    assert "killed: stride on quadratic, 2 workers, engine virtual" in out
    assert "of 1,000,000,000 or later, without a last record: still running, or cut off" in out
    assert out.count("MB): whole") == 2
    assert "go on with: ownpace train --resume killed" in out

    found = json.loads(ownpace("show killed --json")[1])
    samples = found["checkpoints"][0]["samples"] + 5000
    assert ownpace(f"train --resume killed --samples {samples}")[0] == 0
    assert ownpace(f"train {ARGUMENTS} --samples {samples} --out whole")[0] == 0
    # The first record has the length that the run was begun with.
    events = [(tmp_path / run / "events.jsonl").read_bytes().split(b"\n", 1)[1] for run in ("killed", "whole")]
    assert events[0] == events[1]
    models = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("killed", "whole")]
    assert models[0] == models[1]
    assert (tmp_path / "killed" / "figure.png").exists()
    code, out, _ = ownpace("show killed")
    assert ": finished" in out
    assert "go on with" not in out


def test_an_early_end_says_how_to_go_on_if_there_is_a_checkpoint(ownpace, tmp_path):
    (tmp_path / "fleet.toml").write_text(FLEET)
    arguments = "train --task quadratic --fleet fleet.toml --samples 1000 --on-failure stop"
    code, _, err = ownpace(f"{arguments} --out without")
    assert code == 4
    assert "--resume" not in err
    code, _, err = ownpace(f"{arguments} --checkpoint-every 200 --out run")
    assert code == 4
    hint, error = err.strip().splitlines()[-2:]
    newest = json.loads(ownpace("show run --json")[1])["checkpoints"][0]["samples"]
    assert hint == f"ownpace: go on from sample {newest} with: ownpace train --resume run"
    assert "worker-1" in error
    code, out, _ = ownpace("train --resume run --fleet 1,1,1 --json")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["samples"] >= 1000


@pytest.mark.parametrize("parameter", ["backup -p backups=2", "layered -p groups=3", "wp -p steps=2 -p per_node=3"])
def test_with_fewer_workers_than_its_parameters_ask_for_it_goes_on(ownpace, parameter):
    """Machines may be gone for good, and a run that goes on cannot change its parameters."""
    arguments = "--task quadratic --fleet 1,1,1 --samples 600 --checkpoint-every 300 --out run"
    assert ownpace(f"train --algorithm {parameter} {arguments}")[0] == 0
    assert ownpace("train --resume run --fleet 1,1 --samples 1200")[0] == 0
    code, _, err = ownpace(f"train --algorithm {parameter} --fleet 1,1")
    assert code == 2
    assert "but there are 2 workers" in err


def test_what_cannot_go_on_says_so_in_one_line(ownpace, tmp_path):
    assert ownpace(f"train {ARGUMENTS} --samples 5000 --out run")[0] == 0
    for arguments, reason in {
        "train --resume nowhere": "nowhere is neither the folder of a run nor a checkpoint in one",
        "train --resume run": "the run at run has finished; to train longer, give --epochs, --samples or --seconds",
        "train --resume run --lr 0.5 --samples 9000": "lr is 0.5, but the run at run has 0.1",
        "train --resume run --samples 9000 -p warmup=3": "parameters is",
        "train --resume run --config run/config.json": "--config was given run/config.json; drop one",
        "train --resume run --samples 100": "is at sample",
        "train --min-workers 9": "min_workers is 9, but the fleet has 4 workers; use at most 4",
        "train --max-workers 2": "4 workers",
        "train --checkpoint-every -1": "checkpoint_every is -1",
        "train --checkpoints-kept 0": "checkpoints_kept is 0",
        "show nowhere": "nowhere is not the folder of a run",
    }.items():
        code, _, err = ownpace(arguments)
        assert (code, len(err.strip().splitlines())) == (2, 1), err
        assert reason in err
    assert not (tmp_path / "runs").exists()

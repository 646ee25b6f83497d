"""`ownpace plan`: the verdict, the table, the command, and what programs read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

SMALL = "--task quadratic --fleet 4,1 --algorithms sync,balanced --seeds 1 --processes 1 --epochs 4 --batch-size 16"


def test_it_says_what_to_do_in_80_columns_and_the_command_runs(ownpace, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = ownpace(f"plan {SMALL} --what-if add:worker@1000:2")
    assert code == 0
    assert out.startswith("Take balanced with learning rate ")
    assert "2 more of worker@1000:" in out
    *shown, command, on_machines, _ = out.split("\n")
    assert max(map(len, shown)) <= 80
    assert on_machines.strip().startswith("torchrun … -m ownpace train --algorithm balanced")
    code, _, err = ownpace(command.strip().removeprefix("ownpace ") + " --epochs 1 --no-detail")
    assert (code, "balanced" in command, "error" in err) == (0, True, False)


def test_programs_read_the_keys_that_they_were_promised(ownpace):
    code, out, err = ownpace(f"plan {SMALL} --timing-only --json")
    assert (code, "Take balanced" in err) == (0, True)
    content = json.loads(out)
    assert {"choice", "ranking", "what_if", "seconds"} <= set(content)
    assert {"algorithm", "parameters", "command"} <= set(content["choice"])
    keys = {"algorithm", "parameters", "lr", "time_to_target", "samples_per_s", "updates_per_s", "share_of_limit"}
    assert all(keys <= set(row) for row in content["ranking"])
    assert set(content["what_if"]) >= {"drop:worker@1000", "network:x10", "add:worker@4000:1"}
    assert all({"time_to_target", "samples_per_s"} <= set(answer) for answer in content["what_if"].values())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--what-if drop:old", "this fleet's machines are worker@4000, worker@1000"),
        ("--algorithms snyc", "did you mean 'sync'?"),
        ("--what-if none --what-if network:x10", "or none alone"),
        ("--seeds 0", "give a number from 1 to 100"),
        ("--processes 0", "give a number from 1 to 1024"),
        ("--lr 0.1", "No such option"),
        ("--task", "'--task' requires an argument"),
    ],
)
def test_errors_say_what_is_allowed(ownpace, arguments, said):
    code, out, err = ownpace(f"plan --fleet 4,1 {arguments}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


SCRIPT = """
import ownpace
print("once")
made = ownpace.plan(
    ownpace.Config(task="quadratic", epochs=4, batch_size=16), "4,1",
    algorithms=["sync", "balanced"], what_if=(), seeds=(0,), processes=2,
)
print(made.choice.algorithm, made.to_json()["settings"]["runs"]["speeds"])
"""


@pytest.mark.slow
def test_a_script_needs_no_main_guard(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    ran = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, cwd=tmp_path, timeout=110)
    assert ran.stdout.split() == ["once", "balanced", "2"], ran.stderr


ENDLESS = """
from ownpace.testing.blobs import Blobs


class Endless(Blobs):
    def training_loss(self, outputs, targets):
        while True:
            pass
"""


@pytest.fixture
def endless(tmp_path) -> str:
    (tmp_path / "endless.py").write_text(ENDLESS)
    return f"plan --task {tmp_path}/endless.py:Endless --fleet 4,1 --processes 2"


@pytest.mark.slow
def test_gradients_that_never_end_do_not_keep_a_plan_from_its_end(ownpace, endless):
    code, out, _ = ownpace(f"{endless} --seconds 8")
    assert (code, out.partition(" ")[0], "By speed" in out) == (0, "Take", True)
    assert "--seconds" in out.replace("\n", " ")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_gives_the_verdict_so_far_and_no_traceback(endless, number):
    command = [sys.executable, "-m", "ownpace", *endless.split(), "--seconds", "100"]
    # In a session of its own, all of which gets the signal, as in a terminal.
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert run.stderr is not None
    said = ""
    while "cost of a sample" not in said:
        said += run.stderr.readline()
    os.killpg(run.pid, number)
    out, err = run.communicate(timeout=60)
    assert (run.returncode, out.partition(" ")[0]) == (130, "Take")
    assert "interrupted; the plan above is what was known by then" in err
    assert "Traceback" not in said + err

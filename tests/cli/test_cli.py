"""The command line, as users meet it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from ownpace.cli.main import main
from ownpace.core.contract.event_file import read_events
from ownpace.report import summarize
from ownpace.run.place import check_comparison
from ownpace.tasks import Digits

KEYS = {
    *("algorithm", "engine", "task", "seed", "seconds", "wall_seconds", "samples", "updates", "samples_per_s"),
    *("share_of_limit", "accuracy", "best_accuracy", "loss", "time_to_target", "staleness", "busy"),
}


def run(capfd, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    out, err = capfd.readouterr()
    code = stopped.value.code
    assert isinstance(code, int)
    return code, out, err


def test_train_writes_a_folder_and_prints_json_last(capfd, tmp_path):
    code, out, _ = run(capfd, "train", "--epochs", "8", "--momentum", "0.9", "--target", "0.8", "--json", "--out", "r")
    assert code == 0
    result = json.loads(out.splitlines()[-1])
    assert set(result) >= KEYS
    assert set(result["staleness"]) == {"mean", "max"}
    assert list(result["busy"]) == ["worker-0", "worker-1", "worker-2", "worker-3"]
    assert result["time_to_target"] < result["seconds"]

    folder = tmp_path / "r"
    assert (folder / "figure.png").stat().st_size > 1000
    config = json.loads((folder / "config.json").read_text())
    assert (config["seed"], config["samples"], config["fleet"]["machine"][0]["samples_per_s"]) == (0, 11496, 4000)
    assert json.loads((folder / "summary.json").read_text()) == result
    assert summarize(read_events(folder / "events.jsonl")).accuracy == result["accuracy"]
    model = Digits().model()
    model.load_state_dict(load_file(folder / "model.safetensors"))
    assert Digits().score(model, Digits().test_samples()).accuracy == result["accuracy"]


def test_a_run_of_od_that_was_mostly_warm_up_says_so(capfd):
    code, out, _ = run(capfd, "compare", "--algorithms", "od,sync", "--epochs", "10", "--seeds", "0,1", "--out", "r")
    assert code == 0
    words = " ".join(out.split())
    assert words.count("od: 0 of 113 updates were OD-SGD's, the others its warm-up") == 1


def test_train_shows_a_table_and_a_figure(capfd, tmp_path):
    code, out, _ = run(capfd, "train", "--algorithm", "stale", "-p", "staleness=1", "--epochs", "1", "--out", "r")
    assert code == 0
    assert "stale" in out
    assert (tmp_path / "r" / "figure.png").stat().st_size > 10_000


def test_compare_shows_all(capfd, tmp_path):
    arguments = (
        "compare --algorithms sync,stale,pace --fleet mild --seeds 0,1 --epochs 2 -p stale.staleness=0 --out r --json"
    )
    code, out, err = run(capfd, *arguments.split())
    assert code == 0
    result = json.loads(out.splitlines()[-1])
    assert [r["algorithm"] for r in result["runs"]] == ["sync"] * 2 + ["stale"] * 2 + ["pace"] * 2
    assert {r["seed"] for r in result["runs"]} == {0, 1}
    assert "of 2 seeds" in err
    config = json.loads((tmp_path / "r" / "stale-1" / "config.json").read_text())
    assert config["parameters"]["staleness"] == 0
    assert (tmp_path / "r" / "figure.png").exists()
    assert check_comparison(tmp_path / "r", overwrite=True)  # it knows its own again


def test_compare_goes_on_when_one_diverges(capfd):
    arguments = ("compare", "--task", "quadratic", "--lr", "1.0", "-t", "curvature=1.9", "--momentum", "0.5")
    code, out, _ = run(capfd, *arguments, "--algorithms", "sync,async", "--epochs", "30")
    assert code == 0
    assert "diverged" in out
    code, _, err = run(capfd, "compare", "--algorithms", "sync,async", "--lr", "1e9", "--task", "quadratic")
    assert code == 3
    assert "diverged" in err


@pytest.mark.parametrize("engine", ["virtual", "process"])
def test_bad_input_that_only_a_worker_can_see_leaves_nothing_behind(capfd, tmp_path, engine):
    groups = ("--algorithm", "grouping", "-p", "groups=0,1/2,3", "--fleet", "2,1")
    code, _, err = run(capfd, "train", "--engine", engine, *groups, "--samples", "100", "--out", "r")
    assert code == 2
    assert "there are 2 workers" in err
    assert not (tmp_path / "r").exists()


def test_list_names_everything(capfd):
    code, out, _ = run(capfd, "list", "--json")
    listed = json.loads(out)
    assert code == 0
    assert set(listed) == {"algorithms", "tasks", "fleets"}
    assert listed["algorithms"]["stale"]["parameters"] == {"staleness": "3", "by_layer": "False"}
    code, out, _ = run(capfd, "list")
    assert code == 0
    for name in (*listed["algorithms"], *listed["tasks"], *listed["fleets"]):
        assert name in out


@pytest.mark.parametrize("arguments", [[], ["--help"], ["train", "--help"], ["compare", "--help"], ["--version"]])
def test_help_teaches(capfd, arguments):
    code, out, _ = run(capfd, *arguments)
    assert code == 0
    assert "ownpace" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train --algorithm snyc", ["unknown algorithm 'snyc'", "did you mean 'sync'", "async, backup, balanced"]),
        ("train --task mnits", ["unknown task 'mnits'", "mnist"]),
        ("train --model resnet99", ["unknown model for digits 'resnet99'", "lenet"]),
        ("train --fleet setep", ["unknown fleet 'setep'", "did you mean 'steep'", "4,2,1,1"]),
        ("train --fleet 4,-2", ["fleet '4,-2'", "above 0"]),
        ("train --fleet none.toml", ["none.toml does not exist"]),
        ("train --engine real", ["unknown engine 'real'", "virtual"]),
        ("train --optimizer adamm", ["unknown optimizer 'adamm'", "adam"]),
        ("train --schedule cosin", ["unknown schedule 'cosin'", "cosine"]),
        ("train --sampling que", ["unknown sampling 'que'", "queue"]),
        ("train -p staleness=3", ["unknown key in the parameters of stride (-p): 'staleness'"]),
        ("train --algorithm stale -p staleness", ["-p was given 'staleness'", "NAME=VALUE"]),
        ("train --algorithm stale -p staleness=much", ["staleness", "'much'", "whole number"]),
        ("train --algorithm stale -p staleness=-1", ["staleness is -1", "at least 0"]),
        ("train --batch-size 100000", ["batch_size is 100000", "1437 training samples"]),
        ("train --batch-size 0", ["batch_size is 0", "above 0"]),
        ("train --micro-batch 64", ["micro_batch is 64", "batch size of 32"]),
        ("train --target 95", ["target is 95.0", "between 0 and 1"]),
        ("train --stop-at-target", ["needs a target"]),
        ("train --momentum 1", ["momentum is 1.0", "below 1"]),
        ("train --samples 9 --epochs 1", ["give one of them"]),
        ("train --epochs 1e300", ["epochs is 1e+300"]),
        ("train --seconds 1 --schedule cosine", ["schedule 'cosine' needs to know"]),
        ("train --device meta", ["device 'meta'"]),
        ("train --out .", ["--out was given the current folder"]),
        ("train --samples 0", ["samples is 0", "above 0"]),
        ("train --epochs nan", ["epochs is nan", "above 0"]),
        ("train --lr -1", ["lr is -1.0", "above 0"]),
        ("train --device tpu9", ["device 'tpu9'", "use cpu"]),
        ("train --task mnist", ["mnist is not in", "OWNPACE_DATA"]),
        ("train --task svmlight -t path=gone.txt", ["there is no file gone.txt"]),
        ("train --task svmlight", ["path is missing in the parameters of svmlight (-t)"]),
        ("train --lr 1e308", ["lr is 1e+308", "at most 1,000,000,000,000,000"]),
        ("train --weight-decay 1e308", ["weight_decay is 1e+308", "at most"]),
        ("train --samples 99999999999999999999", ["samples is 99999999999999999999", "at most"]),
        (f"train --samples {'9' * 5000}", ["999…", "--help"]),
        ("train --seconds 1e14", ["seconds is 100000000000000.0", "at most"]),
        ("train --fleet 1e-9 --samples 10000000000", ["would take the fleet 1e+16 s"]),
        ("train --cuda-graphs --device foo", ["device 'foo'", "use cpu"]),
        ("train --cuda-graphs", ["cuda_graphs needs a GPU"]),
        ("train --algorithm local -p steps=99999999999999999999", ["steps is 99999999999999999999", "at most"]),
        ("train --algorithm diloco -p steps=2000000", ["steps is 2000000", "at most 1,000,000"]),
        ("train --algorithm wp -p delay=99999999999999999999", ["delay is 99999999999999999999", "at most"]),
        (f"train --algorithm layered -p sizes={'9' * 4400}", ["sizes is '999", "separated by commas"]),
        (f"train --algorithm grouping -p groups={'9' * 4400}", ["groups is '999"]),
        ("train --algorithm grouping -p data=shares", ["data is 'shares'", "sampling is 'queue'"]),
        ("train --algorithm grouping -p data=shares --sampling iid", ["data is 'shares'", "sampling is 'iid'"]),
        ("compare --algorithms sync,grouping -p grouping.data=shares", ["data is 'shares'", "sampling is 'queue'"]),
        ("train --algorithm backup -p backups=4", ["backups is 4", "there are 4 workers", "use at most 3"]),
        ("train --algorithm layered -p groups=9", ["groups is 9", "there are 4 workers", "use at most 4"]),
        ("train --algorithm layered -p groups=2 -p sizes=1,3", ["groups is 2 and sizes is '1,3'", "one of them"]),
        ("train --algorithm wp -p per_node=5", ["per_node is 5", "there are 4 workers", "use at most 4"]),
        ("train --task quadratic -t dimensions=1000000000000", ["dimensions is 1000000000000", "over 8 GiB"]),
        ("train --task svmlight -t path=/dev/null", ["there is no file /dev/null"]),
        ("train --out /", ["--out was given /", "root"]),
        ("train --fleet \x1b[31m", [r"unknown fleet '\x1b[31m'"]),
        (f"train --resume {'n' * 300}", ["'nnn", "File name too long"]),
        (f"train --config {'n' * 300}", ["File name too long"]),
        ("train --algorithm ..a:B", ["algorithm '..a:B' cannot be imported"]),
        ("train --lr fast", ["fast", "--help"]),
        ("train --fast", ["--fast", "--help"]),
        ("trian", ["trian", "--help"]),
        ("compare --algorithms sync,snyc", ["unknown algorithm 'snyc'"]),
        ("compare --algorithms sync,sync", ["each once"]),
        ("compare --seeds a", ["--seeds was given 'a'"]),
        ("compare -p staleness=3", ["say for which algorithm"]),
        ("compare --algorithms sync,stale -p staleness=3", ["as in -p stale.staleness=3"]),
        ("compare --algorithms sync,stale -p steps=3", ["as in -p NAME.steps=3"]),
        ("train --engine process --timing-only", ["timing_only simulates time", "use the engine 'virtual'"]),
        ("compare --engine both --timing-only", ["timing_only simulates time", "use the engine 'virtual'"]),
        ("compare -p state.staleness=3", ["unknown algorithm in -p: 'state'"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capfd, tmp_path, arguments, words):
    code, out, err = run(capfd, *arguments.split())
    assert code == 2
    assert out == ""
    err = re.sub(r"^downloading .*\n", "", err)  # which it says before it tries
    assert err.startswith("ownpace: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err
    assert not (tmp_path / "runs").exists()


def test_bad_input_found_late_leaves_no_folder_behind(capfd, tmp_path):
    text = "[[machine]]\nsamples_per_s = 1\n" + "[[server]]\n" * 9
    (tmp_path / "f.toml").write_text(text, encoding="utf-8")
    code, _, err = run(capfd, "train", "--algorithm", "async", "--fleet", "f.toml", "--out", "[r]")
    assert code == 2
    assert "9 servers, but the model has only 4 layers" in err
    assert not (tmp_path / "[r]").exists()
    assert run(capfd, "train", "--epochs", "1", "--out", "[r]")[0] == 0


def test_compare_looks_for_earlier_runs_before_it_starts(capfd, tmp_path):
    assert run(capfd, "train", "--algorithm", "pace", "--epochs", "1", "--out", "r/pace", "--json")[0] == 0
    code, _, err = run(capfd, "compare", "--epochs", "1", "--out", "r")
    assert code == 2
    assert "r/pace already holds a run" in err
    assert not (tmp_path / "r" / "sync").exists()


def test_an_earlier_run_is_not_lost(capfd, tmp_path):
    arguments = ("train", "--epochs", "1", "--out", "r", "--json")
    assert run(capfd, *arguments)[0] == 0
    code, _, err = run(capfd, *arguments)
    assert code == 2
    assert "already holds a run" in err
    assert run(capfd, *arguments, "--overwrite")[0] == 0
    (tmp_path / "file").write_text("", encoding="utf-8")
    code, _, err = run(capfd, "train", "--out", "file")
    assert code == 2
    assert "is a file" in err


def test_divergence_has_its_own_exit_code_and_keeps_what_there_is(capfd, tmp_path):
    code, out, err = run(capfd, "train", "--task", "quadratic", "--lr", "1e9", "--out", "r", "--json")
    assert code == 3
    assert "diverged" in err
    assert "at sample" in err
    assert json.loads(out.splitlines()[-1])["reason"] in err
    assert {path.name for path in (tmp_path / "r").iterdir()} >= {"config.json", "events.jsonl", "summary.json"}


def test_a_dead_machine_has_its_own_exit_code(capfd, tmp_path):
    text = "[[machine]]\nsamples_per_s = 1000\ncount = 2\n[[fault]]\nworker = 'worker-1'\nat_s = 0.5\nkind = 'kill'\n"
    (tmp_path / "f.toml").write_text(text, encoding="utf-8")
    code, _, err = run(capfd, "train", "--fleet", "f.toml", "--on-failure", "stop")
    assert code == 4
    assert "worker-1 was killed at 0.5 s" in err
    assert run(capfd, "train", "--fleet", "f.toml", "--epochs", "2")[0] == 0


def test_ctrl_c_writes_what_there_is(tmp_path):
    command = [sys.executable, "-m", "ownpace", "train", "--epochs", "100000", "--out", "r"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    events = tmp_path / "r" / "events.jsonl"
    deadline = time.monotonic() + 240  # next to many busy processes
    while not (events.exists() and events.stat().st_size > 50_000):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130
    last = err.splitlines()[-1]
    assert last.startswith("ownpace: interrupted at sample ")
    assert last.endswith("; everything up to then has been written")
    summary = summarize(read_events(events))
    assert summary.reason.startswith("interrupted")
    assert summary.samples > 0
    assert load_file(tmp_path / "r" / "model.safetensors")["1.weight"].dtype == torch.float32


def test_timing_only_has_no_accuracy(capfd):
    code, out, _ = run(capfd, "train", "--timing-only", "--fleet", "steep", "--epochs", "5", "--json", "--no-detail")
    result = json.loads(out.splitlines()[-1])
    assert code == 0
    assert result["accuracy"] is None
    assert result["share_of_limit"] > 0.2


def test_a_terminal_that_has_not_all_characters_does_not_cost_the_result(tmp_path):
    command = [sys.executable, "-m", "ownpace", "train", "--samples", "500", "--timing-only", "--out", "r"]
    ran = subprocess.run(
        command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, cwd=tmp_path,
        capture_output=True, timeout=240, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.isascii()
    assert b"<= 1" in ran.stdout  # for ≤
    assert (tmp_path / "r" / "summary.json").exists()

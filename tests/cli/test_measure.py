"""`ownpace measure`, and `auto` where it cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ownpace.fleet import read_fleet


@pytest.mark.timeout(240)
def test_measure_shows_a_table_and_writes_a_fleet_once(ownpace, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = ownpace("measure --task digits --batch-size 16 --seconds 0.5 --out fleet.toml")
    assert (code, err) == (0, "measuring for about 0.5 s …\n")
    lines = out.splitlines()
    assert lines[0].split() == [
        "machines",
        "samples/s",
        "±",
        "%",
        "of",
        "best",
        "begin",
        "a",
        "sample",
        "jitter",
        "update",
    ]
    assert all(len(line) <= 80 for line in lines)
    assert "One worker, so no network was measured" in out
    assert lines[-1] == "fleet in fleet.toml"
    (worker,) = read_fleet("fleet.toml").workers
    assert (worker.machine.samples_per_s or 0) > 0
    assert "Task digits, model mlp, batch size 16" in Path("fleet.toml").read_text()
    before = Path("fleet.toml").read_bytes()
    assert ownpace("measure --out fleet.toml") == (
        2,
        "",
        "ownpace: fleet.toml exists; use --overwrite (overwrite=True), or give another name\n",
    )
    assert Path("fleet.toml").read_bytes() == before
    code, out, _ = ownpace("measure --seconds 0.3 --batch-size 16 --json --out fleet.toml --overwrite")
    found = json.loads(out.splitlines()[-1])
    assert (code, found["setting"]["batch_size"], found["fleet_file"]) == (0, 16, "fleet.toml")
    assert found["workers"][0]["s_per_update"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("measure --seconds 0", "seconds is 0.0; it must be"),
        ("measure --workers 10000", "workers is 10,000; one machine takes 1,024 processes at most"),
        ("measure --batch-size 5000", "batch_size is 5000, more than the 1437 training samples"),
        ("measure --out fleet.json", "does not end in .toml"),
        ("train --algorithm auto --resume runs/first", "keeps the algorithm it has; leave it out"),
        ("train --algorithm auto -p steps=3", "auto chooses the algorithm itself; leave them out"),
        ("train --algorithm auto --batch-size 5000", "more than the 1437 training samples"),
        ("train --algorithm auto --out taken", "taken already holds a run"),
        ("compare --algorithms sync,auto", "algorithm 'auto' is for `ownpace train`"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(ownpace, arguments, words) -> None:
    if "taken" in arguments:
        assert ownpace("train --epochs 0.1 --out taken")[0] == 0
    code, _, err = ownpace(arguments)
    assert code == 2
    assert words in err.splitlines()[-1]
    assert "planning" not in err  # found before a minute was spent

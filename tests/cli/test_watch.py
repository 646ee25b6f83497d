"""`ownpace watch` and `ownpace runs`, as users meet them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from rich.console import Console

from ownpace.cli.watch import _picture
from ownpace.core.contract.event_file import read_events
from ownpace.core.contract.events import Compute, End, Evaluation, Event, Fault, Run, Update
from ownpace.report.ongoing import OngoingRun
from ownpace.run import Config, execute


@pytest.fixture
def trained(tmp_path) -> list[Event]:
    """A small run in r/first, made in Python, which draws no figure; and its events."""
    execute(Config(task="quadratic", epochs=2), tmp_path / "r/first")
    return list(read_events(tmp_path / "r/first/events.jsonl"))


def cut_off(folder: Path) -> None:
    events = folder / "events.jsonl"
    events.write_text("".join(events.read_text().splitlines(keepends=True)[:-1]))
    (folder / "summary.json").unlink()


def test_watching_ends_with_the_run(ownpace, trained, tmp_path, monkeypatch):
    code, out, _ = ownpace("watch r/first")
    assert code == 0
    assert out.startswith("r/first: 100%")
    assert "samples/s" in out
    assert "stride" in out.splitlines()[-1]
    # One that goes on: its last line comes while it is watched.
    events = tmp_path / "r/first/events.jsonl"
    text = events.read_text()
    cut_off(tmp_path / "r/first")
    monkeypatch.setattr(time, "sleep", lambda _: events.write_text(text))
    assert ownpace("watch r/first")[0] == 0


def test_ctrl_c_leaves_the_run_alone(ownpace, trained, tmp_path, monkeypatch):
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    cut_off(tmp_path / "r/first")
    before = {path.name: path.read_bytes() for path in (tmp_path / "r/first").iterdir() if path.is_file()}
    monkeypatch.setattr(time, "sleep", interrupt)
    code, out, _ = ownpace("watch r/first")
    assert code == 0
    assert "it goes on by itself" in out
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "r/first").iterdir() if path.is_file()}
    code, _, err = ownpace("watch r/none")
    assert code == 2
    assert "r/none is not the folder of a run" in err


def test_the_picture_fits_80_columns_and_shows_what_happens_now():
    watched = OngoingRun()
    console = Console(width=80, force_terminal=False)

    def shown(quiet_s: float = 0.0) -> str:
        with console.capture() as captured:
            console.print(_picture(Path("r" * 30), watched, quiet_s, 80))
        return captured.get()

    assert "starting" in shown()
    names = [f"worker-{rank}" for rank in range(20)]
    watched.take(Run("pace", "process", "digits", "mlp", 0, 8, 8, 1, 4, 1000, 0.9, {"workers": names}))
    for at in range(200):
        for rank, name in enumerate(names):
            watched.take(Compute(at, at + 1 / (rank + 1), name, 8, at))
        watched.take(Update(at + 1.0, "worker-0", at + 1, 2, 2 * (at + 1), 3))
    watched.take(Evaluation(200.0, 400, 200, 0.25, 0.75))
    watched.take(Fault(200.0, "worker-3", "kill"))
    text = shown()
    assert max(map(len, text.splitlines())) <= 80
    for part in ("40%  400 of 1,000 samples", "staleness 3.0", "accuracy 75.0%  loss 0.25", "200.0 s: kill worker-3"):
        assert part in text
    assert "and 4 more workers" in text
    assert "nothing new" not in text
    assert "nothing new for 2 min" in shown(120.0)
    assert watched.workers["worker-0"].busy == pytest.approx(1.0)
    assert watched.workers["worker-1"].busy == pytest.approx(0.5, abs=0.01)
    assert watched.workers["worker-1"].samples_per_s == pytest.approx(16.0)


def test_foreign_names_do_not_command_the_terminal():
    watched = OngoingRun()
    watched.take(Run("\x1b[2J", "virtual", "\ud800", "", 0, 8, 8, 1, 4, 10, None, {"workers": ["\x1b[1m"]}))
    watched.take(Compute(0.0, 1.0, "\x1b[1m", 8, 0))
    watched.take(Fault(1.0, "\x07", "kill"))
    console = Console(width=80)
    with console.capture() as captured:
        console.print(_picture(Path("r"), watched, 0.0, 80))
    assert "\\x1b[2J on \\ud800" in captured.get()
    assert not set("\x1b\x07\ud800") & set(captured.get())


def test_an_ongoing_run_sums_up_as_its_summary_does(trained):
    watched = OngoingRun()
    for event in trained:
        watched.take(event)
    end = trained[-1]
    assert isinstance(end, End)
    assert watched.samples >= end.sums.samples
    assert watched.sums.summary().reason == "finished"


def test_runs_are_listed_with_what_became_of_them(ownpace, trained, tmp_path, monkeypatch):
    assert ownpace("train --task quadratic --epochs 1 --fleet x3 --engine virtual --out bad")[0] == 2
    execute(Config(algorithm="sync", task="quadratic", epochs=1, fleet="2,1"), tmp_path / "r/deep/second")
    cut_off(tmp_path / "r/deep/second")
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = ownpace("runs r")
    assert code == 0
    head, _, *rows = out.splitlines()
    assert rows.pop(1) == "deep/"
    assert head.split() == ["run", "algorithm", "task", "fleet", "result", "state", "when"]
    assert [row.split()[:4] for row in rows] == [
        ["first", "stride", "quadratic", "4,2,1,1"],
        ["second", "sync", "quadratic", "2,1"],
    ]
    assert "finished" in rows[0]
    assert "no end" in rows[1]
    assert max(map(len, out.splitlines())) <= 80
    code, out, _ = ownpace("runs r --json")
    listed = json.loads(out)["runs"]
    assert [each["state"] for each in listed] == ["finished", "no end"]
    assert all(each["loss"] > 0 for each in listed)
    code, _, err = ownpace("runs")
    assert code == 2
    assert "there is no folder runs" in err


@pytest.mark.parametrize(
    ("columns", "missing"), [(80, []), (60, ["when"]), (50, ["when", "fleet"]), (20, ["when", "fleet", "task"])]
)
def test_columns_without_room_are_left_out_and_named(ownpace, tmp_path, monkeypatch, columns, missing):
    execute(Config(algorithm="sync", task="quadratic", epochs=1, fleet="4,2,1,1"), tmp_path / "r/first")
    monkeypatch.setenv("COLUMNS", str(columns))
    head, _, *lines = ownpace("runs r")[1].splitlines()
    assert {name for name in ("task", "fleet", "when") if name not in head} == set(missing)
    assert not missing or lines.pop() == f"no room for: {', '.join(missing)}"
    assert " ".join(lines).split()[:2] == ["first", "sync"]
    assert max(map(len, [head, *lines])) <= max(columns, 32)


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_long_names_are_whole_and_the_columns_stay(ownpace, tmp_path, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    long = "a-name-that-says-all-there-is-to-know-of-an-experiment"
    for name in (f"{long}/sync", f"{long}/pace", long + "-of-mine", "short"):
        execute(Config(algorithm="sync", task="quadratic", epochs=1, fleet="2,1"), tmp_path / "r" / name)
    code, out, _ = ownpace("runs r")
    lines = out.splitlines()
    starts = {line.index("quadratic") for line in lines if "quadratic" in line}
    assert (code, len(starts), lines.count(f"{long}/")) == (0, 1, 1)
    names = [line.split()[0] for line in lines]
    assert {"sync", "pace", "short", f"{long}-of-mine"} <= set(names)
    assert columns < 80 or max(map(len, lines)) <= columns

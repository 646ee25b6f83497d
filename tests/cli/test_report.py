"""`ownpace report`, as users meet it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ownpace.run import Config, execute


@pytest.fixture
def trained():
    """Two small runs in r/; made in Python, which draws no figure."""
    for name in ("sync", "pace"):
        execute(Config(algorithm=name, task="quadratic", epochs=2), Path("r") / name)


def test_a_folder_of_runs_becomes_one_page_beside_it(ownpace, trained, tmp_path):
    code, out, _ = ownpace("report r")
    assert (code, out) == (0, "2 runs in r.html; open it in a browser\n")
    text = (tmp_path / "r.html").read_text()
    assert "ownpace train --config r/sync/config.json" in text
    assert "came furthest: a loss of" in text
    # Again: a report of ours may be replaced.
    code, out, _ = ownpace("report r/pace r/sync --out r.html")
    assert code == 0
    names = re.findall(r'"name":"(\w+)","colour"', (tmp_path / "r.html").read_text())
    assert names == ["pace", "sync"]


def test_a_run_that_was_killed_is_shown_and_said(ownpace, trained, tmp_path):
    events = tmp_path / "r" / "sync" / "events.jsonl"
    events.write_bytes(events.read_bytes()[:-300])  # half of the last line is left
    code, _, _ = ownpace("report r/sync")
    assert code == 0
    text = (tmp_path / "r" / "sync.html").read_text()
    assert "sync: ended early, no last record: still running, or cut off" in text
    assert "is not an event" in text


def test_what_cannot_be_shown_is_said_in_one_line(ownpace, trained, tmp_path):
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    (tmp_path / "empty").mkdir()
    (tmp_path / "r" / "pace" / "events.jsonl").write_text("{}\n")
    for arguments, message in (
        ("report r/sync --out mine.html", "mine.html was not written by ownpace report, so it is not replaced"),
        ("report r/sync --out empty", "a folder; name a file in it, as in empty/report.html"),
        ("report r/sync --csv empty", "a folder; name a file in it, as in empty/report.csv"),
        ("report r/sync --trace empty", "a folder; name a file in it, as in empty/report.json"),
        ("report r/none", "there is no folder r/none"),
        ("report empty", "empty is neither a run nor a folder of runs"),
        ("report r/pace", "line 1, is not an event"),
    ):
        code, _, err = ownpace(arguments)
        assert code == 2, arguments
        assert message in err
        assert err.count("\n") == 1
    assert (tmp_path / "mine.html").read_text() == "<p>mine</p>"


def test_the_runs_of_a_comparison_stand_in_its_order(ownpace, trained, tmp_path):
    (tmp_path / "r" / "comparison.json").write_text(json.dumps({"runs": [{"out": "x/sync"}, {"out": "x/pace"}]}))
    assert ownpace("report r")[0] == 0
    assert re.findall(r'"name":"(\w+)","colour"', (tmp_path / "r.html").read_text()) == ["sync", "pace"]


def test_other_formats_are_written_instead_of_a_page(ownpace, trained, tmp_path):
    code, out, _ = ownpace("report r --trace t.json --csv c.csv")
    assert code == 0
    assert "open it in ui.perfetto.dev" in out
    assert not (tmp_path / "r.html").exists()
    trace = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {"sync: sync on quadratic", "pace: pace on quadratic"} <= {
        each["args"]["name"] for each in trace if each["name"] == "process_name"
    }
    rows = (tmp_path / "c.csv").read_text().splitlines()
    assert rows[0].startswith("run,algorithm,engine,seed,seconds,samples")
    assert {row.split(",")[0] for row in rows[1:]} == {"sync", "pace"}
    assert ownpace("report r --csv c.csv --trace t.json.gz --out page.html")[0] == 0  # those of ours are replaced
    assert (tmp_path / "page.html").exists()
    (tmp_path / "t.json").write_text("{}")
    code, _, err = ownpace("report r --trace t.json")
    assert code == 2
    assert "give --trace another name" in err
    assert (tmp_path / "t.json").read_text() == "{}"


def test_without_tensorboard_one_line_says_what_to_install(ownpace, trained, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    code, _, err = ownpace("report r --tensorboard logs")
    assert code == 2
    assert "pip install 'ownpace[tensorboard]'" in err


@pytest.mark.parametrize("missing", ["torch.utils.tensorboard", "wandb"])
def test_where_one_tool_is_missing_the_other_hears_of_no_run(ownpace, monkeypatch, missing):
    def begin(*args, **named):
        pytest.fail("a run has begun")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=begin))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=begin))
    monkeypatch.setitem(sys.modules, missing, None)
    code, _, err = ownpace("train --task quadratic --epochs 1 --tensorboard logs --wandb tests --out r")
    assert code == 2
    assert "pip install 'ownpace[" in err


def test_a_run_goes_on_where_tensorboard_is_asked_for(ownpace, tmp_path, monkeypatch):
    """What is not installed is said before anything is run; what is, gets scalars while the run goes on."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    code, _, err = ownpace("train --task quadratic --epochs 1 --wandb tests --out r")
    assert code == 2
    assert "pip install 'ownpace[wandb]'" in err
    assert not (tmp_path / "r").exists()
    pytest.importorskip("tensorboard")
    assert ownpace("train --task quadratic --epochs 1 --tensorboard logs --json --out r")[0] == 0
    (written,) = (tmp_path / "logs" / "r").iterdir()
    assert b"test/loss" in written.read_bytes()
    assert b"update/staleness" in written.read_bytes()

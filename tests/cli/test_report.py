"""`ownpace report`, as users meet it."""

from __future__ import annotations

import json
import re

import pytest


@pytest.fixture
def trained(ownpace):
    """Two small runs in r/."""
    for name in ("sync", "pace"):
        code, _, _ = ownpace(f"train --algorithm {name} --task quadratic --epochs 2 --json --out r/{name}")
        assert code == 0


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
    assert "sync ended early: no last record: still running, or cut off" in text
    assert "is not an event" in text


def test_what_cannot_be_shown_is_said_in_one_line(ownpace, trained, tmp_path):
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    (tmp_path / "empty").mkdir()
    (tmp_path / "r" / "pace" / "events.jsonl").write_text("{}\n")
    for arguments, message in (
        ("report r/sync --out mine.html", "mine.html is not a report of ownpace, so it is not replaced"),
        ("report r/sync --out empty", "a folder; name a file in it, as in empty/report.html"),
        ("report r/none", "there is no folder r/none"),
        ("report empty", "empty neither is a run nor holds one"),
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

"""What is shown while a run goes on."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ownpace.cli.progress import Live
from ownpace.core.contract.events import Evaluation
from ownpace.engines.job import ProgressReport
from ownpace.run import Config

REPORT = ProgressReport(
    samples=123_456,
    seconds=1234.5,
    loss=2.295,
    limit_samples_per_s=12_345.0,
    paces={"worker-0": 12_345.0, "straggler-10": 1.0},
    busy={"worker-0": 1.0, "straggler-10": 0.5},
)


@pytest.mark.parametrize("columns", [80, 140])
def test_every_line_fits_and_nothing_is_cut(columns):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=columns, color_system=None)
    with Live(console) as live:
        bar = live.add("dc-async")
        bar.on_start(Config(samples=200_000).job())
        bar.on_event(Evaluation(1.0, 100, 10, 0.25, 0.876))
        bar.on_progress(REPORT)
    shown = out.getvalue()
    assert "…" not in shown
    assert "62 %" in shown
    assert "loss 2.295" in shown
    assert "87.6%" in shown
    assert ("of limit" in shown) == (columns == 140)
    assert "straggler-10" in shown
    assert "12,345 samples/s" in shown


def test_a_bar_appears_when_its_run_starts():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, color_system=None)
    with Live(console) as live:
        first = live.add("sync")
        live.add("pace")
        first.on_start(Config(seconds=3.0).job())
    shown = out.getvalue()
    assert "sync" in shown
    assert "starting" in shown
    assert "pace" not in shown


def test_nothing_is_shown_where_there_is_no_terminal():
    out = io.StringIO()
    console = Console(file=out, force_terminal=False)
    with Live(console) as live:
        live.add("sync").on_start(Config(seconds=3.0).job())
    assert out.getvalue() == ""

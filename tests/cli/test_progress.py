"""What is shown while a run goes on."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
from rich.console import Console

from ownpace.cli import plan_progress
from ownpace.cli.plan_progress import Stages
from ownpace.cli.progress import Live
from ownpace.core.contract.events import Evaluation
from ownpace.engines.job import ProgressReport
from ownpace.planning import PlanProgress
from ownpace.run import Config

REPORT = ProgressReport(
    samples=123_456,
    seconds=1234.5,
    loss=2.295,
    limit_samples_per_s=12_345.0,
    paces={"worker-0": 12_345.0, "straggler-10": 1.0},
    busy={"worker-0": 1.0, "straggler-10": 0.5},
)


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_every_line_fits_and_nothing_is_cut(columns):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, force_interactive=True, width=columns, color_system=None)
    with Live(console) as live:
        bar = live.add("dc-async")
        bar.on_start(Config(samples=200_000).job())
        bar.on_event(Evaluation(1.0, 100, 10, 0.25, 0.876))
        bar.on_progress(REPORT)
    shown = " ".join(out.getvalue().split())  # at 60 columns, a note takes two lines
    assert max(map(len, out.getvalue().splitlines())) <= columns + 20  # with what moves the cursor
    assert "…" not in shown.replace("workers …", "")
    assert "62 %" in shown
    assert "loss 2.295" in shown
    assert "87.6%" in shown
    assert ("of limit" in shown) == (columns == 140)
    assert "straggler-10" in shown
    assert "12,345 samples/s" in shown


def test_a_bar_appears_when_its_run_starts():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, force_interactive=True, width=80, color_system=None)
    with Live(console) as live:
        first = live.add("sync")
        live.add("pace")
        first.on_start(Config(seconds=3.0).job())
    shown = out.getvalue()
    assert "sync" in shown
    assert "starting 4 workers" in shown
    assert "pace" not in shown


def test_plain_lines_now_and_then_where_there_is_no_terminal():
    out, now = io.StringIO(), [0.0]
    console = Console(file=out, force_terminal=False, width=80)
    with Live(console, clock=lambda: now[0]) as live:
        bar = live.add("pace")
        now[0] = 100.0
        virtual = live.add("sync")
        virtual.on_start(Config(seconds=3.0).job())  # virtual workers start at once
        virtual.on_progress(REPORT)  # too early for a line
        bar.on_start(Config(samples=200_000).job(), "process")
        bar.on_event(Evaluation(1.0, 100, 10, 0.25, 0.876))
        for now[0] in (101.0, 104.9, 105.0, 106.0, 109.9):
            bar.on_progress(REPORT)
        bar.close("finished")
    first, *others = out.getvalue().splitlines()
    assert first == "pace: starting 4 workers …"
    assert others == ["pace: 62% 1234.50 s 100 samples/s (1% of limit) loss 2.295 accuracy 87.6%"]


def test_the_last_score_of_a_bar_is_that_of_the_table():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, force_interactive=True, width=80, color_system=None)
    with Live(console) as live:
        bar = live.add("async")
        bar.on_start(Config(samples=200_000).job())
        bar.on_event(Evaluation(1.0, 100, 10, 0.25, 0.95))
        bar.on_progress(REPORT)
        bar.on_event(Evaluation(2.0, 200, 20, 0.35, 0.925))
        bar.close("finished")
    last = [line for line in out.getvalue().splitlines() if "async" in line][-1]
    assert "loss 0.350 92.5%" in last
    assert "100 %" in last


def test_a_real_terminal_of_80_columns_shows_names_and_cuts_nothing():
    """`ownpace compare` and `list` in a pseudo-terminal."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    program = "from ownpace.cli.main import main; main('compare --algorithms staleness-aware,pace --epochs 2'.split())"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment | {"TERM": "xterm-256color"},
    ) as ran:
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(master, 65536):
                shown += part
    os.close(master)
    assert ran.returncode == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    lines = [line for each in text.splitlines() for line in each.split("\r")]
    assert max(map(len, lines)) <= 80
    assert "…" not in text.replace("workers …", "")
    assert sum("staleness-aware" in line and "%" in line for line in lines) >= 2  # a bar, and a row of the table


@pytest.mark.parametrize(("term", "moves"), [("xterm", True), ("dumb", False), ("unknown", False)])
def test_a_terminal_that_cannot_move_gets_plain_lines(monkeypatch, term, moves):
    monkeypatch.setenv("TERM", term)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, color_system=None)
    with Live(console) as live:
        bar = live.add("sync")
        bar.on_start(Config(task="quadratic").job(), "process")
    assert ("sync: starting 4 workers …\n" in out.getvalue()) != moves
    with Stages(console) as stages:
        stages.take(PlanProgress("speeds", 0, 2))
    assert ("speeds" in out.getvalue()) == moves


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_plan_says_what_it_is_doing_and_how_long_it_may_take(monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(plan_progress, "EVERY_S", 0.0)
    out = io.StringIO()
    with Stages(Console(file=out, force_terminal=True, width=80, color_system=None)) as stages:
        stages.take(PlanProgress("learning rates", 3, 100, "stride", 120.0))
        stages.take(PlanProgress("what if", 3, 1000, "add:new:2, drop:a-machine-with-a-long-name …", 120.0))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "add:new:2" in text
    assert ("0 of 120 s" if term == "xterm" else "0 of at most 120 s") in text
    if term == "xterm":
        assert "3/1000 runs" in text  # which the long name has not driven away
        assert max(len(line) for each in text.splitlines() for line in each.split("\r")) <= 80

"""A comparison as a picture. In an SVG, matplotlib repeats every text as a comment, so what is drawn can be read."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.events import Compute, End, Evaluation, Event, Run, Sums, Tally, Transfer, Update, Wait
from ownpace.report.colours import OF_ALGORITHMS
from ownpace.report.figure import COLOURS, draw_comparison
from ownpace.report.outline import RunOutline

pytest.importorskip("matplotlib")


def a_run(
    name: str = "sync", *, engine: str = "virtual", num_workers: int = 2, accuracy: float | None = 0.9
) -> list[Event]:
    workers = [f"worker-{rank}" for rank in range(num_workers)]
    sums = Sums(4.0, 32, 4, 0.0, 0, 100.0, {worker: Tally(16, 1.0, 1.0) for worker in workers})
    events: list[Event] = [
        Run(name, engine, "digits", "mlp", 0, 8, 8, 10, 40, 100, 0.8, {"workers": workers, "servers": ["server-0"]}),
        Evaluation(0.0, 0, 0, 2.0, None if accuracy is None else 0.1),
    ]
    for start in range(4):
        events += [Compute(start, start + 0.5, worker, 8, start) for worker in workers]
        events += [Wait(start + 0.5, start + 1, worker, "all-reduce") for worker in workers]
        events.append(Transfer(start + 0.5, start + 1, "all-reduce", "workers", 40))
        events.append(Transfer(start + 0.5, start + 1, "push", ["worker-0", "server-0"], 40))
        events.append(Update(start + 1, workers[0], start + 1, 8, 8 * (start + 1), 0))
    events += [Evaluation(4.0, 32, 4, 0.5, accuracy), End(4.0, "finished", sums)]
    return events


def drawn(tmp_path: Path, **runs: Sequence[Event]) -> str:
    path = tmp_path / "figure.svg"
    draw_comparison({name: RunOutline(events) for name, events in runs.items()}, path)
    return path.read_text(encoding="utf-8")


def texts(svg: str) -> list[str]:
    return re.findall(r"<!-- (.*?) -->", svg)


def test_every_run_has_a_line_a_timeline_and_its_workers(tmp_path):
    shown = texts(drawn(tmp_path, sync=a_run(), pace=a_run("pace")))
    assert (shown.count("sync"), shown.count("pace")) == (2, 2)  # in the legend of lines, and above its timeline
    assert shown.count("worker-0") == shown.count("worker-1") == 2
    assert "test accuracy" in shown
    assert "target 80.0%" in shown
    assert {*COLOURS, "update"} <= set(shown)


def test_without_accuracy_the_loss_is_drawn(tmp_path):
    shown = texts(drawn(tmp_path, sync=a_run(accuracy=None)))
    assert "test loss" in shown
    assert "test accuracy" not in shown


def test_without_evaluations_there_are_timelines_alone(tmp_path):
    events = [event for event in a_run() if not isinstance(event, Evaluation)]
    shown = texts(drawn(tmp_path, sync=events))
    assert shown.count("sync") == 1
    assert "test accuracy" not in shown


def test_a_prediction_has_the_colour_of_its_run_and_no_timeline(tmp_path):
    svg = drawn(tmp_path, measured=a_run(engine="process"), predicted=a_run())
    assert texts(svg).count("measured") == 2
    assert texts(svg).count("predicted") == 1
    dashed = [style for style in re.findall(r'style="([^"]*)"', svg) if "stroke-dasharray" in style]
    assert any(OF_ALGORITHMS["sync"] in style for style in dashed)


def test_an_algorithm_has_its_colour_wherever_it_stands(tmp_path):
    for names in (("sync", "pace"), ("pace", "sync")):
        svg = drawn(tmp_path, **{name: a_run(name) for name in names})
        assert OF_ALGORITHMS["sync"] in svg
        assert OF_ALGORITHMS["pace"] in svg


def test_timelines_of_unlike_runs_have_scales_of_their_own(tmp_path):
    slow = [replace(event, t=100 * event.t) if isinstance(event, Update) else event for event in a_run("diloco")]
    ticks = texts(drawn(tmp_path, sync=a_run(), pace=a_run("pace"), diloco=slow))
    assert "400" in ticks
    assert "4.0" in ticks  # not squeezed into a hundredth


def test_a_figure_of_nothing_is_not_drawn(tmp_path):
    nothing = [event for event in a_run() if isinstance(event, Run | End)]
    with pytest.raises(InputError, match="nothing was recorded"):
        drawn(tmp_path, sync=nothing)
    curves = [event for event in a_run() if isinstance(event, Run | End | Evaluation)]
    shown = texts(drawn(tmp_path, sync=curves))
    assert "test accuracy" in shown
    assert "worker-0" not in shown


def test_of_many_workers_some_of_each_class_are_shown(tmp_path):
    shown = texts(drawn(tmp_path, sync=a_run(num_workers=12)))
    assert "sync (8 of 12 workers)" in shown
    assert "worker-0" in shown
    assert "worker-11" in shown  # the last class, if machines have no names
    first, *others = a_run(num_workers=1)
    assert isinstance(first, Run)
    machines = [*(f"new-{n}" for n in range(900)), *(f"old-{n}" for n in range(100))]
    outline = RunOutline([replace(first, groups={"workers": machines}), *others])
    assert [name.partition("-")[0] for name in outline.rows] == ["new"] * 4 + ["old"] * 4


def test_of_many_runs_the_first_have_timelines(tmp_path):
    shown = texts(drawn(tmp_path, **{f"run{number}": a_run(f"run{number}") for number in range(9)}))
    assert [shown.count(f"run{number}") for number in range(9)] == [2] * 6 + [1] * 3


def test_timelines_show_the_first_updates_or_all_there_is(tmp_path):
    *events, end = [event for event in a_run() if not isinstance(event, Evaluation)]
    assert isinstance(end, End)
    longer = [*events, replace(end, t=40.0)]
    assert "4.0" in texts(drawn(tmp_path, sync=longer))
    without = [event for event in longer if not isinstance(event, Update)]
    assert "40" in texts(drawn(tmp_path, sync=without))


@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_other_formats_go_by_the_name_of_the_file(tmp_path, kind):
    draw_comparison({"sync": RunOutline(a_run())}, tmp_path / f"figure.{kind}")
    assert (tmp_path / f"figure.{kind}").read_bytes()[:4] in (b"\x89PNG", b"%PDF")


def test_without_matplotlib_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"pip install 'ownpace\[plot\]'"):
        draw_comparison({"sync": RunOutline(a_run())}, tmp_path / "figure.png")


def test_a_label_is_that_of_the_run_not_of_the_algorithm(tmp_path):
    first = a_run()
    assert isinstance(first[0], Run)
    shown = texts(drawn(tmp_path, mine=[replace(first[0], algorithm="Other"), *first[1:]]))
    assert "mine" in shown
    assert "Other" not in shown

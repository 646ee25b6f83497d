"""The page of `ownpace report` in a real browser: no complaint, no request, no sideways scrolling, quick."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.chromium import PROGRAM, Browser, browser

from ownpace.algorithms import make_algorithm
from ownpace.core.contract.events import Compute, End, Evaluation, Event, Run, Sums, Tally, Transfer, Update, Wait
from ownpace.report.digest import digest
from ownpace.report.page import PageRun, write_page
from ownpace.testing import simulate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no chromium on this machine; install it to try the page in a browser"),
]
UPDATES = 100_000
BAD = "<script>alert(1)</script>" * 3


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as page:
        yield page


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """A few runs, one of them with a name that is none."""
    runs = []
    for name in ("sync", "pace", "async", "diloco"):
        _, events = simulate(make_algorithm(name), samples=2000)
        runs.append(PageRun(BAD if name == "async" else name, digest(events), {"algorithm": name, "lr": 0.1}, "again"))
    path: Path = tmp_path_factory.mktemp("page") / "small.html"
    write_page(runs, path, "today")
    return path


def many_updates() -> Iterator[Event]:
    names = [f"worker-{rank}" for rank in range(4)]
    yield Run("sync", "virtual", "digits", "mlp", 0, 32, 32, 10, 40, None, 0.9, {"workers": names})
    for update in range(UPDATES):
        t = 0.01 * update
        for rank, name in enumerate(names):
            done = t + 0.002 * (rank + 1)
            yield Compute(t, done, name, 32, update)
            yield Wait(done, t + 0.01, name, "all-reduce")
        yield Transfer(t + 0.008, t + 0.01, "all-reduce", "workers", 40)
        yield Update(t + 0.01, "worker-0", update + 1, 128, 128 * (update + 1), update % 5)
        if update % 20 == 0:
            yield Evaluation(t + 0.01, 128 * update, update, 2.0 / (1 + update), update / (update + 900))
    tallies = {name: Tally(32 * UPDATES, 0.002 * (rank + 1) * UPDATES, 0.0) for rank, name in enumerate(names)}
    yield End(0.01 * UPDATES, "finished", Sums(0.01 * UPDATES, 128 * UPDATES, UPDATES, 2.0, 4, 25_000.0, tallies))


def work_s(chromium: Browser) -> float:
    """Seconds of work that the page has cost the browser so far."""
    metrics = chromium.ask("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_a_page_is_shown_without_a_complaint(chromium, small, width, dark):
    chromium.show(small, width=width, dark=dark)
    assert chromium.value("document.documentElement.scrollWidth") <= width
    assert chromium.value("document.querySelectorAll('#chart .curve').length") == 4
    background = chromium.value("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(19, 21, 24)" if dark else "rgb(251, 251, 250)")
    # Every switch and button, and the keys of a timeline.
    chromium.value("document.querySelectorAll('input, button').forEach((each) => each.click())")
    assert chromium.value("document.querySelectorAll('#chart .curve').length") == 0  # all were switched off
    chromium.value("document.querySelectorAll('button').forEach((each) => each.click())")
    for key in ("+", "ArrowRight", "-", "End", "Home"):
        press = f"new KeyboardEvent('keydown', {{key: {json.dumps(key)}}})"
        chromium.value(f"document.querySelector('canvas').dispatchEvent({press})")
    pointer = "new PointerEvent('pointermove', {clientX: 200, clientY: 60, bubbles: true})"
    chromium.value(f"document.querySelectorAll('canvas, #chart svg').forEach((each) => each.dispatchEvent({pointer}))")
    assert chromium.complaints() == []
    assert chromium.requests() == [small.as_uri()]


def test_a_single_evaluation_is_a_dot(chromium, tmp_path):
    _, events = simulate(make_algorithm("sync"), samples=400)
    once = [event for event in events if not isinstance(event, Evaluation) or not event.t]
    write_page([PageRun("once", digest(once), {}, "again")], tmp_path / "once.html", "today")
    chromium.show(tmp_path / "once.html", width=1280)
    assert chromium.value("document.querySelectorAll('#chart .dot:not([visibility])').length") == 1


def test_on_paper_it_is_light(chromium, small):
    chromium.show(small, width=1280, dark=True)
    colour = "getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()"
    assert chromium.value(colour) == "#e9eaec"
    chromium.value("dispatchEvent(new Event('beforeprint'))")
    assert chromium.value(colour) == "#1d1f23"
    chromium.value("dispatchEvent(new Event('afterprint'))")
    assert chromium.value(colour) == "#e9eaec"
    assert chromium.complaints() == []


def test_a_timeline_can_be_zoomed_and_all_move_together(chromium, small):
    chromium.show(small, width=1280)
    status = "[...document.querySelectorAll('.timeline .status')].map((each) => each.textContent)"
    before = chromium.value(status)
    wheel = "new WheelEvent('wheel', {deltaY: -100, clientX: 600, clientY: 60, cancelable: true})"
    chromium.value(f"document.querySelector('.timeline canvas').dispatchEvent({wheel})")
    after = chromium.value(status)
    assert after[0] != before[0]
    assert after[1:] == before[1:]
    chromium.value("document.querySelector('input[value=same]').click()")
    assert len({text.partition(" of ")[0] for text in chromium.value(status)}) == 1


def test_a_hundred_thousand_updates_open_in_three_seconds(tmp_path):
    path = tmp_path / "long.html"
    write_page([PageRun("long", digest(many_updates()), {}, "again")], path, "today")
    assert path.stat().st_size < 400_000
    with browser() as page:  # one of its own, whose work is this page's alone
        page.show(path, width=1280)
        # The browser's own count: this machine may be busy with something else.
        assert 0 < work_s(page) < 3.0
        page.value("document.querySelector('canvas').dispatchEvent(new KeyboardEvent('keydown', {key: '0'}))")
        said = page.value("document.querySelector('.status').textContent")
        assert "0 min to 16.67 min" in said
        assert "the shares of time" in said
        assert page.complaints() == []

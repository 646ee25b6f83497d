"""The page: of one piece, and safe with foreign names."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from ownpace.algorithms import make_algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.events import Compute, Event, Fault, Omitted, Run, Update
from ownpace.report.digest import digest
from ownpace.report.page import PageRun, write_page
from ownpace.report.page.document import MARK, MOST_RUNS, page
from ownpace.testing import simulate

BAD = "</script><script>alert(1)</script><img src=x onerror=alert(1)>'\"&"


def a_run(name: str = "first", **changes: object) -> PageRun:
    _, events = simulate(make_algorithm("sync"), samples=400)
    return PageRun(name, digest(events), {"algorithm": "sync", "lr": 0.1, "seed": 0, **changes}, "ownpace train …")


class Elements(HTMLParser):
    """Counts what a browser would make of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.kinds: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.kinds.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_needs_nothing_but_itself(tmp_path):
    write_page([a_run()], tmp_path / "page.html", "today")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.startswith(MARK)
    assert not re.search(r"http|://|url\(|@import", text.replace("http-equiv", ""))
    found = Elements(text)
    assert not {"link", "img", "iframe", "object", "embed"} & set(found.kinds)
    assert not {"src", "href", "srcset", "action"} & {name for name, _ in found.attributes}
    assert "default-src 'none'" in text


def test_foreign_names_and_settings_stay_text():
    run = a_run(BAD, lr=BAD, model={BAD: BAD})
    hostile = Run(BAD, BAD, BAD, BAD, 0, 8, 8, 1, 4, None, 0.9, {"workers": [BAD, "worker-1"], BAD: [BAD]})
    events: list[Event] = [hostile, Compute(0.0, 1.0, BAD, 8, 0), Update(1.0, BAD, 1, 8, 8, 0)]
    events.append(Omitted(1.0, 2.0, {}, {}, 0, 0, BAD))
    bad = PageRun(BAD, digest(events, {BAD: BAD}), {"algorithm": BAD}, BAD, BAD)
    text = page([run, bad], BAD)
    harmless = page([replace(run, name="a", settings={}), a_run("b")], "today")
    kinds = Elements(text).kinds
    assert kinds.count("script") == Elements(harmless).kinds.count("script") == 2
    assert "img" not in kinds
    assert not [name for name, _ in Elements(text).attributes if name.startswith("on")]
    assert BAD in Elements(text).text
    data = re.search(r"<script type=application/json id=data>(.*?)</script>", text, re.DOTALL)
    assert data is not None
    assert not set(data[1]) & set("<>&")  # what could end the script, or begin a comment in it
    assert [each["name"] for each in json.loads(data[1])] == [BAD, BAD]


def test_runs_of_one_algorithm_have_its_colour_and_lines_of_their_own():
    text = page([a_run("a"), a_run("b", lr=0.2)], "today")
    (data,) = re.findall(r"id=data>(.*?)</script>", text, re.DOTALL)
    first, second = json.loads(data)
    assert first["colour"] == second["colour"]
    assert first["dash"] != second["dash"]
    table = text[text.index("<table class=settings") :]
    assert re.search(r"lr</th><td data-label=\"a\">0.1</td><td data-label=\"b\">0.2</td>", table)
    assert ">seed</th>" not in table[: table.index("</table>")]  # the same in both


def test_what_happened_to_machines_is_said():
    _, events = simulate(make_algorithm("sync"), samples=400)
    killed = [*events[:-1], Fault(0.02, "worker-1", "kill"), Fault(0.03, "worker-1", "back"), events[-1]]
    text = page([PageRun("first", digest(killed), {}, "")], "today").replace("\N{NO-BREAK SPACE}", " ")
    assert "first: after 20.0 ms, kill: worker-1, and 1 more of this kind; its timeline shows where." in text


def test_damage_and_missing_detail_are_said():
    run = a_run()
    text = page([replace(run, problem="line 7 is not an event")], "today")
    assert "first: line 7 is not an event" in text
    _, events = simulate(make_algorithm("sync"), samples=400)
    events.insert(-1, Omitted(1.0, 2.0, {}, {}, 0, 0, "No space left on device"))
    assert "detail is missing from 1 s on: No space left" in page([PageRun("a", digest(events), {}, "")], "today")


def test_too_many_runs_are_refused(tmp_path):
    run = a_run()
    with pytest.raises(InputError, match=f"a page shows {MOST_RUNS} at most"):
        write_page([run] * (MOST_RUNS + 1), tmp_path / "page.html", "today")


def test_a_thousand_workers_are_shown_by_class():
    names = [f"new-{at}" for at in range(990)] + [f"old-{at}" for at in range(10)]
    run = Run("sync", "virtual", "digits", "mlp", 0, 8, 8, 1, 4, None, None, {"workers": names})
    events: list[Event] = [run, *(Compute(0.0, 1.0, name, 8, 0) for name in names), Update(2.0, "new-0", 1, 8, 8, 0)]
    text = page([PageRun("many", digest(events), {}, "")], "today")
    assert "12 of 1,000 workers, some of every class" in text
    assert "new × 990" in text
    assert "old × 10" in text
    assert len(text) < 100_000

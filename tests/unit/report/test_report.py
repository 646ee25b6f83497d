"""How a run ended, by code and not by prose."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from ownpace.algorithms import make_algorithm
from ownpace.core.contract import errors
from ownpace.core.contract.events import End, from_line, to_line
from ownpace.report import Summary, summarize
from ownpace.report.table import comparison_table
from ownpace.testing import simulate


def all_errors(base: type[errors.OwnpaceError]) -> list[type[errors.OwnpaceError]]:
    return [base, *(found for cls in base.__subclasses__() for found in all_errors(cls))]


@pytest.mark.parametrize("cls", all_errors(errors.OwnpaceError), ids=lambda cls: cls.__name__)
def test_every_error_stands_in_the_tree_with_its_code_and_exit_code(cls):
    assert errors.__doc__ is not None
    (line,) = [line for line in errors.__doc__.splitlines() if f" {cls.__name__} " in line]
    if cls is not errors.OwnpaceError:
        assert f" {cls.code} " in line
        assert f" {cls.exit_code} " in line


@pytest.fixture(scope="module")
def end() -> End:
    _, events = simulate(make_algorithm("sync"), samples=100)
    assert isinstance(events[-1], End)
    return events[-1]


def test_a_run_that_finished_has_no_code_in_its_file(end):
    assert end.code is None
    assert '"code"' not in to_line(end)
    assert from_line(to_line(end)) == end


def test_a_code_survives_the_file(end):
    early = replace(end, reason="the loss is nan", code="diverged")
    assert to_line(early).endswith(',"code":"diverged"}')
    assert from_line(to_line(early)) == early


@pytest.mark.parametrize(
    ("code", "shown"), [("diverged", "diverged"), ("machine-died", "machine died"), (None, "early")]
)
def test_the_table_shows_the_code_and_never_the_prose(code, shown):
    _, events = simulate(make_algorithm("sync"), samples=100)
    summary: Summary = replace(summarize(events), reason="it was interrupted and killed", code=code)
    console = Console(width=200)
    with console.capture() as captured:
        console.print(comparison_table([summary], 200))
    assert captured.get().rstrip().endswith(shown)


@pytest.mark.parametrize("code", [None, "interrupted"])
def test_a_comparison_fits_80_columns(code):
    _, events = simulate(make_algorithm("sync"), samples=100)
    busy = {f"worker-{rank}": 1.0 - 0.001 * rank for rank in range(4)}
    usual = replace(summarize(events), target=0.95, accuracy=0.967, busy=busy, samples_per_s=12345.0)
    summaries = [replace(usual, algorithm=name) for name in ("balanced", "pace")]
    if code is not None:
        summaries.append(replace(usual, algorithm="dc-async", reason="it ended", code=code))
    console = Console(width=80)
    with console.capture() as captured:
        console.print(comparison_table(summaries))
    shown = captured.get()
    assert "…" not in shown
    assert "not reached" in shown
    assert "12,345" in shown
    assert code is None or code in shown

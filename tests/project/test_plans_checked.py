"""The check of plans: whether a first choice is behind the best, or chance explains it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from check_plans import BEGIN, END, Row, write_page  # type: ignore[import-not-found]

RANKING = [{"algorithm": "stride", "time_to_target": 1.0}, {"algorithm": "pace", "time_to_target": 1.1}]


def row(stride: list[float], pace: list[float]) -> Row:
    return Row("two", RANKING, {"stride": stride, "pace": pace}, 10.0)


def test_how_far_behind_has_the_error_of_differences_seed_by_seed():
    apart = row([1.2, 2.4, 1.2], [1.0, 2.0, 1.2])  # 0.2, 0.4 and 0 behind
    assert apart.behind == pytest.approx(4.8 / 4.2)
    assert apart.error == pytest.approx(0.2 / 3**0.5 / 1.4)
    assert apart.is_chance
    assert not row([1.5, 2.5, 1.6], [1.0, 2.0, 1.2]).is_chance
    assert row([1.0, 1.0], [1.2, 1.2]).error is None  # the best itself
    assert row([1.2], [1.0]).error is None


def test_the_page_says_how_many_are_near_and_what_chance_explains(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_page(page, [row([1.0, 1.0], [1.2, 1.2]), row([1.2, 2.4, 1.2], [1.0, 2.0, 1.2])])
    text = page.read_text()
    assert "| 1.14 ± 0.08 |" in text
    assert "Within 10 % of the best: 1 of 2; behind by more, but not by more than chance explains: 1." in text
    assert (text[:7], text[-6:], "old" in text) == ("before\n", "after\n", False)

"""ACCO against a plain statement of it."""

from __future__ import annotations

from hypothesis import given, settings
from tests.conformance.plain import assert_same, engine
from tests.conformance.plain.late import accumulated
from tests.conformance.plain.ring import recorded
from tests.conformance.plain.strategies import late_settings, rules, sizings


@settings(max_examples=40)
@given(late_settings, sizings, rules)
def test_acco_speculates_with_one_half_and_commits_with_both(setting, sizing, rule):
    outcome, events = engine(setting, "acco", micro=sizing, lr_rule=rule)
    micro = None if sizing == "fixed" else recorded(events, setting)
    assert_same(outcome, events, accumulated(setting, micro, rule=rule))

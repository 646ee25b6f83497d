"""ACCO against a plain statement of it."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.conformance.plain import assert_same, engine
from tests.conformance.plain.late import Bound, accumulated
from tests.conformance.plain.ring import recorded
from tests.conformance.plain.strategies import late_settings, rules, sizings, slacks


@settings(max_examples=40)
@given(late_settings, sizings, rules)
def test_acco_speculates_with_one_half_and_commits_with_both(setting, sizing, rule):
    outcome, events = engine(setting, "acco", micro=sizing, lr_rule=rule)
    micro = None if sizing == "fixed" else recorded(events, setting)
    assert_same(outcome, events, accumulated(setting, micro, rule=rule))


@settings(max_examples=40)
@given(late_settings, st.none() | slacks, st.booleans(), rules)
def test_each_of_the_two_sums_has_half_of_a_bound(setting, slack, exact, rule):
    assume(slack is not None or not exact)
    most = 2 * setting.batch_size * setting.num_workers if slack is None else 2 * setting.num_workers + slack
    bound = {"target_batch" if exact else "max_batch": None if slack is None else most}
    outcome, events = engine(setting, "acco", bound, lr_rule=rule)
    assert_same(outcome, events, accumulated(setting, rule=rule, bound=Bound(most, exact=exact)))

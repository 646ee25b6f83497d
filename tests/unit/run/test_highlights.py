"""What a checkpoint remembers of a run's evaluations gives the same summary as all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ownpace.core.contract.events import End, Evaluation, Event, Run, Sums
from ownpace.report import summarize
from ownpace.run.recording import Highlights

RUN = Run("sync", "virtual", "digits", "mlp", 0, 8, 8, 10, 40, 100, 0.5, {"workers": []})
END = End(9.0, "finished", Sums(9.0, 100, 10, 0.0, 0, 1.0, {}, None, 8))
scores = st.lists(st.sampled_from((0.2, 0.4, 0.5, 0.6, 0.7)), max_size=9)


@given(scores, scores)
def test_replayed_they_give_the_same_summary(before, after):
    all_scores = enumerate(before + after)
    evaluations: list[Event] = [Evaluation(float(t), t, t, 1.0 - score, score) for t, score in all_scores]
    kept = Highlights()
    for event in (RUN, *evaluations[: len(before)]):
        kept.take(event)
    again = Highlights()  # the run goes on from a checkpoint, and makes another
    for event in (*kept.events(), *evaluations[len(before) :]):
        again.take(event)
    assert summarize([*again.events(), END]) == summarize([RUN, *evaluations, END])
    assert len(again.events()) <= 8

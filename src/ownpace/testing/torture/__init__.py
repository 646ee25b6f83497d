"""Torture: fleets, algorithms and faults drawn from a seed, in virtual time, with real gradients of a few numbers.

    >>> report = torture(4711)
    >>> report.complaints
    []

A failure prints its seed and a line that replays it, `python -m ownpace.testing.torture --seed 4711`.

    draws        random choices that are the same everywhere
    tasks        what is learnt: weights that count samples, or something that an optimizer needs its memory for
    subjects     every algorithm with parameters drawn at random, and what may be expected of it
    faults       what happens to machines
    moments      when it hurts most
    scenario     all of it, drawn from a seed, and in words
    audit        books on what an algorithm does to parameters
    evidence     a run and all that is known of it
    parameters   what must hold of parameters and of the samples in them
    invariants   what must hold of every run: all of it by name
    trial        one scenario, run and judged
    runner       many of them, in several processes
"""

from ownpace.testing.torture.invariants import INVARIANTS
from ownpace.testing.torture.scenario import Scenario, draw_scenario
from ownpace.testing.torture.subjects import TortureSubject
from ownpace.testing.torture.trial import TortureReport, torture

__all__ = ["INVARIANTS", "Scenario", "TortureReport", "TortureSubject", "draw_scenario", "torture"]

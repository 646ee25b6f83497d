"""Plain, slow restatements of the papers' equations, which the algorithms are compared with.

Nothing here comes from `ownpace.algorithms`, `ownpace.core.blocks` or an engine. Shared with the package are the task's
data and the order in which samples are handed out; the rest (gradients, optimizer, timing of computing and of links,
who waits for whom) is stated once more, in float64 and as slowly as it reads.

setting     everything that decides a run, apart from the algorithm; how long computing and a ring take
model       gradients, loss, SGD
draws       who gets which samples
ring        rounds with a barrier, and the timeline of sums that overlap with computing
late        ABS-SGD, Pace-SGD, Pipe-SGD and ACCO on that timeline
server      links, and an event loop around one parameter server
od          OD-SGD, with an event loop of its own
alone       a worker that makes local steps
stride      Stride, round by round
overlapped  CoCoD-SGD and Overlap-Local-SGD
strategies  settings and fleets that Hypothesis draws
compare     the same run on the virtual engine, and the comparison
spy         a worker that keeps a record of what was asked
"""

from tests.conformance.plain.compare import assert_same, batches, engine, updates
from tests.conformance.plain.draws import Draws, OwnData
from tests.conformance.plain.model import Model, Sgd, gradient_sum, loss, start, sum_at
from tests.conformance.plain.setting import AWKWARD, MESSAGE_BYTES, TASK, Result, Setting, Slow, Step
from tests.conformance.plain.strategies import drawn_settings, jittery_fleets, jobs

__all__ = [
    "AWKWARD",
    "MESSAGE_BYTES",
    "TASK",
    "Draws",
    "Model",
    "OwnData",
    "Result",
    "Setting",
    "Sgd",
    "Slow",
    "Step",
    "assert_same",
    "batches",
    "drawn_settings",
    "engine",
    "gradient_sum",
    "jittery_fleets",
    "jobs",
    "loss",
    "start",
    "sum_at",
    "updates",
]

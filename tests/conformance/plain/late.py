"""ABS-SGD, Pace-SGD, Pipe-SGD and ACCO: what is applied one update late.

A reference goes in two stages, because time does not depend on values. First the timeline: who computes how many
micro-batches until which sum is there. Then the mathematics, update by update, on the samples that the timeline gives
to each batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tests.conformance.plain.model import Model, added, loss, sum_at
from tests.conformance.plain.ring import Batch, Micro, Timeline, divided
from tests.conformance.plain.setting import Result, Setting, Step
from torch import Tensor


def lr_scale(rule: str, samples: int, setting: Setting) -> float:
    """η / η_ref for an update of this many samples."""
    share = samples / (setting.batch_size * setting.num_workers)
    return {"constant": 1.0, "linear": share, "sqrt": math.sqrt(share)}[rule]


def delayed(
    setting: Setting,
    micro: Micro = None,
    *,
    predict: str = "none",
    rule: str = "constant",
    warmup: int = 0,
    bound: Bound | None = None,
) -> Result:
    """ABS-SGD (`none`) and Pace-SGD (`own`, `share`)."""
    timeline, done = Timeline(setting, micro), 0
    while len(timeline.batches) < warmup and done < setting.samples:
        begin(timeline, bound, sums_seen=len(timeline.batches), wait=True)
        done += timeline.batches[-1].samples
    num_sync = len(timeline.batches)
    if done < setting.samples:
        begin(timeline, bound, sums_seen=num_sync)
    while done < setting.samples:
        # The sum of the batch before is under way, so what is known of paces is from the one before that.
        go_on(timeline, bound, sums_seen=len(timeline.batches) - 1)
        done += timeline.batches[-2].samples

    model, inputs, scale = Model(setting), timeline.inputs(), 1.0
    steps: list[Step] = []
    sums: list[list[Tensor]] = []
    for k in range(len(timeline.batches) + 1):
        if k < len(timeline.batches):  # batch k, at w or at a point ahead of it
            points = [model.weights] * setting.num_workers
            if k > num_sync and predict != "none":
                ahead = [guess(predict, rank, k - 1, sums, timeline.batches) for rank in range(setting.num_workers)]
                points = [model.peek(gradient, scale) for gradient in ahead]
            sums.append([sum_at(point, pieces) for point, pieces in zip(points, inputs[k], strict=True)])
        applied = k if k < num_sync else k - 1
        if applied >= len(steps):  # the update with the sum that is there by now
            batch = timeline.batches[applied]
            scale = lr_scale(rule, batch.samples, setting)
            model.step(added(sums[applied]) / batch.samples, batch.samples, scale)
            time = batch.summed if applied < num_sync else timeline.known(applied)
            steps.append(Step(time, batch.samples, int(applied > num_sync), loss(model.weights)))
    return Result(model.weights, steps)


@dataclass(frozen=True)
class Bound:
    """On the samples of a batch of all workers."""

    samples: int
    exact: bool = False
    """Whether every batch has that many, and not only at most."""


def begin(timeline: Timeline, bound: Bound | None, *, sums_seen: int, wait: bool = False) -> None:
    """A batch that no sum ends: one micro-batch of each worker, or the part of it that the bound allows."""
    setting = timeline.setting
    if bound is None:
        timeline.one_each(wait=wait)
        return
    parts = divided(bound.samples, setting, by_pace=sums_seen > 0)
    timeline.exactly(parts if bound.exact else [min(part, setting.micro) for part in parts], wait=wait)


def go_on(timeline: Timeline, bound: Bound | None, *, sums_seen: int) -> None:
    """A batch while a sum is under way."""
    if bound is None:
        timeline.until_summed()
        return
    parts = divided(bound.samples, timeline.setting, by_pace=sums_seen > 0)
    if bound.exact:
        timeline.exactly(parts)
    else:
        timeline.up_to(parts)


def guess(predict: str, rank: int, under_way: int, sums: list[list[Tensor]], batches: list[Batch]) -> Tensor:
    """ĝ_i = α_i·ḡ_i + (1 − α_i)·ḡ_last: the own part of the sum under way, and the last sum that is known."""
    own = sums[under_way][rank] / batches[under_way].sizes[rank]
    if predict == "own" or under_way == 0:
        return own
    last = batches[under_way - 1]
    alpha = last.sizes[rank] / last.samples
    return alpha * own + (1 - alpha) * added(sums[under_way - 1]) / last.samples


def pipelined(setting: Setting) -> Result:
    """Pipe-SGD: equal batches; the gradient at w_{t−1} is applied to w_t."""
    timeline, done = Timeline(setting), 0
    timeline.whole()
    while done < setting.samples:
        timeline.whole()
        done += timeline.batches[-2].samples
    model, inputs, steps = Model(setting), timeline.inputs(), []
    sums: list[Tensor] = []
    for k, batch in enumerate(timeline.batches):
        sums.append(added(sum_at(model.weights, pieces) for pieces in inputs[k]))
        if k > 0:
            model.step(sums[k - 1] / batch.samples, batch.samples)
            steps.append(Step(timeline.known(k - 1), batch.samples, int(k > 1), loss(model.weights)))
    model.step(sums[-1] / batch.samples, batch.samples)
    steps.append(Step(batch.summed, batch.samples, 1, loss(model.weights)))
    return Result(model.weights, steps)


def accumulated(setting: Setting, micro: Micro = None, *, rule: str = "constant", bound: Bound | None = None) -> Result:
    """ACCO: A_t at the estimate w̃_t, B_t at w_t; w̃_{t+1} = Opt(w_t, A_t) is not kept; w_{t+1} = Opt(w_t, A_t + B_t)."""
    timeline, done = Timeline(setting, micro), 0
    # Of a bound, A has the larger half.
    halves = [bound and replace(bound, samples=samples) for samples in halved(bound)]
    begin(timeline, halves[0], sums_seen=0)  # A_0
    while done < setting.samples:
        go_on(timeline, halves[1], sums_seen=len(timeline.batches) - 1)  # B_t
        go_on(timeline, halves[0], sums_seen=len(timeline.batches) - 1)  # A_{t+1}
        done += timeline.batches[-3].samples + timeline.batches[-2].samples
    model, inputs, steps = Model(setting), timeline.inputs(), []
    estimate, scale = model.weights, 1.0
    for first in range(0, len(timeline.batches), 2):
        a, both = timeline.batches[first], timeline.batches[first : first + 2]
        total = a_total = added(sum_at(estimate, pieces) for pieces in inputs[first])
        if len(both) == 2:
            total = a_total + added(sum_at(model.weights, pieces) for pieces in inputs[first + 1])
            estimate = model.peek(a_total / a.samples, scale)
        samples = sum(batch.samples for batch in both)
        scale = lr_scale(rule, samples, setting)
        model.step(total / samples, samples, scale)
        steps.append(Step(timeline.known(first + len(both) - 1), samples, int(first > 0), loss(model.weights)))
    return Result(model.weights, steps)


def halved(bound: Bound | None) -> tuple[int, int]:
    """The samples of A and of B."""
    samples = 0 if bound is None else bound.samples
    return math.ceil(samples / 2), samples // 2

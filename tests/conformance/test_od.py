"""OD-SGD against a second, plain statement of it, and what must hold of it."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.plain import (
    AWKWARD,
    MESSAGE_BYTES,
    Draws,
    Model,
    Setting,
    assert_same,
    drawn_settings,
    engine,
    gradient_sum,
    updates,
)
from tests.conformance.plain.od import Local, OneStepLate
from tests.conformance.plain.spy import spied
from torch import Tensor

from ownpace import make_algorithm
from ownpace.algorithms.od import OdSgd
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.events import Compute, Event, Generation, Update
from ownpace.fleet import Fleet, Machine, Network, ServerMachine, paces
from ownpace.tasks import Digits
from ownpace.testing import simulate

FORMS = ("server", "all-reduce")
both_forms = pytest.mark.parametrize("form", FORMS)

# Against the reference ---------------------------------------------------------------------------------------------


local_steps = st.builds(
    Local,
    kind=st.sampled_from(["plain", "compensated", "adaptive"]),
    lr=st.floats(0, 2),
    scale=st.sampled_from(["one", "share"]),
    momentum=st.sampled_from([0.0, 0.7]),
    weight_decay=st.sampled_from([0.0, 0.03]),
    compensation=st.sampled_from([0.2, 1.5]),
    decay=st.sampled_from([0.0, 0.8]),
)


@both_forms
@settings(max_examples=40)
@given(drawn_settings(most_lr=0.05, cosine=True, server_link=False), local_steps, st.integers(0, 6))
def test_workers_step_ahead_while_the_update_is_under_way(form, setting, local, warmup):
    if local.momentum:
        warmup = 0  # see test_the_local_momentum_knows_the_warm_up
    outcome, events = engine(setting, "od", form=form, warmup=warmup, **local.parameters())
    assert_same(outcome, events, OneStepLate(setting, local, warmup, form).run())


# The local step alone ----------------------------------------------------------------------------------------------

FOUR = Setting(paces=tuple(1000 + extra for extra in AWKWARD[:4]), samples=160, lr=0.1)


def point_by_hand(w: Tensor, moved: Tensor, g: Tensor, *, compensation: float, decay: float, scale: float) -> Tensor:
    """W_t − η_l(s·g + wd·W_t + λ(s·g)² ⊙ (W_t − W_{t−1}))."""
    return w - FOUR.lr * (scale * g + decay * w + compensation * (scale * g) ** 2 * moved)


def test_compensation_decay_and_scale_are_not_mistaken_for_each_other():
    algorithm, records = spied(
        "od", warmup=0, form="all-reduce", local="compensated", compensation=1.3, local_weight_decay=0.6, scale="share"
    )
    engine(FOUR, algorithm)
    for record in records.values():
        # x_3, out of W_2, W_1 and g_2; the parameters held while x_t is computed at are W_{t−1}.
        w, moved = record.held[3].double(), (record.held[3] - record.held[2]).double()
        g = record.sums[2].gradient.mean.double()
        for values in itertools.permutations((1.3, 0.6, 0.25)):
            x = point_by_hand(w, moved, g, **dict(zip(("compensation", "decay", "scale"), values, strict=True)))
            right = values == (1.3, 0.6, 0.25)
            assert torch.allclose(record.points[3].double(), x, rtol=1e-5, atol=1e-6) == right


@pytest.mark.parametrize("kind", ["compensated", "adaptive"])
@pytest.mark.parametrize("warmup", [0, 3])
def test_the_first_compensation_term_is_zero(kind, warmup):
    points = []
    for local in ("plain", kind):
        algorithm, records = spied("od", warmup=warmup, form="all-reduce", local=local, compensation=2.0)
        engine(FOUR, algorithm)
        points.append(records[0].points)
    plain, other = points
    for t in range(warmup + 2):  # the last of them is the first that is computed after a local step
        assert torch.equal(plain[t], other[t])
    assert not torch.equal(plain[warmup + 1], records[0].held[warmup + 1])
    assert not torch.equal(plain[warmup + 2], other[warmup + 2])


@pytest.mark.parametrize(("scale", "local_lr"), [("one", 1.0), ("share", 4.0)])
def test_the_local_weights_are_the_next_global_ones_on_average(scale, local_lr):
    """μ = 0, wd = 0, s·η_l = η: mean_k x_{t+1}^k = W_{t+1}, whatever the workers' paces."""
    algorithm, records = spied("od", warmup=0, form="all-reduce", scale=scale, local_lr=local_lr)
    engine(replace(FOUR, paces=(4003.0, 2005.0, 1007.0, 1009.0)), algorithm)
    num = len(records[0].steps)
    assert num > 5
    for t in range(num - 1):
        points = torch.stack([records[rank].points[t + 1] for rank in range(4)])
        torch.testing.assert_close(points.mean(0), records[0].steps[t].after, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(points[0], points[1], rtol=1e-5, atol=1e-6)


# Special cases -----------------------------------------------------------------------------------------------------


def values(name: str, setting: Setting, *, sampling: str = "queue", **parameters: object) -> Tensor:
    return engine(setting, name, parameters, sampling=sampling)[0].model["at"]


@both_forms
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_the_warm_up_is_sync_bit_for_bit(form, micro_batch):
    setting = Setting(
        paces=(4003.0, 2005.0, 1007.0, 1009.0),
        samples=160,
        micro_batch=micro_batch,
        lr=0.05,
        momentum=0.9,
        weight_decay=0.1,
        cosine=True,
    )
    # By shards: from a queue, workers that are answered one after the other take pieces in another order.
    outcome, events = engine(setting, "od", form=form, warmup=10, sampling="shards")
    sync = values("sync", setting, sampling="shards")
    assert torch.equal(outcome.model["at"], sync)
    assert [update.staleness for update in updates(events)] == [0] * 10
    # An iteration less of warm-up is the first that is late: the test would notice.
    assert not torch.equal(values("od", setting, form=form, warmup=8, sampling="shards"), sync)


@both_forms
@pytest.mark.parametrize("warmup", [0, 3])
def test_one_worker_without_momentum_is_sequential_sgd(form, warmup):
    setting = Setting(paces=(1000.0,), lr=0.2, cosine=True)
    ours = values("od", setting, form=form, warmup=warmup)
    expected = sequential(setting)
    torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-6)


def sequential(setting: Setting) -> Tensor:
    """Plain SGD of one worker, with as many updates as OD-SGD makes: one is still under way at the end."""
    model, draws = Model(setting), Draws(setting.seed)
    for _ in range(math.ceil(setting.samples / setting.batch_size) + 1):
        gradient = gradient_sum(model.weights, draws.take(setting.batch_size)) / setting.batch_size
        model.step(gradient, setting.batch_size)
    return model.weights


MOMENTUM = Setting(paces=(1000.0,), lr=0.05, momentum=0.9, weight_decay=0.1)


@both_forms
def test_one_worker_with_momentum_is_sequential_if_its_local_step_knows_it(form):
    expected = sequential(MOMENTUM)
    plain = values("od", MOMENTUM, form=form, warmup=0, local_weight_decay=0.1)
    knowing = values("od", MOMENTUM, form=form, warmup=0, local_weight_decay=0.1, local_momentum=0.9)
    assert (plain.double() - expected).abs().max() > 0.05
    torch.testing.assert_close(knowing.double(), expected, rtol=1e-4, atol=1e-5)


@both_forms
def test_the_local_momentum_knows_the_warm_up(form):
    knowing = values("od", MOMENTUM, form=form, warmup=5, local_weight_decay=0.1, local_momentum=0.9)
    torch.testing.assert_close(knowing.double(), sequential(MOMENTUM), rtol=1e-4, atol=1e-5)


@both_forms
def test_without_a_local_step_it_is_pipe_sgd(form):
    """With samples of one's own, timing does not matter; the all-reduce form takes the same time, too."""
    job: dict[str, Any] = {
        "fleet": paces(4003, 2005, 1007, 1009, jitter=0.2),
        "sampling": "iid",
        "lr": 0.02,
        "momentum": 0.9,
        "weight_decay": 0.1,
        "samples": 800,
        "micro_batch": 3,
    }
    ours, ours_events = simulate(make_algorithm("od", {"warmup": 0, "local_lr": 0, "form": form}), **job)
    pipe, pipe_events = simulate(make_algorithm("pipe"), **job)
    assert torch.equal(ours.model["at"], pipe.model["at"])
    if form == "all-reduce":
        assert [event.t for event in updates(ours_events)] == [event.t for event in updates(pipe_events)]
    stepping, _ = simulate(make_algorithm("od", {"warmup": 0, "form": form}), **job)
    assert not torch.allclose(stepping.model["at"], pipe.model["at"], rtol=1e-3)


@pytest.mark.parametrize("by_layer", [False, True])
@pytest.mark.parametrize("local", ["plain", "adaptive"])
def test_several_servers_do_what_one_does(local, by_layer):
    """Each takes a part of the steps; a local step is of all layers."""

    def trained(*bandwidths: float) -> dict[str, Tensor]:
        servers = tuple(ServerMachine(bandwidth_bytes_per_s=bandwidth) for bandwidth in bandwidths)
        parameters = {"warmup": 2, "local": local, "compensation": 2.0, "local_momentum": 0.5, "by_layer": by_layer}
        outcome, _ = simulate(
            make_algorithm("od", parameters),
            replace(paces(4003, 2005, 1007), server=servers),
            task=Digits(),
            samples=480,
            momentum=0.5,
            sampling="shards",  # from a queue, who takes which samples would be a matter of time
        )
        assert outcome.error is None
        return outcome.model

    one, three = trained(1e9), trained(1e7, 1e9, 1e8)
    for name, values in one.items():
        torch.testing.assert_close(three[name], values, rtol=1e-4, atol=1e-6)


# Time --------------------------------------------------------------------------------------------------------------


def periods(events: list[Event]) -> list[float]:
    """From update to update, once everything is under way."""
    return [b.t - a.t for a, b in itertools.pairwise(updates(events)[5:-1])]


@pytest.mark.parametrize(("compute_s", "communicate_s"), [(1.0, 0.25), (1.0, 0.875), (0.25, 1.0), (1.0, 1.0)])
def test_a_period_is_the_longer_of_computing_and_communicating(compute_s, communicate_s):
    setting = Setting(paces=(4 / compute_s,) * 4, samples=400, lr=0.03).with_ring(communicate_s)
    _, events = engine(setting, "od", form="all-reduce", warmup=0)
    assert periods(events) == pytest.approx([max(compute_s, communicate_s)] * len(periods(events)))
    _, events = engine(setting, "od", form="all-reduce", warmup=1000)
    assert periods(events) == pytest.approx([compute_s + communicate_s] * len(periods(events)))


@pytest.mark.parametrize(("compute_s", "message_s", "latency_s"), [(1.0, 0.1, 0.0), (1.0, 0.01, 0.4), (0.1, 0.1, 0.3)])
def test_with_a_server_nobody_waits_for_what_takes_less_than_computing(compute_s, message_s, latency_s):
    setting = Setting(
        paces=(4 / compute_s,) * 4, samples=400, lr=0.03, bandwidth=MESSAGE_BYTES / message_s, latency=latency_s
    )
    communicate_s = 2 * (4 * message_s + latency_s)
    _, events = engine(setting, "od", warmup=0)
    late = sum(periods(events)) / len(periods(events))
    if compute_s >= communicate_s:
        assert late == pytest.approx(compute_s)
    else:  # the pushes of one iteration may overlap with the answers of the one before: links carry both ways
        assert compute_s < late < communicate_s
    # Synchronously: four answers one after the other, then computing, then the push of whoever was answered last.
    _, events = engine(setting, "od", warmup=1000)
    together = compute_s + 5 * message_s + 2 * latency_s
    assert periods(events) == pytest.approx([together] * len(periods(events)))


def most_ahead(form: str, fleet: Fleet) -> int:
    """By how many iterations anybody was ever ahead of the slowest, when beginning one."""
    _, events = simulate(make_algorithm("od", {"warmup": 0, "form": form}), fleet, samples=400, lr=0.01)
    computed = [event for event in events if isinstance(event, Compute)]
    ahead = 0
    for event in computed:
        mine = sum(other.who == event.who and other.t < event.t for other in computed)
        done = Counter({worker.name: 0 for worker in fleet.workers})
        done.update(other.who for other in computed if other.until <= event.t + 1e-12)
        ahead = max(ahead, mine - min(done.values()))
    return ahead


@both_forms
@settings(max_examples=20)
@given(
    speeds=st.lists(st.floats(200, 4000), min_size=2, max_size=5),
    jitter=st.sampled_from([0.0, 0.5]),
    latency_s=st.sampled_from([0.0, 1e-2]),
)
def test_nobody_is_more_than_one_iteration_ahead_of_the_slowest(form, speeds, jitter, latency_s):
    machines = tuple(Machine(samples_per_s=speed, jitter=jitter) for speed in speeds)
    assert most_ahead(form, Fleet(machine=machines, network=Network(latency_s=latency_s))) <= 1


@both_forms
def test_but_one_iteration_ahead_is_what_the_fast_are(form):
    assert most_ahead(form, paces(4000, 1000, jitter=0.0)) == 1


# The length of the warm-up ------------------------------------------------------------------------------------------


def in_time(events: list[Event]) -> int:
    """Updates whose gradients were not late."""
    return sum(event.staleness == 0 for event in events if isinstance(event, Update))


@both_forms
def test_a_warm_up_may_be_a_share_of_the_run(form):
    """40 updates of 4 times 8 samples: a tenth are 4, and then the first gradient of those that run ahead."""
    _, events = simulate(make_algorithm("od", {"warmup": "0.1", "form": form}), samples=1280, lr=0.01)
    assert in_time(events) == 4 + 1
    with pytest.raises(InputError, match="a share of the run, but nothing says how many samples"):
        simulate(make_algorithm("od", {"warmup": 0.1, "form": form}), seconds=0.5, lr=0.01)


@pytest.mark.parametrize("name", ["od", "pace"])
def test_a_run_warms_up_once_whatever_its_checkpoints(name):
    _, events = simulate(
        make_algorithm(name, {"warmup": 6}),
        samples=2000,
        lr=0.01,
        checkpoint_every=500,
        on_checkpoint=lambda state: None,
    )
    generations = [event.number for event in events if isinstance(event, Generation)]
    assert len(generations) >= 3
    assert in_time(events) == 6 + 1 + len(generations)  # the first gradient of each generation is in time, too


def test_a_run_that_was_mostly_warm_up_says_so():
    assert OdSgd().remark(225) is not None
    assert "25 of 225 updates were OD-SGD's" in str(OdSgd().remark(225))
    assert "0 of 100 updates" in str(OdSgd().remark(100))
    assert OdSgd().remark(400) is None
    assert OdSgd(warmup=0.9).remark(100) is None  # whoever gives a share knows
    assert OdSgd(warmup=0.05).remark(225) is None
    assert OdSgd(warmup=0).remark(225) is None
    assert "0 of 225 updates were OD-SGD's" in str(OdSgd(warmup=0.999).remark(225))
    assert "give warmup as a smaller share" in str(OdSgd(warmup=0.999).remark(225))
    assert "9 of 100 updates" in str(OdSgd(warmup=0.91).remark(100))
    with pytest.raises(InputError, match="it must be a whole number of updates, or below 1"):
        OdSgd(warmup=1.5)

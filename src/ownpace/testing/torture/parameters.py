"""What must hold of the parameters: of replicas, of updates, and of the samples that are in them."""

from __future__ import annotations

import torch
from torch import Tensor

from ownpace.core.contract.events import Compute, Fault, Generation
from ownpace.core.learning.sampling import Permutations
from ownpace.core.learning.seeds import Purpose
from ownpace.testing.torture.evidence import Complaints, Evidence


def keeps_replicas_equal(run: Evidence) -> Complaints:
    """Workers begin each generation with the same parameters; where replicas are promised, they end so."""
    for number, begun in run.books.began.items():
        if any(version != begun[0][1] for _, version, _ in begun):
            yield f"generation {number} begins with versions {sorted({version for _, version, _ in begun})}"
        elif any(not torch.equal(values, begun[0][2]) for _, _, values in begun):
            yield f"generation {number} begins with different parameters of one version"
    if run.scenario.subject.algorithm.replicas_identical and run.error is None and not run.broken_off:
        last = max(run.books.began)
        ends = run.books.ended[last]
        if len(ends) != len(run.books.began[last]):
            yield f"{len(ends)} of {len(run.books.began[last])} workers came to their end"
        if any(not torch.equal(values, ends[0][2]) for _, _, values in ends):
            yield "replicas end with different parameters"


def loses_no_update(run: Evidence) -> Complaints:
    """An update stays, unless all who made it died; and records say how many did not."""
    yield from run.books.complaints
    told = {event.number: event.lost for event in run.of(Generation)}
    servers = run.most_servers
    for number, lost in run.books.lost.items():
        if servers < 2 and lost != told.get(number, 0):
            yield f"generation {number} began without {lost} updates, and its record says {told.get(number, 0)}"
        if lost and servers and not run.killed("server"):
            yield f"generation {number} began without {lost} updates, but no server had died"


def applies_every_sample_once(run: Evidence) -> Complaints:
    """The weights hold every sample once an epoch: exactly those that the queue has dealt, each in one update."""
    scenario = run.scenario
    if not scenario.counts:
        return
    total, counts = _counts(run, run.values)
    made = sum(entry.samples for (shard, _), entry in run.books.updates.items() if shard == 0)
    for layer in range(len(counts)):
        if total[layer] != counts[layer].sum():
            yield f"layer {layer} holds {counts[layer].sum():g} samples and counts {total[layer]:g}"
    # The first layer is the first server's; what others hold is looked at below.
    # One that ended while a server was gone has its snapshot in the model, and no generation that says so.
    if total[0] != made and not (run.error is not None and run.killed("server")):
        yield f"the first layer counts {total[0]:g} samples, and updates had {made}"
    most = _learnt(run)
    # Of one whose budget was spent before, the sums are of that moment.
    broken_off = run.error is not None and run.end.sums.seconds >= run.end.t
    # Of several servers, others than the first may have learnt more by then.
    if broken_off and scenario.job.servers and not total[0] <= run.end.sums.samples <= most.sum():
        yield f"the sums count {run.end.sums.samples} samples, and the model holds {total[0]:g} to {most.sum():g}"
    if scenario.job.sampling == "queue":
        yield from _as_dealt(run, most, counts.amin(0))


def _counts(run: Evidence, values: Tensor) -> tuple[Tensor, Tensor]:
    """Of each layer, how many samples it counts, and how often it holds each."""
    counts = -values.view(-1, run.books.width or 0)
    return counts[:, -1], counts[:, :-1]


def _learnt(run: Evidence) -> Tensor:
    """How often each sample is in the model, in any layer of it.

    Where a server died or a link was cut, others may hold what never got through. Which of them do is another matter in
    each generation: one may lack a sample of the first epoch, and another the same sample of the second.
    """
    return _by_generation(run).amax(1).sum(0)


def _by_generation(run: Evidence) -> Tensor:
    """How often each sample came into each layer, in each generation."""
    begun = [workers[0][2] for _, workers in sorted(run.books.began.items()) if workers]
    of_layers = torch.stack([_counts(run, values)[1] for values in [*begun, run.values]])
    return of_layers.diff(dim=0)


def _as_dealt(run: Evidence, most: Tensor, least: Tensor) -> Complaints:
    scenario = run.scenario
    size = len(most)
    cut = any(fault.what == "cut" for fault in run.of(Fault))
    # Of servers that were resumed as one, too: it goes on from layers that hold different samples.
    parted = run.most_servers > 1 and (cut or run.killed("server") or run.may_part)
    order = Permutations(size, scenario.job.seed, Purpose.QUEUE)
    dealt = int(most.sum())
    if scenario.subject.drops_samples or run.error is not None or run.broken_off:
        # Some had been dealt whose gradients were never ready.
        made = sum(event.samples for event in run.of(Compute)) + 2 * scenario.job.batch_size * 9
        expected = torch.bincount(order.indices(0, max(made, 1)), minlength=size)
        if bool((most > expected).any()):
            yield f"a sample was applied {int((most - expected).max())} times more often than it was dealt"
        return
    # Where loading takes time, one that loads quickly may get the batch that it never learns from before a slow one has
    # loaded the last that it does. No more than that: all have loaded a batch when an update is made of it.
    spare = run.most_workers * scenario.job.batch_size if scenario.subject.loads_ahead else 0
    at_least, at_most = (_drawn(order, size, dealt + more) for more in (-spare, spare))
    latest = _by_generation(run)[-1]
    # Whatever came before, one server learns from whole gradients.
    whole = len(scenario.job.servers) < 2
    if (not parted and not torch.equal(most, least)) or (whole and not torch.equal(latest.amax(0), latest.amin(0))):
        yield "layers hold different samples"
    twice, never = int((most > at_most).sum()), int((most < at_least).sum())
    if twice or never:
        yield f"of {dealt} samples, {twice} were applied too often and {never} too seldom"


def _drawn(order: Permutations, size: int, samples: int) -> Tensor:
    """How often each sample is among the first `samples` of the order."""
    return torch.bincount(order.indices(0, samples), minlength=size) if samples > 0 else torch.zeros(size)


def is_what_a_plain_loop_makes(run: Evidence) -> Complaints:
    """The updates that stand, made one after the other by torch's own optimizer, give the same parameters."""
    scenario = run.scenario
    # One that was broken off ends with what is left of the updates in the books.
    if scenario.counts or scenario.subject.kind == "averages" or run.broken_off:
        return
    shards = sorted({shard for shard, _ in run.books.updates})
    parts = [_replayed(run, shard) for shard in shards]
    if parts and not torch.allclose(torch.cat(parts), run.values, rtol=1e-3, atol=1e-5):
        off = float((torch.cat(parts) - run.values).abs().max())
        yield f"a plain loop over the {len(run.books.updates)} updates ends {off:.3g} away"


def _replayed(run: Evidence, shard: int) -> Tensor:
    versions = sorted(version for which, version in run.books.updates if which == shard)
    spec = run.scenario.job.optimizer
    first = run.books.updates[shard, versions[0]]
    point = torch.nn.Parameter(torch.ones_like(first.mean))
    memories: dict[int, torch.optim.Optimizer] = {}
    for version in versions:
        entry = run.books.updates[shard, version]
        optimizer = memories.setdefault(entry.memory, spec.build([point]))
        optimizer.param_groups[0]["lr"] = spec.lr * entry.lr_scale
        point.grad = entry.mean
        optimizer.step()
    return point.detach()

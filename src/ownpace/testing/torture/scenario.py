"""A fleet, an algorithm and what happens to them, drawn from a seed; and the same in words."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace

from ownpace.core.learning.dataset_samples import samples_to_learn
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.core.learning.task import Task
from ownpace.engines import Job
from ownpace.fleet import Between, Fleet, Machine, Network, PlannedFault, ServerMachine, Slowdown
from ownpace.testing.torture.draws import Draws
from ownpace.testing.torture.faults import draw_faults
from ownpace.testing.torture.moments import sharpen
from ownpace.testing.torture.subjects import TortureSubject, draw_subject
from ownpace.testing.torture.tasks import Ballots, Springs


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is run."""

    seed: int
    subject: TortureSubject
    job: Job
    counts: bool
    """Whether the weights count samples; otherwise an optimizer with a memory learns something."""
    resumes: float | None = None
    """Which of its checkpoints the run is resumed from, as a share of their number (None: it is not)."""
    other_fleet: Fleet | None = None
    """What it is resumed on, if not on the same."""
    timed: bool = False
    """Whether its time is simulated alone, too."""

    @property
    def faults(self) -> list[str]:
        """The kinds of what happens, for tables."""
        job = self.job
        kinds = [_kind(fault) for fault in job.fleet.fault]
        if any(machine.slowdown for machine in job.fleet.machine):
            kinds.append("slow-down")
        if job.checkpoint_every is not None:
            resumed = "resume" if self.other_fleet is None else "resume elsewhere"
            kinds.append("checkpoints" if self.resumes is None else resumed)
        return sorted(set(kinds)) or ["none"]

    def __str__(self) -> str:
        """What was drawn, in words."""
        job, fleet = self.job, self.job.fleet
        network = fleet.network
        lines = [
            f"{self.subject.algorithm}",
            f"workers: {', '.join(_machine(worker.name, worker.machine) for worker in fleet.workers)}",
            f"network: {network.bandwidth_bytes_per_s:g} bytes/s, latency {network.latency_s:g} s"
            + (f"; between sites {_between(network.between)}" if network.between is not None else "")
            + (f"; {len(job.servers)} servers" if job.servers else ""),
            f"{_end(job)}; batches of {job.batch_size} in pieces of {job.micro_batch or job.batch_size}; "
            f"{len(samples_to_learn(job.task))} samples of data, sampling {job.sampling}; "
            + ("the weights count samples" if self.counts else f"{job.optimizer.name} learns"),
        ]
        if job.checkpoint_every is not None:
            resumed = "" if self.resumes is None else f", resumed at {self.resumes:.0%} of them"
            lines.append(f"checkpoints every {job.checkpoint_every} samples{resumed}")
        if self.other_fleet is not None:
            machines = ", ".join(_machine(worker.name, worker.machine) for worker in self.other_fleet.workers)
            lines.append(f"resumed on {machines}; {len(self.other_fleet.server)} servers")
        lines.append(f"on failure {job.on_failure}, {job.min_workers} to {job.max_workers or 'all'} workers")
        if self.timed:
            lines.append("and once more without gradients")
        lines += [f"  {_fault(fault)}" for fault in sorted(fleet.fault, key=lambda fault: fault.at_s)]
        return "\n".join(lines)


def _machine(name: str, machine: Machine) -> str:
    words = f"{name} {machine.samples_per_s:g}/s"
    words += f" ±{machine.jitter:g}" if machine.jitter else ""
    words += f" loads {machine.io_s_per_sample:g} s" if machine.io_s_per_sample else ""
    words += f" at {machine.site}" if machine.site else ""
    return words + "".join(f" {slow.factor:g}× slower {slow.from_s:g}–{slow.until_s:g} s" for slow in machine.slowdown)


def _between(between: Between) -> str:
    return f"{between.bandwidth_bytes_per_s:g} bytes/s, latency {between.latency_s:g} s"


def _kind(fault: PlannedFault) -> str:
    if fault.server is not None:
        return "server"
    return fault.kind if fault.back_at_s is None or fault.kind == "pause" else f"{fault.kind}, back"


def _end(job: Job) -> str:
    return f"{job.samples} samples" if job.samples is not None else f"{job.seconds:g} s"


def _fault(fault: PlannedFault) -> str:
    fields = [(field.name, getattr(fault, field.name)) for field in dataclasses.fields(fault)]
    return ", ".join(f"{name} {value}" for name, value in fields if value is not None)


def draw_scenario(seed: int, algorithm: TortureSubject | str | None = None, num_workers: int | None = None) -> Scenario:
    """What is run with this seed: with any of our algorithms, with that of a name, or with a given one."""
    draws = Draws(seed)
    num_workers = num_workers or draws.one_of(1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 6, 7, 8)
    subject = algorithm if isinstance(algorithm, TortureSubject) else draw_subject(draws, num_workers, algorithm)
    # What a gradient was made of cannot be seen in it any more once it is corrected.
    counts = subject.kind != "corrected" and draws.chance(0.75)
    # Not much less than what it takes to notice a death: the others may compute as long as they like meanwhile.
    takes_s = draws.between(1, 200)
    job = draw_faults(draws, _job(draws, subject, counts, num_workers, takes_s), takes_s)
    if job.fleet.fault and draws.chance(0.4):
        job = sharpen(draws, job)
    resumes = draws.share() if job.checkpoint_every is not None and draws.chance(0.6) else None
    scenario = Scenario(
        seed=seed,
        subject=subject,
        job=job,
        counts=counts,
        resumes=resumes,
        other_fleet=_other_fleet(draws, job) if resumes is not None and draws.chance(0.4) else None,
        timed=draws.chance(0.1),
    )
    return _at_sites(draws, scenario) if draws.chance(0.2) else scenario


def _at_sites(draws: Draws, scenario: Scenario) -> Scenario:
    """The same with its machines at two or three sites, and something between these."""
    num_sites, network = draws.number(2, 3), scenario.job.fleet.network
    between = Between(
        bandwidth_bytes_per_s=max(1.0, network.bandwidth_bytes_per_s * draws.between(0.01, 2)),
        latency_s=draws.one_of(0.0, network.latency_s * draws.between(0.1, 30)),
    )

    def moved(fleet: Fleet) -> Fleet:
        machines = [replace(machine, site="abc"[i % num_sites]) for i, machine in enumerate(fleet.machine)]
        servers = [replace(server, site="abc"[i % 3]) for i, server in enumerate(fleet.server)]
        return replace(
            fleet, machine=tuple(machines), server=tuple(servers), network=replace(fleet.network, between=between)
        )

    other = scenario.other_fleet
    job = replace(scenario.job, fleet=moved(scenario.job.fleet))
    return replace(scenario, job=job, other_fleet=None if other is None else moved(other))


def _job(draws: Draws, subject: TortureSubject, counts: bool, num_workers: int, takes_s: float) -> Job:
    """An undisturbed run that takes about so long."""
    data = draws.number(30, 90)
    task: Task = Ballots(num_samples=data) if counts else Springs(num_samples=data)
    batch = draws.one_of(1, 2, 3, 4, 6, 8)
    samples = min(draws.number(3, 25) * batch * num_workers, 300)
    paces = _paces(draws, num_workers, samples / takes_s)
    network = _network(draws, task, batch / max(paces))
    servers = draws.number(0, 3) if subject.algorithm.has_servers else 0
    by_time = draws.chance(0.15)
    return Job(
        algorithm=subject.algorithm,
        task=task,
        fleet=Fleet(
            machine=tuple(_drawn_machine(draws, pace, takes_s) for pace in paces),
            network=network,
            server=tuple(_server(draws, network) for _ in range(servers)),
        ),
        optimizer=OptimizerSpec(lr=1.0) if counts else _optimizer(draws),
        batch_size=batch,
        micro_batch=draws.number(1, batch) if draws.chance(0.4) else None,
        samples=None if by_time else samples,
        seconds=takes_s * draws.between(0.3, 2) if by_time else None,
        eval_every=samples * 10,
        seed=draws.number(0, 1000),
        sampling=draws.one_of("queue", "queue", "queue", "queue", "iid", "shards"),
        checkpoint_every=draws.number(1, samples) if draws.chance(0.35) else None,
    )


def _paces(draws: Draws, num_workers: int, total: float) -> list[float]:
    kind = draws.one_of("equal", "two", "any", "one slow")
    paces = [1.0] * num_workers
    if kind == "two":
        paces = [draws.one_of(1.0, 4.0) for _ in paces]
    elif kind == "any":
        paces = [draws.between(1, 10) for _ in paces]
    elif kind == "one slow":
        paces = [30.0] * (num_workers - 1) + [1.0]
    return [float(f"{total * pace / sum(paces):.4g}") for pace in paces]


def _drawn_machine(draws: Draws, pace: float, takes_s: float) -> Machine:
    slowdown: tuple[Slowdown, ...] = ()
    if draws.chance(0.15):
        begin = takes_s * draws.share()
        end = begin + takes_s * draws.between(0.05, 1)
        slowdown = (Slowdown(from_s=begin, until_s=end, factor=draws.between(1.5, 50)),)
    return Machine(
        samples_per_s=pace,
        jitter=draws.one_of(0.0, 0.0, 0.1, 0.5),
        io_s_per_sample=draws.between(0.05, 2) / pace if draws.chance(0.15) else 0.0,
        slowdown=slowdown,
    )


def _network(draws: Draws, task: Task, batch_s: float) -> Network:
    # From links that nobody notices to sums that take ten times as long as a batch.
    nbytes = sum(parameter.nbytes for parameter in task.model().parameters())
    return Network(
        bandwidth_bytes_per_s=max(1.0, nbytes / (batch_s * draws.between(1e-3, 10))),
        latency_s=draws.one_of(0.0, batch_s * draws.between(1e-3, 1)),
    )


def _server(draws: Draws, network: Network) -> ServerMachine:
    if draws.chance(0.7):
        return ServerMachine()
    return ServerMachine(bandwidth_bytes_per_s=max(1.0, network.bandwidth_bytes_per_s * draws.between(0.1, 10)))


def _other_fleet(draws: Draws, job: Job) -> Fleet:
    """Some of the machines, or more of them; and as many servers as anyone likes, where weights can show that."""
    machines = list(job.fleet.machine)
    if draws.chance(0.5):
        machines = machines[: draws.number(1, len(machines))]
    elif _is_large_enough(job, len(machines) + 1):
        machines.append(machines[0])
    known = {worker.name for worker in Fleet(machine=tuple(machines)).workers}
    servers = job.fleet.server
    if servers and isinstance(job.task, Ballots):
        servers = tuple(ServerMachine() for _ in range(draws.number(1, 3)))
    known |= {f"server-{number}" for number in range(max(1, len(servers)))}
    fault = tuple(fault for fault in job.fleet.fault if fault.worker in known)
    return replace(job.fleet, machine=tuple(machines), server=servers, fault=fault)


def _is_large_enough(job: Job, num_workers: int) -> bool:
    """Whether a bound on an update's batch leaves a sample for every worker."""
    settings = vars(job.algorithm)
    bound = settings.get("max_batch") or settings.get("target_batch")
    return not bound or bound >= 2 * num_workers


def _optimizer(draws: Draws) -> OptimizerSpec:
    if draws.chance(0.5):
        return OptimizerSpec(name="adamw", lr=0.01, weight_decay=0.01)
    return OptimizerSpec(lr=0.01, momentum=draws.one_of(0.0, 0.5, 0.9))

"""`ownpace.join`: how a script becomes one of a fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ownpace.algorithms import DEFAULT, make_algorithm
from ownpace.core.contract import events
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import unknown
from ownpace.core.settings import positive
from ownpace.drop_in.joined import Joined
from ownpace.engines.job import OnProgress
from ownpace.engines.process.meet.environment import default_timeout_s
from ownpace.engines.process.run.opening import FleetOptions


def join(
    algorithm: str | Algorithm = DEFAULT,
    *,
    parameters: Mapping[str, object] | None = None,
    servers: int | Sequence[int] = 1,
    backend: str | None = None,
    seed: int = 0,
    detail: bool = False,
    on_event: events.Emit | None = None,
    on_progress: OnProgress | None = None,
    timeout_s: float | None = None,
    on_failure: Literal["continue", "stop"] = "continue",
    min_workers: int = 1,
    quiet: bool = False,
) -> Joined:
    """Join the other processes that torchrun started; alone, be a fleet of one.

    Args:
        algorithm: A name (`ownpace list` describes them), `auto` (choose for me), or an algorithm of your own, or where
            it is: `my.py:Patient`.
        parameters: Those of the algorithm of that name.
        servers: Where the algorithm has parameter servers: how many, on the first host; or the host of each.
        backend: `gloo` or `nccl` (None: nccl where every worker of a host has a GPU of its own).
        seed: Of the order of the samples.
        detail: Record every computation, transfer and wait, not only sums.
        on_event: Gets every event, on rank 0 (`core.contract.events`).
        on_progress: Called now and then on rank 0 with samples, paces and busy shares.
        timeout_s: How long to wait for the others at the start (None: what OWNPACE_TIMEOUT_S says, or two minutes).
        on_failure: When a rank dies: `continue` without it, or `stop`. Rank 0 cannot be done without.
        min_workers: End the run if fewer workers than this are left.
        quiet: Do not say at the end, on rank 0 and standard error, how many samples and updates there were.
    """
    if isinstance(algorithm, str):
        algorithm = make_algorithm(algorithm, parameters)
    if backend not in (None, "gloo", "nccl"):
        raise unknown("backend", str(backend), ("gloo", "nccl"))
    hosts = [0] * servers if isinstance(servers, int) else list(servers)
    timeout_s = default_timeout_s() if timeout_s is None else timeout_s
    positive(servers=len(hosts), timeout_s=timeout_s, min_workers=min_workers)
    if on_failure not in ("continue", "stop"):
        raise unknown("on_failure", str(on_failure), ("continue", "stop"))
    failing = on_failure, min_workers
    options = FleetOptions(algorithm, hosts, backend, seed, detail, on_event, on_progress, timeout_s, *failing)
    return Joined(options, quiet=quiet)

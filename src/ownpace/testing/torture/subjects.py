"""Every algorithm with parameters drawn at random, and what must hold of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ownpace.algorithms import ALGORITHMS, make_algorithm
from ownpace.core.contract.algorithm import Algorithm
from ownpace.testing.torture.draws import Draws

Kind = Literal["sums", "averages", "corrected"]


@dataclass(frozen=True, kw_only=True)
class TortureSubject:
    """An algorithm to be tortured, and what may be expected of it."""

    algorithm: Algorithm
    name: str
    kind: Kind = "sums"
    """What an update is: a sum of gradients, perhaps times a factor; an average of where workers got alone; or a
    gradient that is corrected, which no longer shows what it was made of."""
    most_stale: int | None = None
    """The most updates that a gradient may be late (None: there is no bound)."""
    most_ahead: int | None = None
    """By how many batches a worker may be ahead of the slowest when it begins another (None: no bound)."""
    total_weight: float | None = 1.0
    """Of averages: what the weights of all workers add up to (None: an average is more than a weighted sum)."""
    goes_on: bool = False
    """Whether workers go on alone while the sum of what they did is under way."""
    drops_samples: bool = False
    loads_ahead: bool = False
    """Whether workers load their next batch before an update is made of the one before: the last one for nothing."""
    ends_by_itself: bool = False


Draw = Callable[[Draws, int], dict[str, object]]
"""Parameters for this many workers."""


_WITH_SERVERS = ("grouping", "async", "stale", "dc-async", "staleness-aware", "od")


def draw_subject(draws: Draws, num_workers: int, only: str | None = None) -> TortureSubject:
    """One of the algorithms, or a named one, with parameters for this many workers."""
    name = only or draws.one_of(*ALGORITHMS)
    parameters = _PARAMETERS[name](draws, num_workers)
    if name in _WITH_SERVERS and parameters.get("form") != "all-reduce" and draws.aside(0.4):
        parameters["by_layer"] = True
    if name == "sync" and draws.aside(0.4):
        parameters["via"] = "servers"
    if name == "layered" and draws.aside(0.4):
        parameters["groups"] = None  # the sites, where there are several
    algorithm = make_algorithm(name, parameters)
    return described(algorithm, name)


def described(algorithm: Algorithm, name: str) -> TortureSubject:
    """What may be expected of one of our algorithms."""
    settings = vars(algorithm)
    kind: Kind = "averages" if name in _AVERAGES else "sums"
    if settings.get("compensation") and name == "dc-async":
        kind = "corrected"
    total_weight: float | None = 1.0
    if "outer_lr" in settings:
        total_weight = settings["outer_lr"] if settings["outer_momentum"] == 0 else None
    if name == "overlap-local":
        total_weight = None
    return TortureSubject(
        algorithm=algorithm,
        name=name,
        kind=kind,
        most_stale=_MOST_STALE.get(name),
        most_ahead=settings.get("staleness"),
        total_weight=total_weight,
        goes_on=name in _GO_ON,
        drops_samples=name == "backup",
        loads_ahead=name == "layered",
        ends_by_itself=settings.get("rounds") is not None,
    )


_GO_ON = ("stride", "cocod", "overlap-local")
_AVERAGES = ("local", "diloco", "wp", "simuparallel", *_GO_ON)
_MOST_STALE = {
    **dict.fromkeys(("sync", "balanced", "layered", "backup", "local", "diloco", "wp", "simuparallel"), 0),
    **dict.fromkeys(("pace", "abs", "acco", "pipe", "od", *_GO_ON), 1),
}


def _varying(draws: Draws, num_workers: int) -> dict[str, object]:
    most: dict[str, object] = draws.one_of(
        {},
        {"max_batch": 0},
        {"max_batch": 2 * num_workers * draws.number(1, 6)},
        {"target_batch": 2 * num_workers * draws.number(1, 3)},
    )
    return {
        **most,
        "micro": draws.one_of("fixed", "equal-time"),
        "lr_rule": draws.one_of("constant", "constant", "linear", "sqrt", "adascale"),
        "smoothing": draws.one_of(0.1, 0.3, 1.0),
    }


def _pace(draws: Draws, num_workers: int) -> dict[str, object]:
    return {
        **_varying(draws, num_workers),
        "predict": draws.one_of("own", "share", "none"),
        "warmup": draws.one_of(0, 0, 1, draws.number(2, 8)),
    }


def _od(draws: Draws, num_workers: int) -> dict[str, object]:
    return {
        "warmup": draws.one_of(0, 1, draws.number(2, 10)),
        "local": draws.one_of("plain", "compensated", "adaptive"),
        "local_lr": draws.one_of(0.0, 0.1, 1.0),
        "scale": draws.one_of("one", "share"),
        "local_momentum": draws.one_of(0.0, 0.5),
        "form": draws.one_of("server", "server", "all-reduce"),
    }


def _grouping(draws: Draws, num_workers: int) -> dict[str, object]:
    return {
        "prerun": draws.number(1, 4),
        "max_groups": draws.number(1, 4),
        "min_gap": draws.one_of(0.1, 0.25),
        "staleness_power": draws.one_of(0.0, 0.5, 1.0, 2.0),
        "momentum": draws.one_of("shared", "group"),
        "data": draws.one_of("queue", "shares"),
        "regroup_every": draws.one_of(0, 1, draws.number(2, 8)),
    }


def _wp(draws: Draws, num_workers: int) -> dict[str, object]:
    return {
        "weights": draws.one_of("exp", "exp2", "count", "equal", "optimal"),
        **_simuparallel(draws, num_workers),
    }


def _simuparallel(draws: Draws, num_workers: int) -> dict[str, object]:
    return {
        "steps": draws.number(1, 6),
        "rounds": draws.number(1, 4) if draws.chance(0.15) else None,
        "delay": draws.one_of(0, 0, 1, 2),
        "per_node": draws.one_of(1, 1, 2, 3),
    }


def _stride(draws: Draws, num_workers: int) -> dict[str, object]:
    return {
        "steps": draws.number(1, 4),
        "max_batch": draws.one_of(None, 0, num_workers * draws.number(1, 12)),
        "batch": draws.one_of("fixed", "equal-time"),
        "outer_lr": draws.one_of(0.7, 1.0),
        "outer_momentum": draws.one_of(None, 0.0, 0.5),
        "pull": draws.one_of(None, 1.0, 0.6),
        "warmup": draws.one_of(0, 0, draws.number(1, 4)),
        "smoothing": draws.one_of(0.3, 1.0),
        "max_wait": draws.one_of(0.0, 0.05, 0.9),
    }


def _none(draws: Draws, num_workers: int) -> dict[str, object]:
    return {}


_PARAMETERS: dict[str, Draw] = {
    "pace": _pace,
    "sync": _none,
    "balanced": lambda draws, _: {
        "smoothing": draws.one_of(0.1, 0.3, 1.0),
        "tolerance": draws.one_of(0.0, 0.1, 0.5),
    },
    "abs": _varying,
    "acco": _varying,
    "pipe": _none,
    "od": _od,
    "layered": lambda draws, num_workers: {"groups": draws.number(1, num_workers + 1)},
    "grouping": _grouping,
    "async": _none,
    "stale": lambda draws, _: {"staleness": draws.one_of(0, 1, 2, 5)},
    "dc-async": lambda draws, _: {"compensation": draws.one_of(0.0, 0.0, 0.04, 1.0)},
    "staleness-aware": _none,
    "backup": lambda draws, num_workers: {"backups": draws.number(0, num_workers)},
    "local": lambda draws, _: {"steps": draws.number(1, 6)},
    "diloco": lambda draws, _: {
        "steps": draws.number(1, 8),
        "outer_lr": draws.one_of(0.7, 1.0),
        "outer_momentum": draws.one_of(0.0, 0.9),
        "by_pace": draws.one_of(True, False),
        "smoothing": draws.one_of(0.3, 1.0),
    },
    "stride": _stride,
    "cocod": lambda draws, _: {"steps": draws.number(1, 5), "smoothing": draws.one_of(0.3, 1.0)},
    "overlap-local": lambda draws, _: {
        "steps": draws.number(1, 5),
        "pullback": draws.one_of(0.3, 0.6, 1.0),
        "anchor_momentum": draws.one_of(0.0, 0.7),
    },
    "wp": _wp,
    "simuparallel": _simuparallel,
}

"""What a plan says: the choice, the ranking, and what other fleets would do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ownpace.planning.timing import Timing

UNFINISHED = "not there when the time was up"
"""The note of an algorithm that may be better than it looks."""


@dataclass(frozen=True)
class Choice:
    """What to run."""

    algorithm: str
    parameters: Mapping[str, object]
    lr: float | None
    """None: it was not searched for."""
    command: str
    """What runs it, in virtual time on the model of the fleet."""
    why: str = ""
    """In one line."""


@dataclass(frozen=True)
class Ranked:
    """One algorithm on the fleet, at its own best learning rate."""

    algorithm: str
    parameters: Mapping[str, object]
    lr: float | None
    """None: none was searched for, as only time was simulated."""
    time_to_target: float | None
    """Seconds, the mean over seeds; None: not there within the time that it was given, or not tried."""
    spread: float | None
    """The standard deviation over seeds; None with one seed."""
    timing: Timing
    num_seeds: int = 0
    """That the time is the mean of."""
    at_most_s: float | None = None
    """Without a time: it was given up after this many seconds."""
    note: str = ""
    """What to know of this row."""

    @property
    def samples_per_s(self) -> float:
        """Of training."""
        return self.timing.samples_per_s

    @property
    def updates_per_s(self) -> float:
        """Of training."""
        return self.timing.updates_per_s

    @property
    def samples_per_update(self) -> float:
        """On average."""
        return self.timing.samples_per_update

    @property
    def share_of_limit(self) -> float:
        """samples_per_s over what the workers would do alone and without a pause."""
        return self.timing.share_of_limit

    def to_json(self) -> dict[str, object]:
        """Ready for JSON."""
        return {
            "algorithm": self.algorithm,
            "parameters": dict(self.parameters),
            "lr": self.lr,
            "time_to_target": self.time_to_target,
            "spread": self.spread,
            "num_seeds": self.num_seeds,
            "samples_per_s": self.samples_per_s,
            "updates_per_s": self.updates_per_s,
            "samples_per_update": self.samples_per_update,
            "share_of_limit": self.share_of_limit,
            "network_use": self.timing.network_use,
            "given_up_after_s": self.at_most_s,
            "note": self.note,
        }


@dataclass(frozen=True)
class WhatIf:
    """The best that another fleet would do."""

    algorithm: str
    """Whom to take there."""
    time_to_target: float | None
    samples_per_s: float
    """Of that one."""
    gain: float | None
    """How many times as soon as the choice on the fleet as it is. By speed alone: how many times the samples/s that
    choice itself does there, be it taken there or not. None: it was given up, far later."""
    spread: float | None = None
    """The standard deviation of the time over seeds."""
    is_guess: bool = False
    """Whether the time follows from the speed alone: there was none left to try how well it learns there."""

    def to_json(self) -> dict[str, object]:
        """Ready for JSON."""
        return {
            "time_to_target": self.time_to_target,
            "samples_per_s": self.samples_per_s,
            "algorithm": self.algorithm,
            "gain": self.gain,
            "spread": self.spread,
            "is_guess": self.is_guess,
        }


@dataclass(frozen=True)
class Plan:
    """Which algorithm to take on a fleet, and what else would change."""

    choice: Choice
    ranking: tuple[Ranked, ...]
    """The first is the choice, unless that was made by speed alone."""
    what_if: Mapping[str, WhatIf]
    verdict: str
    uncertain: tuple[str, ...]
    left_out: Mapping[str, str]
    """Who was not tried, and why."""
    target: float | None
    """The score whose time is predicted: an accuracy, or of tasks without one, a loss with a minus."""
    noise_scale: float | None
    """Samples; updates of far more than this stop paying. None: not measured."""
    seconds: float
    """That it took."""
    timing_only: bool = False
    interrupted: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)
    """How it was found: samples of the longest runs, seeds, and so on."""

    def to_json(self) -> dict[str, object]:
        """Ready for JSON."""
        noise = self.noise_scale if self.noise_scale is not None and math.isfinite(self.noise_scale) else None
        choice = self.choice
        return {
            "choice": {
                "algorithm": choice.algorithm,
                "parameters": dict(choice.parameters),
                "command": choice.command,
                "lr": choice.lr,
                "why": choice.why,
            },
            "ranking": [ranked.to_json() for ranked in self.ranking],
            "what_if": {name: answer.to_json() for name, answer in self.what_if.items()},
            "seconds": self.seconds,
            "verdict": self.verdict,
            "uncertain": list(self.uncertain),
            "left_out": dict(self.left_out),
            "target": self.target,
            "noise_scale": noise,
            "timing_only": self.timing_only,
            "interrupted": self.interrupted,
            "settings": dict(self.settings),
        }

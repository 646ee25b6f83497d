"""The command that runs a choice."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields

from ownpace.core.learning.task import Task
from ownpace.fleet import Fleet, Machine, Network
from ownpace.run import Config
from ownpace.run.config import help_of
from ownpace.run.names import CannotBeNamedError, name_of
from ownpace.run.saved import label

_OF_THE_CHOICE = (
    "algorithm",
    "parameters",
    "lr",
    "fleet",
    "target",
    "target_loss",
    "seed",
    "timing_only",
    "engine",
    "detail",
)
_PACE = 1000.0
"""Samples/s of the pace 1 in `4,2,1,1`."""
FILE = "fleet.toml"


def command_for(config: Config, algorithm: str, parameters: Mapping[str, object], lr: float | None) -> str:
    """`ownpace train …`: the configuration, with this algorithm and this rate."""
    words = ["ownpace", "train", "--algorithm", algorithm]
    words += _repeated("-p", parameters)
    words += ["--fleet", fleet_text(config.fleet)]
    if isinstance(config.task, Task):
        words += ["--task", _named(config.task)]
    defaults = Config()
    for field in fields(Config):
        value = getattr(config, field.name)
        if field.name in _OF_THE_CHOICE or value == getattr(defaults, field.name) or callable(value):
            continue
        flag = f"--{field.name.replace('_', '-')}"
        if isinstance(value, Mapping):
            words += _repeated((help_of(field.name).option or flag).split("/")[0], value)
        elif isinstance(value, bool):
            words.append(flag if value else f"--no-{field.name.replace('_', '-')}")
        elif isinstance(value, str | int | float):
            words += [flag, str(value)]
    if lr is not None:
        words += ["--lr", f"{lr:g}"]
    if config.target is not None:
        words += ["--target", f"{config.target:g}"]
    if config.target_loss is not None:
        words += ["--target-loss", f"{config.target_loss:g}"]
    return shlex.join(words)


def fleet_text(fleet: str | Fleet | Sequence[float] | None) -> str:
    """What --fleet takes for it; a fleet that only a file can describe has to be written to one first."""
    if isinstance(fleet, str):
        return fleet
    if fleet is None:
        return "4,2,1,1"
    if not isinstance(fleet, Fleet):
        return ",".join(f"{pace:g}" for pace in fleet)
    plain = [Machine(samples_per_s=machine.samples_per_s, count=machine.count) for machine in fleet.machine]
    simple = fleet.network == Network() and not fleet.server and not fleet.fault
    if simple and list(fleet.machine) == plain and all(machine.samples_per_s for machine in plain):
        paces = [f"{(machine.samples_per_s or 0) / _PACE:g}" for machine in plain for _ in range(machine.count)]
        if len(paces) <= 32:
            return ",".join(paces)
    return FILE


def _named(task: Task) -> str:
    """What --task takes for a task that was made in Python: where its class is, as far as that is known."""
    try:
        return name_of(type(task))
    except CannotBeNamedError:
        return f"my.py:{label(task)}"


def _repeated(option: str, values: Mapping[str, object]) -> list[str]:
    return [word for name, value in values.items() for word in (option, f"{name}={value}")]

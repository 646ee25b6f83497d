"""`auto` as the algorithm of `train`: the machines are measured if their paces are not known, then a plan is made."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import ParamSpec

from ownpace.core.contract.errors import InputError
from ownpace.drop_in import join
from ownpace.engines import is_main_process, num_ranks
from ownpace.fleet import Fleet
from ownpace.measuring import measure_config
from ownpace.planning import PlanProgress, plan
from ownpace.run import Config, Result
from ownpace.run import train as run_train
from ownpace.run.again import started_again
from ownpace.run.place import check_run

AUTO = "auto"
MEASURING_S = 8.0
PLANNING_S = 30.0
SAID_EVERY_S = 5.0
_PATIENCE_S = 1800.0
"""How long other ranks wait for the first one's plan."""
P = ParamSpec("P")


@dataclass(frozen=True)
class Chosen:
    """What `auto` stands for in a run."""

    algorithm: str
    parameters: Mapping[str, object]
    lr: float | None
    why: str

    def config(self, given: Config, *, keep_lr: bool) -> Config:
        """The run with it; `keep_lr`: at the learning rate that was asked for."""
        chosen = replace(given, algorithm=self.algorithm, parameters=dict(self.parameters))
        return chosen if keep_lr or self.lr is None else replace(chosen, lr=self.lr)

    @classmethod
    def of(cls, begun: Config) -> Chosen:
        """What was chosen when a run began that goes on now."""
        name = begun.algorithm
        assert isinstance(name, str), "a plan chooses among names"
        return cls(name, begun.parameters, begun.lr, "as it began")

    def to_json(self) -> str:
        """As `from_json` reads it."""
        return json.dumps([self.algorithm, dict(self.parameters), self.lr, self.why])

    @classmethod
    def from_json(cls, text: str) -> Chosen:
        """The other way round."""
        return cls(*json.loads(text))


def choose(config: Config, say: Callable[[str], None], known: Chosen | None = None) -> Chosen:
    """What to take in place of `auto`: the same on all torchrun ranks, all of which must call it.

    Args:
        config: The run.
        say: Told what is going on, on the first rank.
        known: What was chosen when this run began, if it goes on; the first rank's counts.
    """
    if config.parameters and known is None:
        raise InputError(f"parameters is {config.parameters!r}, but auto chooses the algorithm itself; leave them out")
    replace(config, algorithm="sync", parameters={}, log_files=False).job()  # bad input, before a minute is spent
    if num_ranks() is None:
        return known or _planned(config, _fleet(config, say), say)
    if told := _from_first("" if known is None else known.to_json()):
        return Chosen.from_json(told)
    machines = _fleet(config, say)
    # Before it meets the others, who wait for it: plans made on all of them would take its cores, and differ.
    mine = _planned(config, machines, say).to_json() if is_main_process() else ""
    return Chosen.from_json(_from_first(mine))


def _from_first(text: str) -> str:
    """What the first rank says."""
    with join("sync", quiet=True, timeout_s=_PATIENCE_S, on_failure="stop") as fleet:
        return str(fleet.gather(text)[0])


def _fleet(config: Config, say: Callable[[str], None]) -> Fleet:
    """The machines: as they are described; real ones without a pace are measured."""
    given = config.machines()
    if given.paced or config.engine_name == "virtual":
        return given
    say(f"auto: measuring for about {MEASURING_S:g} s …")
    return measure_config(replace(config, fleet=given), seconds=MEASURING_S).fleet


def _planned(config: Config, fleet: Fleet, say: Callable[[str], None]) -> Chosen:
    say("auto: planning …")
    # The plan is made in virtual time, whatever the run is made in.
    base = replace(config, algorithm="sync", engine="virtual", fleet=fleet, device="cpu", cuda_graphs=False)
    made = plan(base, fleet, what_if=(), seconds=PLANNING_S, on_progress=_now_and_then(say)).choice
    chosen = Chosen(made.algorithm, made.parameters, made.lr, made.why)
    say(f"auto: {chosen.why or chosen.algorithm}")
    return chosen


def _now_and_then(say: Callable[[str], None]) -> Callable[[PlanProgress], None]:
    """Says how far a plan is, every few seconds: nobody should wonder whether it is alive."""
    next_s = time.monotonic() + SAID_EVERY_S

    def take(now: PlanProgress) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + SAID_EVERY_S
            say(f"auto: {now.stage}, {now.done} of about {now.expected} runs")

    return take


def _with_auto(train: Callable[P, Result]) -> Callable[P, Result]:
    @wraps(train)
    def trained(*args: P.args, **fields: P.kwargs) -> Result:
        given: dict[str, object] = {**({"algorithm": args[0]} if args else {}), **fields}  # it needs no name
        if given.get("algorithm") != AUTO or len(args) > 1:
            return train(*args, **fields)
        refuse_resuming(given.get("resume"))
        out = given.get("out")
        again = started_again(Path(out) if isinstance(out, str | Path) else None)
        check_out(out, overwrite=bool(given.get("overwrite")) or again is not None)
        begun = None if again is None or again.resumption is None else Chosen.of(again.resumption.config)
        chosen = choose(_config(given), _silence if given.get("progress") is False else _say, begun)
        instead: dict[str, object] = {"algorithm": chosen.algorithm, "parameters": dict(chosen.parameters)}
        if "lr" not in fields and chosen.lr is not None:
            instead["lr"] = chosen.lr
        as_chosen: Callable[..., Result] = train
        return as_chosen(**{**given, **instead})

    return trained


def refuse_resuming(resume: object) -> None:
    """Raise if a run is to go on."""
    if resume is not None:
        raise InputError("algorithm is 'auto', but a run that goes on keeps the algorithm it has; leave it out")


def check_out(out: object, *, overwrite: bool) -> None:
    """Raise if the run's folder is taken: before a minute is spent."""
    if isinstance(out, str | Path) and is_main_process():
        check_run(Path(out), overwrite=overwrite)


def _config(fields: Mapping[str, object]) -> Config:
    make: Callable[..., Config] = Config
    return make(**{name: value for name, value in fields.items() if name in Config.__dataclass_fields__})


def _say(line: str) -> None:
    if is_main_process():
        print(f"ownpace: {line}", file=sys.stderr)


def _silence(line: str) -> None:
    pass


train = _with_auto(run_train)

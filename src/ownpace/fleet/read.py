"""Fleets made from what users write: a preset's name, `4,2,1,1`, or a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ownpace.core.bounded_read import read_bounded
from ownpace.core.contract.errors import InputError, shown, unknown
from ownpace.core.settings import build
from ownpace.fleet.model import Fleet, Machine, PlannedFault, Slowdown
from ownpace.fleet.network import Between, Network, ServerMachine
from ownpace.fleet.presets import PRESETS, paces

SHORTHAND_SAMPLES_PER_S = 1000.0
"""What 1 means in `4,2,1,1`."""
HELP = (
    "a preset, relative paces such as 4,2,1,1 (1 is 1000 samples/s), x4 for four workers at full speed, "
    "or a file ending in .toml"
)
MOST_BYTES = 16 << 20
"""Of a fleet file."""
T = TypeVar("T")


def read_fleet(given: str | Sequence[float]) -> Fleet:
    """The fleet that is meant: a preset, paces such as `4,2,1,1` (1 is 1000 samples/s) or a list of them, `x4`, a file.

    >>> [worker.machine.samples_per_s for worker in read_fleet([4, 2]).workers]
    [4000.0, 2000.0]
    """
    text = given if isinstance(given, str) else ",".join(map(str, given))
    if text in PRESETS:
        return PRESETS[text][1]
    if text.endswith(".toml"):
        return read_toml(Path(text))
    if text[:1] == "x" and text[1:].isascii() and text[1:].isdigit() and text[1:].strip("0"):
        # Of any number of digits: a long one is too many workers, whatever it is.
        return full_speed(int(text[1:12]))
    # An empty text counts as a list of paces, too: that error shows how one is written.
    if text[:1].isdigit() or text[:1] in "-.+,":
        return _shorthand(text)
    raise unknown("fleet", text, PRESETS, f"--fleet takes {HELP}")


def full_speed(num_workers: int) -> Fleet:
    """Workers without a prescribed pace: each runs as fast as it can. Only real processes can do that."""
    return Fleet(machine=(Machine(count=num_workers),))


def _shorthand(text: str) -> Fleet:
    try:
        relative = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"fleet {shown(text)} is not a list of paces; write numbers and commas, as in 4,2,1,1"
        ) from None
    if not all(0 < pace < float("inf") for pace in relative):
        raise InputError(
            f"fleet {shown(text)} has a pace that is not a finite number above 0; every pace must be, as in 4,2,1,1"
        )
    try:
        return paces(*(pace * SHORTHAND_SAMPLES_PER_S for pace in relative), jitter=0.0)
    except InputError as error:
        raise InputError(f"fleet {shown(text)}: {error}") from None


def read_toml(path: Path) -> Fleet:
    """The fleet that a TOML file describes.

    Raises:
        InputError: The file cannot be read, is not TOML, or holds something a fleet does not have.
    """
    try:
        # With the mark that some editors put in front.
        content = tomllib.loads(read_bounded(path, MOST_BYTES).decode("utf-8-sig"))
    except FileNotFoundError:
        raise InputError(f"fleet file {path} does not exist; give a path, or {HELP}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"fleet file {path} cannot be read: {error}") from None
    # Also numbers of thousands of digits, and tables in tables in tables.
    except (ValueError, RecursionError) as error:
        reason = str(error)[:200]
        raise InputError(f"fleet file {path} is not valid TOML: {reason}; see docs/fleets.md for an example") from None
    try:
        fleet = fleet_from(content)
        _check_sites(fleet)
    except InputError as error:
        raise InputError(f"fleet file {path}: {error}") from None
    return fleet


def _check_sites(fleet: Fleet) -> None:
    """Raise if a server is at a site without machines.

    In a file that is a slip. Fleets that are made of others may be so: `--what-if drop` leaves servers where they are.
    """
    sites = {machine.site for machine in fleet.machine}
    for number, server in enumerate(fleet.server, 1):
        if server.site is not None and server.site not in sites:
            where = f"site in [[server]] number {number}:"
            raise unknown(where, server.site, sites - {""}, "A server's site must have a [[machine]], too")


def fleet_from(content: Mapping[str, Any]) -> Fleet:
    """The fleet that nested tables describe, the same in TOML and JSON."""
    known = ("machine", "network", "server", "fault")
    for key in content:
        if key not in known:
            raise unknown("key at the top of the file:", key, known)
    machines = []
    for number, table in enumerate(_tables(content, "machine"), 1):
        where = f"[[machine]] number {number}"
        slow = _build_all(table, "slowdown", Slowdown, f"[[machine.slowdown]] of machine {number},")
        machines.append(build(Machine, {**table, "slowdown": slow}, where=where))
    return Fleet(
        machine=tuple(machines),
        network=_network(content.get("network", {})),
        server=_build_all(content, "server", ServerMachine, "[[server]]"),
        fault=_build_all(content, "fault", PlannedFault, "[[fault]]"),
    )


def _network(table: object) -> Network:
    if not isinstance(table, Mapping):
        raise InputError("network must be one table: [network]")
    between = table.get("between")
    if between is not None:
        if not isinstance(between, Mapping):
            raise InputError("between must be a table of the network: [network.between]")
        table = {**table, "between": build(Between, between, where="[network.between]")}
    return build(Network, table, where="[network]")


def _build_all(content: Mapping[str, Any], key: str, cls: type[T], where: str) -> tuple[T, ...]:
    tables = _tables(content, key)
    return tuple(build(cls, table, where=f"{where} number {number}") for number, table in enumerate(tables, 1))


def _tables(content: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    tables = content.get(key, [])
    if not isinstance(tables, list | tuple) or not all(isinstance(table, Mapping) for table in tables):
        raise InputError(f"{key} must be a list of tables, each headed [[{key}]]")
    return list(tables)

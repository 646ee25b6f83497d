"""A fleet as the TOML file that `read_fleet` reads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields

from ownpace.fleet.model import Fleet, Machine
from ownpace.fleet.network import Network


def fleet_to_toml(fleet: Fleet, comments: Iterable[str] = ()) -> str:
    """The text of a fleet file; what has its default is left out. `comments` are lines for its beginning."""
    parts = [[f"# {_printable(line)}".rstrip() for line in comments]]
    for machine in fleet.machine:
        parts.append(["[[machine]]", *_lines(machine, but=("slowdown",))])
        parts += [["[[machine.slowdown]]", *_lines(slow)] for slow in machine.slowdown]
    if fleet.network != Network():
        parts.append(["[network]", *_lines(fleet.network, but=("between",))])
        if fleet.network.between is not None:
            parts.append(["[network.between]", *_lines(fleet.network.between)])
    parts += [["[[server]]", *_lines(server)] for server in fleet.server]
    parts += [["[[fault]]", *_lines(fault)] for fault in fleet.fault]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _lines(thing: object, but: Iterable[str] = ()) -> list[str]:
    """`name = value` of each field that does not have its default. A machine's name always stands there."""
    lines = []
    # The name first, where there is one.
    for field in sorted(fields(thing), key=lambda field: field.name != "name"):  # type: ignore[arg-type]  # dataclasses
        value = getattr(thing, field.name)
        wanted = value != field.default or (isinstance(thing, Machine) and field.name == "name")
        if field.name not in but and value is not None and wanted:
            lines.append(f"{field.name} = {_value(value)}")
    return lines


def _value(value: object) -> str:
    # JSON's strings, numbers and truth values are TOML's, too, but for characters beyond 16 bits, which JSON halves.
    assert isinstance(value, str | int | float), f"a fleet file cannot hold {value!r}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _printable(line: str) -> str:
    return "".join(each if each.isprintable() else " " for each in line)

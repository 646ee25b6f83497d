"""`scripts/figures.py` counts what it says it counts, on a package small enough to count by hand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "figures.py"


def measure(folder, *options, **modules):
    """The script's rows for a package of these modules (`core_a` is core/a.py): figure → what it says."""
    for name, text in modules.items():
        path = folder / (name.replace("_", "/", 1) + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    command = [sys.executable, str(SCRIPT), str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def now(result, figure):
    """The second column of that row."""
    (line,) = (line for line in result.stdout.splitlines() if line.startswith(figure))
    return re.split(r" {2,}", line.removeprefix(figure).strip())[0]


def methods(count, head="class Large:"):
    return head + "\n" + "".join(f"    def m{n}(self):\n        self.a{n} = 0\n" for n in range(count))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (methods(12), "0"),
        (methods(13), "1"),
        (methods(12) + "    def __init__(self): ...\n", "0"),
        (methods(13, head="class Large(Protocol):"), "0"),
        (methods(1, head="@dataclass\nclass Large:") + "".join(f"    f{n}: int\n" for n in range(20)), "0"),
        ("class Large:\n    def m(self):\n" + "".join(f"        self.a{n} = 0\n" for n in range(13)), "1"),
        ("class Large:\n    def m(self):\n" + "".join(f"        other.a{n} = 0\n" for n in range(13)), "0"),
    ],
    ids=["12", "13", "constructor", "protocol", "dataclass", "attributes", "others'"],
)
def test_large_classes(tmp_path, text, expected):
    assert now(measure(tmp_path, core_a=text), "classes with more than 12 methods or attributes") == expected


def test_levels_of_inheritance_end_in_engines_and_leave_out_protocols_and_errors(tmp_path):
    result = measure(
        tmp_path,
        core_a="class Role(Protocol): ...\nclass Worker(Role, Protocol): ...\nclass Address: ...\n",
        engines_a="class AError(Exception): ...\nclass B(AError): ...\nclass C(B): ...\nclass D(C): ...\n",
        engines_b="from ownpace.core.a import Address as Base, Worker\nclass Node(Base, Worker): ...\n",
        engines_c="from ownpace.engines.b import Node\nclass RealWorker(Node): ...\n",
        fleet_d="from ownpace.engines.c import RealWorker\nclass Elsewhere(RealWorker): ...\n",
    )
    assert now(result, "levels of inheritance in engines/") == "3"
    assert "Address ← Node ← RealWorker" in result.stdout


def test_any_counts_uses_but_not_the_import(tmp_path):
    core = 'from typing import Any, cast\nx: Any = cast("dict[str, Any]", 1)\n"""Any word."""\n'
    result = measure(tmp_path, core_a=core, fleet_b="import typing\ny: typing.Any = 1\n")
    assert now(result, "`Any` in core/") == "2"
    assert now(result, "`Any` per 1,000 lines") == "600.0 (3)"


def test_private_names_of_others(tmp_path):
    result = measure(tmp_path, core_a="def f(other):\n    return other._secret\n\n\n\n\n\n\n\n\n")
    assert now(result, "access to others' private names per 1,000 lines") == "100.0 (1)"


def test_comments_of_their_own_and_at_the_end_of_a_line(tmp_path):
    words = '# why\n"""\n# not one\n"""\nx = 1  # also why\ny = "#"\n'
    text = words + "z = 1  # noqa: E501\nw = 1  # type: ignore[x]  # reason\n\n\n"
    assert now(measure(tmp_path, core_a=text), "comment lines, and trailing comments") == "10.0 % + 20.0 %"


def test_lengths(tmp_path):
    result = measure(tmp_path, core_a="def f():\n" + "    pass\n" * 300, core_b="pass\n" * 300)
    assert now(result, "lines of the longest function") == "301"
    assert now(result, "modules over 300 lines") == "1"


@pytest.mark.parametrize(
    ("modules", "code"),
    [
        ({"core_a": "class A: ...\n", "core_b": "class B: ...\n"}, 0),
        ({"core_a": "class A: ...\n", "core_b": "class A: ...\n"}, 1),
        ({"core_a": "x: Any\n"}, 1),
        ({"fleet_a": "x: Any\n"}, 0),
        ({"core_a": "def f():\n" + "    pass\n" * 44}, 0),
        ({"core_a": "def f():\n" + "    pass\n" * 45}, 1),
    ],
    ids=["fine", "name twice", "Any in core", "Any elsewhere", "45 lines", "46 lines"],
)
def test_strict_fails_on_what_is_binding(tmp_path, modules, code):
    assert measure(tmp_path, "--strict", **modules).returncode == code
    assert measure(tmp_path, **modules).returncode == 0

"""Code of the user's own in a file."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from typing import Any

import pytest

from ownpace.core.contract.errors import InputError
from ownpace.core.own_code import digest_in_use, digest_now, file_of, load_file, reduced

SOURCE = """
from dataclasses import dataclass
import beside

@dataclass(frozen=True)
class Point:
    x: int = beside.ONE

    class Inner:
        pass
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside.py").write_text("ONE = 1\n", encoding="utf-8")
    (tmp_path / "random.py").write_text(SOURCE, encoding="utf-8")  # as a module of Python's is called
    return tmp_path / "random.py"


class Pickler(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        return reduced(thing) or NotImplemented


def pickled(thing: object) -> bytes:
    buffer = io.BytesIO()
    Pickler(buffer).dump(thing)
    return buffer.getvalue()


def test_a_file_is_run_once_and_anew_when_it_has_changed(file):
    first = load_file(file)
    assert load_file(str(file)) is first
    assert file_of(first.__name__) == str(file)
    used = digest_in_use(str(file))
    file.write_text(SOURCE + "\nTWO = 2\n", encoding="utf-8")
    # The code in use is what was loaded, whatever is in the file by now.
    assert digest_in_use(str(file)) == used != digest_now(str(file))
    assert load_file(file).TWO == 2
    assert not hasattr(first, "TWO")


def test_what_comes_from_a_file_can_be_unpickled_elsewhere_though_the_file_has_changed(file):
    module = load_file(file)
    data = pickled([module.Point(x=7), module.Point, module.Point.Inner])
    file.write_text("raise RuntimeError", encoding="utf-8")
    code = "import pickle, sys; p, c, i = pickle.load(sys.stdin.buffer); print(p, type(p) is c, c.Inner is i)"
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path = {sys.path!r}; {code}"],
        input=data, capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    assert ran.stdout.decode().strip() == "Point(x=7) True True"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import os\n1 / 0", r"random.py cannot be run: ZeroDivisionError: division by zero \(random.py, line 2\)"),
        ("def f(:", r"cannot be run: SyntaxError: .* \(line 1\)"),
        ("import sys\nsys.exit(3)", r"cannot be run: SystemExit: 3"),
    ],
)
def test_a_file_that_cannot_be_run_is_one_line(file, source, message):
    file.write_text(source, encoding="utf-8")
    before = set(sys.modules)
    with pytest.raises(InputError, match=message):
        load_file(file)
    assert not [name for name in sys.modules.keys() - before if name.startswith("ownpace_own")]


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"there is no file .*nowhere.py"):
        load_file(tmp_path / "nowhere.py")
    with pytest.raises(InputError, match="cannot be read"):
        load_file(tmp_path)

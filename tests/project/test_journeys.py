"""`scripts/journeys.py` counts the files in which a function is entered, and no others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"

FILES = {
    "entered": "def work():\n    return 1\n",
    "on_import": "def helper():\n    return [1]\n\nx = helper()\n\nclass A:\n    y = [n for n in x]\n",
    "generated": "from dataclasses import dataclass\n\n@dataclass\nclass Value:\n    x: int = 0\n",
    "lazy": "def work():\n    import on_import\n    return on_import.x\n",
    "main": "import entered\n\nif __name__ == '__main__':\n    entered.work()\n",
    "unused": "def work():\n    return 1\n",
}

START = f"""
import os, runpy, sys
from pathlib import Path
sys.path.append({str(SCRIPTS)!r})
import journeys
journeys.SOURCE = Path.cwd()
"""
JOURNEY = """
import entered, generated, lazy, unused
entered.work(), generated.Value(), lazy.work()
runpy.run_module("main", run_name="__main__")
"""


@pytest.fixture
def run(tmp_path):
    """Runs Python where a package of these files takes the place of ours, in a process of its own."""
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")

    def run_python(text: str) -> list[str]:
        command = [sys.executable, "-c", START + text]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.splitlines()

    return run_python


def test_a_file_counts_when_a_function_in_it_is_entered_but_not_for_its_import(run):
    record = "recorder = journeys.Recorder(); sys.setprofile(recorder)"
    assert run(record + JOURNEY + "print(*sorted(recorder.files))") == ["entered.py lazy.py"]


def test_a_forked_process_begins_anew_and_writes_its_own_list(run, tmp_path):
    (tmp_path / "written").mkdir()
    child = "child = os.fork()\nif child == 0:\n    lazy.work()\n    os._exit(0)\n"
    record = "journeys.record_this_process('written')"
    parent, forked = run(record + JOURNEY + child + "os.waitpid(child, 0); print(os.getpid()); print(child)")
    assert {path.name: path.read_text("utf-8").split() for path in (tmp_path / "written").iterdir()} == {
        parent: ["entered.py", "lazy.py"],
        forked: ["lazy.py"],
    }

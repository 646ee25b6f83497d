"""What a process hands to a child of its own."""

from __future__ import annotations

import pickle
import sys
import threading
from dataclasses import dataclass, fields
from multiprocessing import spawn
from typing import Any

import pytest

from ownpace.core.contract.errors import InputError
from ownpace.core.own_code import load_file
from ownpace.engines.process.meet.hand_over import _without_the_script, pickled
from ownpace.testing.blobs import Blobs


def test_what_can_be_imported_travels_by_its_name():
    data = pickled([Blobs, Blobs()])
    assert b"cloudpickle" not in data
    kind, blobs = pickle.loads(data)
    assert kind is Blobs is type(blobs)


@pytest.mark.parametrize("module", ["__main__", __name__])
def test_what_cannot_travels_by_its_code(module, tmp_path):
    (tmp_path / "my.py").write_text("class Base:\n    pass\n", encoding="utf-8")
    base: Any = load_file(tmp_path / "my.py").Base

    @dataclass(frozen=True)
    class Mine(base):  # type: ignore[misc]
        size: int = 3

        def twice(self) -> int:
            return 2 * self.size

    Mine.__module__ = module
    again = pickle.loads(pickled(Mine(size=4)))
    assert again.twice() == 8
    assert [field.name for field in fields(again)] == ["size"]
    # Its base comes from a file, which is the same module again.
    assert isinstance(again, base)
    assert pickle.loads(pickled(lambda: 5))() == 5


def test_what_cannot_leave_the_process_is_refused_in_a_line(tmp_path):
    with (tmp_path / "open").open("w") as file, pytest.raises(InputError, match="cannot be handed to another process"):
        pickled({"log": file})


def test_only_processes_of_this_thread_do_not_run_the_script(monkeypatch):
    # As if a script ran: the main module of tests that run side by side has no file.
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
    usual = spawn.get_preparation_data
    elsewhere: list[dict[str, object]] = []
    with _without_the_script():
        thread = threading.Thread(target=lambda: elsewhere.append(spawn.get_preparation_data("other")))
        thread.start()
        thread.join()
        here = spawn.get_preparation_data("this")
    runs_it = {"init_main_from_name", "init_main_from_path"}
    assert spawn.get_preparation_data is usual
    assert runs_it & usual("any").keys() == runs_it & elsewhere[0].keys() != set()
    assert not runs_it & here.keys()

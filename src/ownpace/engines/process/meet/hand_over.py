"""How a process hands a part of the run to a child of its own: pickled, through a pipe that only these two have.

The child never runs the user's script: one without a main guard would start the run again, and a notebook has none to
run. What can be imported travels by its name, what comes from a file with the file's source, and what is defined in the
script, in a notebook's cell or inside a function by its code (cloudpickle).
"""

from __future__ import annotations

import copyreg
import io
import multiprocessing
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import spawn
from multiprocessing.connection import Connection as PipeEnd
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import Any

import cloudpickle

from ownpace.core.contract.errors import InputError
from ownpace.core.own_code import reduced

_OF_THE_SCRIPT = ("__main__", "__mp_main__")
_preparing = threading.Lock()


class _NotByNameError(Exception):
    """Something has no name by which another process could import it."""


class _ByName(pickle.Pickler):
    def reducer_override(self, thing: object) -> Any:
        if (how := reduced(thing)) is not None:
            return how
        if isinstance(thing, type | FunctionType) and (thing.__module__ in _OF_THE_SCRIPT or "<" in thing.__qualname__):
            raise _NotByNameError
        return NotImplemented


class _ByCode(cloudpickle.Pickler):
    def reducer_override(self, thing: object) -> Any:
        return reduced(thing) or super().reducer_override(thing)


def pickled(thing: object, more: Mapping[type, Any] | None = None) -> bytes:
    """What a child of this process is to get; `more` says how to pickle further types.

    Raises:
        InputError: It holds something that cannot leave this process: an open file, a lock.
    """
    try:
        try:
            return _dumped(_ByName, thing, {**copyreg.dispatch_table, **(more or {})})
        except _NotByNameError:
            return _dumped(_ByCode, thing, {**cloudpickle.Pickler.dispatch_table, **(more or {})})
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise InputError(
            f"the run cannot be handed to another process: {type(error).__name__}: {error}; keep what cannot be copied "
            "(open files, locks, generators) out of the task, and make it in train_samples() instead"
        ) from None


def _dumped(kind: type[pickle.Pickler], thing: object, how: Mapping[type, Any]) -> bytes:
    buffer = io.BytesIO()
    pickler = kind(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = how
    pickler.dump(thing)
    return buffer.getvalue()


class Parcel:
    """A thing that arrives as its bytes in a process that multiprocessing starts.

    It is pickled only while that process is being started: so torch can pass the memory of tensors instead of copies.
    """

    def __init__(self, thing: object, ahead: bytes) -> None:
        self._thing = thing
        self._ahead = ahead

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (self._ahead + pickled(self._thing, ForkingPickler(io.BytesIO()).dispatch_table),)


def start_process(
    target: Callable[[bytes, PipeEnd], None], parcel: Parcel, lifeline: PipeEnd, name: str
) -> BaseProcess:
    """Fork a process from multiprocessing's server, which does not run the script of this one."""
    process = multiprocessing.get_context("forkserver").Process(target=target, args=(parcel, lifeline), name=name)
    with _without_the_script():
        process.start()
    return process


@contextmanager
def _without_the_script() -> Iterator[None]:
    """Let processes that this thread starts not run the script; those of other threads do as ever."""
    thread = threading.get_ident()
    with _preparing:
        usual = spawn.get_preparation_data

        def of_no_script(name: str) -> dict[str, object]:
            data: dict[str, object] = usual(name)
            if threading.get_ident() == thread:
                for key in ("init_main_from_name", "init_main_from_path"):
                    data.pop(key, None)
            return data

        spawn.get_preparation_data = of_no_script
        try:
            yield
        finally:
            spawn.get_preparation_data = usual

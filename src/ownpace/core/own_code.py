"""Code of the user's own that is in a file, not in a module that can be imported: `my.py:Spirals`.

A file is run once for each content that it has, under a name that no other module can have. What comes from it can be
pickled all the same (`reduced`): its source travels along, so that another process has the very same code, even if the
file was changed meanwhile.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TypeVar

from ownpace.core.contract.errors import InputError

T = TypeVar("T")
SUFFIX = ".py"
_sources: dict[str, tuple[str, bytes]] = {}
"""The path and the source of each file that was loaded, by the name of its module."""


def is_file_name(name: str) -> bool:
    """Whether what stands before the colon is a file."""
    return name.endswith(SUFFIX)


def load_file(path: str | Path) -> ModuleType:
    """The module that a file makes; the same one again while the file stays the same.

    Raises:
        InputError: There is no such file, or running it fails.
    """
    path = Path(path).expanduser().resolve()
    try:
        source = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"there is no file {path}; give the path of one, as in my.py:Name") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; give another file") from None
    # At the end: what lies beside it can be imported, but takes no other module's place.
    if (folder := str(path.parent)) not in sys.path:
        sys.path.append(folder)
    return module_from(str(path), source)


def module_from(path: str, source: bytes) -> ModuleType:
    """The module that this source makes, whatever is in the file by now."""
    name = f"ownpace_own_{Path(path).stem}_{hashlib.sha256(path.encode() + source).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = path
    # Before it runs: dataclasses look their own module up.
    sys.modules[name] = module
    _sources[name] = path, source
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name], _sources[name]
        raise InputError(f"{path} cannot be run: {in_a_line(error, path)}; fix it") from None
    return module


def absolute(given: T) -> T | str:
    """A name that means the same from any folder; what is no name of something in a file stays as it is.

    >>> absolute("mymodule:Patient")
    'mymodule:Patient'
    """
    if not isinstance(given, str):
        return given
    place, _, thing = given.rpartition(":")
    return f"{Path(place).expanduser().resolve()}:{thing}" if is_file_name(place) else given


def digest_now(place: str) -> str | None:
    """What tells whether the code of a file or module was changed since; None: it is in no file that can be read."""
    try:
        if not is_file_name(place):
            spec = importlib.util.find_spec(place)
            place = (spec and spec.origin) or ""
        return hashlib.sha256(Path(place).expanduser().read_bytes()).hexdigest()
    except Exception:  # whatever a package raises when it is imported: then nothing is known of its code
        return None


def digest_in_use(place: str) -> str | None:
    """The same of the code that was loaded: a file may have been changed meanwhile."""
    path = str(Path(place).expanduser().resolve())
    loaded = [source for each, source in _sources.values() if each == path]
    return hashlib.sha256(loaded[-1]).hexdigest() if loaded else digest_now(place)


def file_of(module: str) -> str | None:
    """The path of the file that was loaded as this module, if one was."""
    return _sources[module][0] if module in _sources else None


def files_in_use() -> list[str]:
    """The paths of the files that were loaded."""
    return list(dict.fromkeys(path for path, _ in _sources.values()))


def reduced(thing: object) -> tuple[Callable[..., object], tuple[object, ...]] | None:
    """How to pickle a module, class or function of a loaded file, as `__reduce__` says it; None: it is none of those.

    A class made in a function, or a lambda, has no name to be found by: None, too.
    """
    if isinstance(thing, ModuleType) and thing.__name__ in _sources:
        return module_from, _sources[thing.__name__]
    if isinstance(thing, type | FunctionType) and thing.__module__ in _sources and "<" not in thing.__qualname__:
        return _part, (sys.modules[thing.__module__], thing.__qualname__)
    return None


def _part(module: ModuleType, name: str) -> object:
    found: object = reduce(getattr, name.split("."), module)
    return found


def in_a_line(error: BaseException, path: str | None = None) -> str:
    """What was raised, and in which line: of this file, if it was there, else of where it was raised.

    >>> in_a_line(ValueError("too small"))
    'ValueError: too small'
    """
    frames = traceback.extract_tb(error.__traceback__)
    at = [frame for frame in frames if frame.filename == path] or frames
    where = f"{Path(at[-1].filename).name}, line {at[-1].lineno}" if at else ""
    if isinstance(error, SyntaxError) and error.filename == path:
        where, error = f"line {error.lineno}", SyntaxError(error.msg)
    text = " ".join(str(error).split())[:300]
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{said} ({where})" if where else said

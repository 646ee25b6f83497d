"""A run's events, read from its files one after the other: memory does not grow with the run.

    events.jsonl      the first record, all detail of the beginning, then whatever is not detail, up to the last record
    events.N.jsonl    the latest part of a run that passed its limit: all records, the last two files of it kept

The first line of events.N.jsonl says after which line of events.jsonl it begins. What lies between is in neither file;
`omitted` records say what it adds up to.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from types import NoneType, UnionType
from typing import BinaryIO, TypeVar, get_args, get_origin, get_type_hints

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.events import Detail, Event, Omitted, Record, from_line, from_record, json_records

T = TypeVar("T")
EVENTS = "events.jsonl"
_SEGMENT = re.compile(r"events\.([1-9][0-9]{0,8})\.jsonl")
_LONGEST_LINE = 1 << 28
_BYTES_AT_ONCE = 1 << 13
"""Of lines that are decoded together: so few that they stay in the processor's cache."""
_LARGEST_INT = 1 << 63
_DETAIL = tuple(f'{{"kind":"{kind.kind}"'.encode() for kind in get_args(Detail))
"""What lines of detail begin with, as `to_line` writes them."""
_NOT_READ = "the file is long, and detail was read at its beginning and its end alone"


def segment_path(folder: Path, number: int) -> Path:
    """The file of the latest part that has this number."""
    return folder / f"events.{number}.jsonl"


def segments(folder: Path) -> dict[int, Path]:
    """The files of the latest part, by number, in order."""
    found = ((_SEGMENT.fullmatch(path.name), path) for path in folder.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def segment_header(after: int) -> bytes:
    """The first line of such a file: it begins after this line of events.jsonl."""
    return f'{{"kind":"segment","after":{after}}}\n'.encode()


@dataclass(frozen=True, slots=True)
class Columns:
    """Records of one kind of detail, which are close to each other in a file; many take hardly longer than a few."""

    kind: type[Detail]
    values: tuple[tuple[object, ...], ...]
    """Of each field those of all records, in the order of the kind's fields."""

    def events(self) -> Iterator[Event]:
        """The records one by one."""
        return map(self.kind, *self.values)


def read_events(path: Path, most_bytes: int | None = None) -> Iterator[Event]:
    """The events of a run, one after the other; `path` is its events.jsonl.

    Of a file that is longer than `most_bytes`, detail is read at the beginning and at the end alone, half of them each;
    an `omitted` record stands for what lies between, whose numbers are not known.

    Raises:
        InputError: The file is missing or cannot be read, or a line of it is not an event.
    """
    return _read(path, most_bytes, _Found.in_order)


def read_columns(path: Path, most_bytes: int | None = None) -> Iterator[Event | Columns]:
    """The same in two thirds of the time, for whom records that are close to each other may change places: detail comes
    by kind, a hundred records at once.
    """
    return _read(path, most_bytes, _Found.by_kind)


def _read(path: Path, most_bytes: int | None, given: Callable[[_Found], Iterable[T]]) -> Iterator[T | Event]:
    if not path.is_file():
        raise InputError(f"there is no event file {path}; give the folder of a run")
    try:
        later = list(segments(path.parent).values()) if path.name == EVENTS else []
        # What the latest part holds is not taken from the first file, too.
        yield from _events(path, given, 0, _after(later[0]) if later else None, _between(path, most_bytes))
        for segment in later:
            yield from _events(segment, given, 1, None)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def is_detail(line: bytes) -> bool:
    """Whether a line of a file is detail, as `to_line` wrote it; it is not decoded for that."""
    return line.startswith(_DETAIL)


def _between(path: Path, most_bytes: int | None) -> tuple[int, int]:
    """From which byte to which one detail is left out."""
    size = path.stat().st_size
    if most_bytes is None or size <= most_bytes:
        return (0, 0)
    return (most_bytes // 2, size - most_bytes // 2)


def _events(
    path: Path,
    given: Callable[[_Found], Iterable[T]],
    first: int,
    last: int | None,
    between: tuple[int, int] = (0, 0),
) -> Iterator[T | Event]:
    """The events of lines `first` to `last` of a file."""
    with path.open("rb") as file:
        # In a larger file one line may be larger than memory, and is read up to a limit.
        if between == (0, 0) and path.stat().st_size <= _LONGEST_LINE:
            yield from _all_events(path, file, given, first, last)
            return
        numbered = enumerate(islice(iter(lambda: file.readline(_LONGEST_LINE), b""), first, last), first + 1)
        yield from _ends(path, numbered, between)


def _ends(path: Path, numbered: Iterator[tuple[int, bytes]], between: tuple[int, int]) -> Iterator[Event]:
    """All events but the detail of what lies between two places of a file."""
    at, left_out, latest = 0, 0, 0.0
    for number, line in numbered:
        at += len(line)
        # By its first bytes, not decoded: there may be gigabytes of it.
        if between[0] < at < between[1] and is_detail(line):
            left_out += 1
            continue
        event = _event(path, number, line)
        if left_out and at >= between[1]:
            yield Omitted(latest, getattr(event, "t", latest), {}, {}, 0, 0, _NOT_READ)
            left_out = 0
        if not left_out:
            latest = getattr(event, "t", latest)
        yield event


def _all_events(
    path: Path, file: BinaryIO, given: Callable[[_Found], Iterable[T]], first: int, last: int | None
) -> Iterator[T | Event]:
    """All events of these lines: many lines at once, and each by itself only where one is not an event."""
    for _ in range(first):
        file.readline()
    number = first
    while (last is None or number < last) and (lines := file.readlines(_BYTES_AT_ONCE)):
        lines = lines if last is None else lines[: last - number]
        if (found := _together(lines)) is not None:
            yield from given(found)
        else:
            yield from (_event(path, at, line) for at, line in enumerate(lines, number + 1))
        number += len(lines)


@dataclass(frozen=True, slots=True)
class _Found:
    """Some lines, decoded and checked at once, which takes half as long."""

    kinds: list[object]
    """Of each line."""
    detail: Mapping[object, Columns]
    others: Mapping[object, list[Event]]

    def in_order(self) -> list[Event]:
        """The events of all lines."""
        found = {kind: iter(some) for kind, some in self.others.items()}
        found |= {kind: columns.events() for kind, columns in self.detail.items()}
        return [next(found[kind]) for kind in self.kinds]

    def by_kind(self) -> Iterable[Event | Columns]:
        """The others, the first record among them, and then all that is detail."""
        return chain(*self.others.values(), self.detail.values())


def _together(lines: list[bytes]) -> _Found | None:
    """What these lines hold; None: one of them is no event, or has an unusual value."""
    try:
        records = json_records(b",".join(lines).decode("utf-8"))
        if len(records) != len(lines):
            return None
        kinds = [record["kind"] for record in records]
        by_kind: dict[object, list[Record]] = {kind: [] for kind in kinds}
        for kind, record in zip(kinds, records, strict=True):
            by_kind[kind].append(record)
        detail = {kind: _checked_columns(kind, some) for kind, some in by_kind.items() if kind in _COLUMNS}
        others = {
            kind: [_checked(from_record(record)) for record in some]
            for kind, some in by_kind.items()
            if kind not in _COLUMNS
        }
        return _Found(kinds, detail, others)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _checked_columns(kind: object, records: list[Record]) -> Columns:
    """Records of one kind of detail.

    Raises:
        ValueError: One is none, or has an unusual value.
    """
    cls, get, types = _COLUMNS[kind]
    if set(map(len, records)) != {len(types) + 1}:
        raise ValueError("a record has other fields")
    columns = tuple(zip(*map(get, records), strict=True))
    for values, usual in zip(columns, types, strict=True):
        if usual is None:  # who took part in a transfer: one name, or a list of them
            names = [who if type(who) is list else [who] for who in values]
            if set(map(type, chain.from_iterable(names))) != {str}:
                raise ValueError("a name is none")
        elif set(map(type, values)) != {usual}:
            raise ValueError("a value is of another type")
        elif usual is not str and not -_LARGEST_INT < min(values) <= max(values) < _LARGEST_INT:
            raise ValueError("a number is too large")
    return Columns(cls, columns)


def checked_event(line: bytes) -> Event:
    """The event of a line, each of its values of the right type.

    Raises:
        ValueError: The line is none.
    """
    return _checked(from_line(line.decode("utf-8")))


def _event(path: Path, number: int, line: bytes) -> Event:
    try:
        return checked_event(line)
    except ValueError as error:
        raise InputError(f"{path}, line {number}, is not an event: {str(error)[:200]}; was the run cut off?") from None


def _after(path: Path) -> int:
    """After which line of events.jsonl a file of the latest part begins."""
    with path.open("rb") as file:
        line = file.readline(1000)
    try:
        after = json.loads(line)["after"]
    except (ValueError, KeyError, TypeError, RecursionError):
        after = None
    if not isinstance(after, int):
        raise InputError(f"{path} does not say which part of the run it holds; was the run cut off?")
    return max(0, after)


def _checked(event: Event) -> Event:
    """The event; raises if a value is not of its field's type, because reports rely on that."""
    for name, hint in _hints(type(event)).items():
        if not _fits(value := getattr(event, name), hint):
            raise ValueError(f"{name} is {value!r:.80}")
    return event


_known: dict[type, Mapping[str, object]] = {}


def _hints(cls: type) -> Mapping[str, object]:
    if cls not in _known:
        hints = get_type_hints(cls)
        _known[cls] = {field.name: hints[field.name] for field in fields(cls)}
    return _known[cls]


def _fits(value: object, hint: object) -> bool:
    # By hand and not with a library: a file may have millions of records, and there are few kinds of values.
    if hint is str:
        return isinstance(value, str)
    if hint is float:
        return isinstance(value, float | int) and not isinstance(value, bool) and _is_finite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST_INT
    if hint is bool or hint is NoneType:
        return isinstance(value, bool) if hint is bool else value is None
    origin, options = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return any(_fits(value, option) for option in options)
    if origin is list:
        return isinstance(value, list) and all(_fits(each, options[0]) for each in value)
    if origin is Mapping:
        return isinstance(value, dict) and all(_fits(each, options[1]) for each in value.values())
    assert isinstance(hint, type), hint
    return isinstance(value, hint) and all(_fits(getattr(value, n), h) for n, h in _hints(hint).items())


def _is_finite(value: float) -> bool:
    return abs(value) < _LARGEST_INT if isinstance(value, int) else math.isfinite(value)


_Columns = tuple[type[Detail], Callable[[Record], tuple[object, ...]], tuple[type | None, ...]]


def _columns(cls: type[Detail]) -> _Columns:
    """One kind of detail, what gets its values out of a record, and their usual types."""
    types = [hint if isinstance(hint, type) else None for hint in _hints(cls).values()]
    return cls, itemgetter(*_hints(cls)), tuple(types)


_COLUMNS: dict[object, _Columns] = {cls.kind: _columns(cls) for cls in get_args(Detail)}
"""Of detail, which is nearly all of a file that may have millions of records."""

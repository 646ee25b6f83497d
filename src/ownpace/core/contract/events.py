"""What happened in a run, as one stream of typed records: the only thing that reports read.

A file of events holds one JSON object per line, with its `kind` first. `t` is when something began and `until`
when it ended, in seconds of the engine's clock since the start of the run; a record without `until` has no
duration. A file begins with `run` and closes with `end`, however the run ended.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

FORMAT = 1
Groups = Mapping[str, list[str]]


@dataclass(slots=True)
class Run:
    """The first record: what is run, and which nodes take part."""

    kind: ClassVar[str] = "run"
    algorithm: str
    engine: str
    task: str
    model: str
    seed: int
    batch_size: int
    micro_batch: int
    num_parameters: int
    parameter_bytes: int
    samples: int | None
    """The budget, if it is one of samples."""
    target: float | None
    groups: Groups
    """The names of the members of every group of nodes: `workers`, `servers` and those of the algorithm."""
    format: int = FORMAT
    target_loss: float | None = None


@dataclass(slots=True)
class Load:
    """A worker drew and loaded samples."""

    kind: ClassVar[str] = "load"
    t: float
    until: float
    who: str
    samples: int


@dataclass(slots=True)
class Compute:
    """A worker computed the gradient of one micro-batch, at parameters of this version."""

    kind: ClassVar[str] = "compute"
    t: float
    until: float
    who: str
    samples: int
    version: int


@dataclass(slots=True)
class Transfer:
    """Bytes moved: from the first to the second of `who`, or as a collective among a named group."""

    kind: ClassVar[str] = "transfer"
    t: float
    until: float
    what: str
    who: list[str] | str
    nbytes: int


@dataclass(slots=True)
class Wait:
    """A node had nothing to do but wait for what it awaited."""

    kind: ClassVar[str] = "wait"
    t: float
    until: float
    who: str
    what: str


@dataclass(slots=True)
class Update:
    """The global parameters (or a server's shard of them) got one optimizer step; `version` counts them."""

    kind: ClassVar[str] = "update"
    t: float
    who: str
    version: int
    samples: int
    """Of the gradient that was applied."""
    total_samples: int
    """Of all updates so far."""
    staleness: int
    """Updates between the parameters the gradient was computed at and those it was applied to."""


@dataclass(slots=True)
class Evaluation:
    """The global parameters were evaluated on the test data."""

    kind: ClassVar[str] = "evaluation"
    t: float
    samples: int
    updates: int
    loss: float | None
    """None: not finite."""
    accuracy: float | None


@dataclass(slots=True)
class Fault:
    """Something happened to a node: `kill`, `pause`, `cut`, `back`; `leave`: a signal asked it to end."""

    kind: ClassVar[str] = "fault"
    t: float
    who: str
    what: str


@dataclass(slots=True)
class Omitted:
    """Detail of this stretch of time is not in this file, which has a bound: what it adds up to, by kind of record."""

    kind: ClassVar[str] = "omitted"
    t: float
    until: float
    counts: Mapping[str, int]
    seconds: Mapping[str, float]
    """How long they took, all together."""
    computed_samples: int
    """Of all gradients computed."""
    updated_samples: int
    """Of all updates made."""
    why: str = "limit"
    """`limit`, or why nothing could be recorded: then it is not known what is missing."""


@dataclass(slots=True)
class Generation:
    """The run goes on with these workers, from this state; the first generation has no such record."""

    kind: ClassVar[str] = "generation"
    t: float
    number: int
    """From 1 on, which is the start of the run."""
    why: str
    """`checkpoint`, `join`, `leave` (both at a border), `death` (a worker is gone) or `restart` (a server was)."""
    members: list[str] | None
    """The workers by rank; None: those of before."""
    updates: int
    """That made the parameters it begins with."""
    samples: int
    """Of those updates."""
    lost: int = 0
    """Updates that were recorded before, but died with the node that made them."""


@dataclass(slots=True)
class Tally:
    """What one worker did over the whole run."""

    samples: int
    """That it computed, be they in an update or not."""
    compute_s: float
    load_s: float


@dataclass(slots=True)
class Sums:
    """The run in numbers, taken when its budget was spent, or where it ended early."""

    seconds: float
    samples: int
    """Of all updates made."""
    updates: int
    staleness_mean: float
    staleness_max: int
    limit_samples_per_s: float
    """The sum of what each worker would do alone and without a pause."""
    workers: Mapping[str, Tally]
    replicas_identical: bool | None = None
    """Whether all workers ended with the same bits, where the algorithm promises that; None where it does not."""
    largest_update: int | None = None
    """The most samples that one update had; None in files from before that was recorded."""
    spread_mean: float | None = None
    """With local steps: ‖y − x‖ / ‖x‖, a replica y and the global parameters x that it takes over; None without."""
    spread_max: float | None = None
    rounded_apart: int | None = None
    """Where processors round differently: how often replicas differed, and were made equal again; None: never."""
    rounded_apart_max: float | None = None
    """By how much at most, next to a layer's largest number."""


@dataclass(slots=True)
class End:
    """The last record: how the run ended. What was in flight when the budget was spent has ended by now, too."""

    kind: ClassVar[str] = "end"
    t: float
    reason: str
    """`finished`, or what ended it early."""
    sums: Sums
    code: str | None = None
    """Of a run that ended early: the `code` of its error. Records of runs that finished have none."""


Event = Run | Load | Compute | Transfer | Wait | Update | Evaluation | Fault | Generation | Omitted | End
Detail = Load | Compute | Transfer | Wait | Update
"""What there is much of: `--no-detail` leaves it out, and a long run's file holds its beginning and its latest part."""
Emit = Callable[[Event], None]
Record = dict[str, object]
"""An event as an object of JSON."""
_KINDS: dict[object, Callable[..., Event]] = {
    cls.kind: cls for cls in (Run, Load, Compute, Transfer, Wait, Update, Evaluation, Fault, Generation, Omitted, End)
}


def to_line(event: Event) -> str:
    """The event as one line of JSON.

    >>> to_line(Wait(1.0, 1.5, "worker-0", "all-reduce"))
    '{"kind":"wait","t":1.0,"until":1.5,"who":"worker-0","what":"all-reduce"}'
    """
    values = _of_end(event) if isinstance(event, End) else {name: getattr(event, name) for name in event.__slots__}
    return _encode({"kind": event.kind, **values})


def _of_end(event: End) -> Record:
    # Left out where there is nothing to say, so that files of finished runs are what they were before these fields.
    record = dataclasses.asdict(event)
    if event.code is None:
        del record["code"]
    if event.sums.rounded_apart is None:
        del record["sums"]["rounded_apart"], record["sums"]["rounded_apart_max"]
    return record


def from_line(line: str) -> Event:
    """The event that a line of JSON describes.

    Raises:
        ValueError: It describes none.
    """
    try:
        text = line.strip()
        record, end = _decoder.raw_decode(text)  # `decode` looks for space around it, twice
        if end != len(text):
            raise ValueError("there is more than one JSON value")
        return from_record(record)
    # Whatever else JSON may hold: a list, a number, null, a name that is none, nesting without end.
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def json_records(text: str) -> list[Record]:
    """Objects of JSON with commas between them; whether they are objects is not looked at."""
    values: list[Record] = _decoder.decode(f"[{text}]")
    return values


def from_record(record: Record) -> Event:
    """The event that an object of JSON describes, which is used up."""
    make = _KINDS[record.pop("kind")]
    if make is End:
        sums = cast("dict[str, Mapping[str, Mapping[str, int]]]", record["sums"])
        make_sums: Callable[..., Sums] = Sums
        workers = {name: Tally(**tally) for name, tally in sums["workers"].items()}
        record["sums"] = make_sums(**{**sums, "workers": workers})
    return make(**record)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse)
# NaN is not JSON: other readers than Python would refuse the file.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

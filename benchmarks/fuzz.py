"""Feed parsers with what nobody should send: whatever comes, an error of ours, in bounded time and memory.

    pip install atheris            # coverage-guided; without it, the same inputs are mutated at random
    python benchmarks/fuzz.py      # the list of targets
    python benchmarks/fuzz.py wire --runs 1000000

What a target must not do is raise anything but an error of ownpace's, take longer than ten seconds, or ask for more
than 64 MB at once. The input that made it do so is printed, and saved beside a `crash-` name by atheris.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import hashlib
import json
import random
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

try:
    import atheris
except ImportError:
    atheris = None

with contextlib.nullcontext() if atheris is None else atheris.instrument_imports(include=["ownpace"]):
    import ownpace.drop_in.packing
    from ownpace.core.contract import event_file, events
    from ownpace.core.contract.errors import OwnpaceError
    from ownpace.core.contract.values import Gradient, Parameters, Shard
    from ownpace.core.learning import state_file
    from ownpace.engines.ledger import UpdateTotals
    from ownpace.engines.process.meet import incarnation, key_exchange
    from ownpace.engines.process.talk import control, counters, regrouping, sealed_store, shared_memory, states, wire
    from ownpace.engines.process.talk.header import SumHeader
    from ownpace.fleet import read as fleet_file
    from ownpace.run import Config

import numpy as np
import torch
import torch.distributed as dist

SHARDS = (Shard(0, 0, 5), Shard(1, 5, 12))
LIMITS = wire.Limits(SHARDS, 12, torch.float32, 4)
FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
LONGEST_S, LARGEST_MB = 10, 64


class Frame:
    """A part of a message."""

    def __init__(self, content: bytes) -> None:
        self.buffer = memoryview(content)


def joined(frames: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(frame)) + frame for frame in frames)


def frames_of(data: bytes) -> list[Frame]:
    frames = []
    while len(data) >= 4 and len(frames) < 64:
        length = min(struct.unpack_from("<I", data)[0], len(data) - 4)
        frames.append(Frame(data[4 : 4 + length]))
        data = data[4 + length :]
    return frames


def packets() -> list[bytes]:
    """One message of each kind."""
    gradient = Gradient(torch.ones(12), 3, (4, 5), 0.5, 0.25, {"square": 1.0}, sources=((0, 3),))
    bodies = [None, gradient, Parameters(torch.ones(5), 9, SHARDS[0]), torch.ones(6)]
    made = [wire.Packet(body, {"group": 3.0}, 7, True, 1.5, (0.1, 0.9), 2) for body in bodies]
    made += [wire.Packet(control=control.from_record(json.loads(record))) for record in records()]
    return [joined([bytes(frame) for frame in wire.pack(packet)]) for packet in made]


def records() -> list[bytes]:
    report = control.Report(1.5, UpdateTotals(3, 96), control.WorkDone(96, 1.0, 0.0, None, [[0.0, 0.5]]), ["{}"])
    said = [
        control.Hello({"model": "12 parameters"}), control.Start(3.25), report, control.Snapshot(1.0, 32, 1, 0, True),
        control.StatePart(3, "exp_avg", [2, 3], None, 7), control.Checksums(64, [1, -(2**63)]),
        control.Failed("diverged", "the loss is nan"), control.Together(3, "loop", 2, {"epochs": "1"}),
    ]  # fmt: skip
    return [json.dumps(control.to_record(each)).encode() for each in said]


def read_record(data: bytes) -> None:
    # As a frame of JSON, which is how it comes.
    wire.unpack([Frame(CONTROL_HEADER), Frame(data)], LIMITS)


CONTROL_HEADER = bytes(wire.pack(wire.Packet(control=control.Stop()))[0])


def checkpoint(data: bytes) -> None:
    """A checkpoint whose checksum is right, as only a forger's is: or nothing behind it would ever be reached."""
    length = int.from_bytes(data[:8], "little")
    at = 8 + len(b'{"__metadata__":{"sha256":"')
    if 8 + length <= len(data) and at + 64 <= len(data):
        blank = data[:at] + b"0" * 64 + data[at + 64 :]
        data = data[:at] + hashlib.sha256(blank).hexdigest().encode() + data[at + 64 :]
    from_file(data, "a.safetensors", state_file.read_state)


def a_checkpoint() -> bytes:
    path = FOLDER / "seed.safetensors"
    state_file.write_state(path, {"a": torch.ones(3), "b": [1, 2.5, {"c": "d"}], "e": None}, {"samples": 3})
    return path.read_bytes()


def from_file(data: bytes, name: str, read: Callable[[Path], object]) -> None:
    path = FOLDER / name
    path.write_bytes(data)
    read(path)


def sum_header(data: bytes) -> None:
    numbers = np.frombuffer(data[: len(data) // 4 * 4], np.float32)
    header = SumHeader(0, 2, 2, 3, num_workers=2)
    summed = np.zeros(header.size, np.float32)
    summed[: min(len(numbers), header.size)] = numbers[: header.size]
    with np.errstate(invalid="ignore"):
        try:
            header.read(summed, {})
        except ValueError as error:  # an algorithm's own mistake
            if "noted different things" not in str(error):
                raise


def a_state(data: bytes) -> None:
    """The state of a node, on its way in messages: an outline, and what the pieces of a tensor say of it."""
    text, _, rest = data.decode(errors="replace").partition("\n")
    assembly = states.StateAssembly()
    assembly.begin(regrouping.StateOutline(1, text, ["0/a"]))
    dtype, _, numbers = rest.partition(" ")
    shape = [abs(int(word)) for word in numbers.split() if word.isascii() and word.isdecimal() and len(word) < 19]
    assembly.take(regrouping.StateTensor(dtype, shape, True), torch.ones(6))


def state_outlines() -> list[bytes]:
    (first, *_) = states.packets({"a": torch.ones(2, 3), "b": [1, {"c": None}]}, 1, 10)
    assert isinstance(first.control, regrouping.StateOutline)
    return [f"{first.control.outline}\nfloat32 2 3".encode()]


def in_store(data: bytes) -> None:
    """Everything that is read from a store before and after there is a key."""
    store = dist.HashStore()
    store.set("roll", data)
    store.set("here/1", data)
    incarnation._read_roll(store, 2)
    incarnation._read(store, "here/1")
    store.set("claims/1/0", data)
    sealed = sealed_store.SealedStore(store, "secret")
    for ask in (
        lambda: key_exchange._Said.parse(1, data.decode("ascii", "replace")),
        lambda: counters.Counters(sealed, "secret", first=False, spans_hosts=True).claims(1, 1),
        lambda: sealed.get("roll"),
    ):
        with contextlib.suppress(OwnpaceError):
            ask()


TARGETS: dict[str, tuple[Callable[[bytes], object], list[bytes]]] = {
    "wire": (lambda data: wire.unpack(frames_of(data), LIMITS), packets()),
    "control": (read_record, records()),
    "place": (lambda data: shared_memory.Incoming().get("sender", data), [b"OWNPLACE" + bytes(40)]),
    "state": (a_state, [b'{"a": [0]}\nfloat32 2 3', *state_outlines()]),
    "sum-header": (sum_header, [bytes(200), np.ones(60, np.float32).tobytes()]),
    "store": (in_store, [b"0" * 32 + b" " + b"1" * 32, b"1 2 3 4 ", b"/1/0", b"ffff/1/1"]),
    "between-ranks": (
        lambda data: ownpace.drop_in.packing.unpack(data, {}),
        [ownpace.drop_in.packing.Packed().text({"a": [torch.ones(2), 1, "b"]}).encode()],
    ),
    "checkpoint": (checkpoint, [a_checkpoint()]),
    "events": (
        lambda data: from_file(data, "events.jsonl", lambda path: list(event_file.read_events(path))),
        [events.to_line(events.Wait(1.0, 1.5, "worker-0", "all-reduce")).encode()],
    ),
    "config": (
        lambda data: from_file(data, "config.json", Config.load),
        [b'{"algorithm": "sync", "fleet": "4,2,1,1", "lr": 0.1, "parameters": {"batch": 3}}'],
    ),
    "fleet": (
        lambda data: from_file(data, "fleet.toml", fleet_file.read_toml),
        [b'[[machine]]\nsamples_per_s = 4\ncount = 2\n[[server]]\nhost = 1\n[[fault]]\nkind = "kill"\n'],
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", choices=TARGETS, help=", ".join(TARGETS))
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.target is None:
        print("\n".join(TARGETS))
        return
    target, seeds = TARGETS[given.target]

    def once(data: bytes) -> None:
        with contextlib.suppress(OwnpaceError):
            target(data)

    if atheris is None:
        at_random(once, seeds, given.runs, random.Random(given.seed))
        return
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds):
        (corpus / str(number)).write_bytes(seed)
    options = [f"-runs={given.runs}", f"-seed={given.seed}", f"-timeout={LONGEST_S}", "-rss_limit_mb=2048"]
    options += [f"-malloc_limit_mb={LARGEST_MB}", "-max_len=8192", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], once)
    atheris.Fuzz()


def at_random(once: Callable[[bytes], None], seeds: list[bytes], runs: int, draw: random.Random) -> None:
    """Without atheris: bytes flipped, cut, doubled and made up."""
    longest_s = 0.0
    for _ in range(runs):
        data = bytearray(draw.choice(seeds))
        for _ in range(draw.randint(0, 8)):
            place = draw.randint(0, len(data))
            match draw.randint(0, 3):
                case 0 if data:
                    data[place - 1] ^= 1 << draw.randint(0, 7)
                case 1:
                    del data[place : place + draw.randint(1, 16)]
                case 2:
                    data[place:place] = data[place : place + draw.randint(1, 64)]
                case _:
                    data[place:place] = draw.choice([draw.randbytes(4), b"NaN", b"1e999", b"-1", b"null", b"[[[["])
        began = time.perf_counter()
        try:
            once(bytes(data))
        except BaseException:
            print(f"with {bytes(data)!r}")
            raise
        longest_s = max(longest_s, time.perf_counter() - began)
    print(f"{runs} inputs, none with a fault; the longest took {longest_s * 1000:.0f} ms")


if __name__ == "__main__":
    main()

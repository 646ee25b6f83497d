"""States as files: what was written is read, bit for bit, and anything else is refused in one line."""

from __future__ import annotations

import hashlib
import math
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.state_file import read_state, write_state

DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool,
    torch.uint64, torch.complex64,
]  # fmt: skip


def a_state() -> dict[str, object]:
    shared = torch.arange(4.0)
    return {
        "tensors": [torch.arange(6).reshape(2, 3).to(dtype) for dtype in DTYPES],
        "empty": torch.empty(300_000, 0),
        "scalar": torch.tensor(math.nan),
        "view": torch.arange(9.0).reshape(3, 3).t()[1],
        "slice of one": torch.arange(4.0)[3::11],
        "shared": (shared, shared),
        "numbers": [0.1, -0.0, math.inf, -math.inf, 5e-324, 2**70, True, None, "ä\n"],
        "by number": {0: {"step": 1}, "0": 2},
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.safetensors"
    write_state(path, a_state(), {"samples": 12})
    return path


def test_what_was_written_is_read_bit_for_bit(path):
    found = read_state(path)
    expected: dict[str, Any] = a_state()
    state: dict[str, Any] = found.state
    assert found.about == {"samples": 12}
    assert list(state) == list(expected)
    for one, other in zip(state["tensors"], expected["tensors"], strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert state["empty"].shape == (300_000, 0)
    assert math.isnan(state["scalar"])
    assert state["scalar"].shape == ()
    assert state["view"].tolist() == [1.0, 4.0, 7.0]
    assert state["slice of one"].tolist() == [3.0]
    assert str(state["numbers"]) == str(expected["numbers"])  # which tells -0.0 from 0.0
    assert state["by number"] == expected["by number"]
    one, other = state["shared"]
    one += 1
    assert other.tolist() == [0, 1, 2, 3], "each holder has one of its own"


def test_other_readers_of_safetensors_can_read_it(path):
    with safe_open(path, "pt") as file:
        names = file.keys()
        assert len(names) == len(DTYPES) + 5, "what two hold is written once"
        assert any(name.endswith("/view") and file.get_tensor(name).tolist() == [1.0, 4.0, 7.0] for name in names)
        assert len(file.metadata()["sha256"]) == 64


def test_any_flipped_bit_and_any_cut_is_noticed(path):
    whole = path.read_bytes()

    @settings(max_examples=300)
    @given(st.integers(0, len(whole) - 1), st.integers(0, 7), st.booleans())
    def check(place: int, bit: int, cut: bool) -> None:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit
        path.write_bytes(whole[:place] if cut else damaged)
        with pytest.raises(InputError, match=r"a\.safetensors cannot be read as a checkpoint: its? "):
            read_state(path)

    check()
    path.write_bytes(whole + b"\0")
    with pytest.raises(InputError, match="cut off or damaged"):
        read_state(path)


def forged(path: Path, header: bytes, data: bytes = b"") -> None:
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


BEGIN = b'{"__metadata__":{"sha256":"' + b"0" * 64 + b'","ownpace":'


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b'{"a":1}', "not a checkpoint of ownpace"),
        (BEGIN + b"[" * 100_000, "damaged"),
        (BEGIN + b'"' + b"[" * 100_000 + b'"}}', "damaged"),
        (BEGIN + b'"5"}}', "damaged"),
        (BEGIN + b'"{}"},"__metadata__":5}', "damaged"),
        (BEGIN + rb'"{\"format\":2,\"ownpace\":\"9.9\"}"}}', "it has format 2, written by ownpace 9.9"),
        (BEGIN + rb'"{\"format\":1}"},"a":5}', "it is damaged: what it says of 'a' cannot be"),
        (
            BEGIN + rb'"{\"format\":1}"},"a":{"dtype":"F32","shape":[4000000000],"data_offsets":[0,16000000000]}}',
            "not 16,000,000,000",
        ),
        (
            BEGIN + rb'"{\"format\":1}"},"a":{"dtype":"F32","shape":[4611686018427387903,4611686018427387903,0],'
            rb'"data_offsets":[0,0]}}',
            "damaged",
        ),
        (BEGIN + rb'"{\"format\":1,\"about\":5,\"state\":5}"}}', "its checksum is wrong"),
    ],
)
def test_what_others_made_up_is_refused_before_anything_is_allocated(tmp_path, header, reason):
    path = tmp_path / "forged.safetensors"
    forged(path, header)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=reason):
        read_state(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_a_header_of_any_size_is_bounded(tmp_path):
    path = tmp_path / "long.safetensors"
    with path.open("wb") as file:
        file.write((2**63).to_bytes(8, "little"))
        file.truncate(2**40)  # takes no room on the disk
    with pytest.raises(InputError, match="cut off, or not a checkpoint of ownpace"):
        read_state(path)


def test_a_full_disk_leaves_the_file_before_it(path, monkeypatch):
    before = path.read_bytes()
    written = os.fsync

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_state(path, {"a": torch.ones(3)})
    monkeypatch.setattr(os, "fsync", written)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_folders_and_devices_are_no_checkpoints(tmp_path):
    for place in (tmp_path, Path("/dev/zero")):
        with pytest.raises(InputError, match="cannot be read as a checkpoint"):
            read_state(place)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="it is not a file"):
        read_state(tmp_path / "pipe")


def test_what_a_file_cannot_hold_is_named(tmp_path):
    with pytest.raises(InputError, match=r"kept/worker-0 is a tensor of .*sparse.*use a dense one"):
        write_state(tmp_path / "s", {"kept": {"worker-0": torch.eye(2).to_sparse()}})
    with pytest.raises(InputError, match=r"kept/f is a builtin_function_or_method"):
        write_state(tmp_path / "s", {"kept": {"f": print}})
    assert not list(tmp_path.iterdir())


def test_no_forged_file_with_a_right_checksum_does_worse_than_an_error(path):
    """Whoever can write files can compute checksums, too."""
    whole = path.read_bytes()
    at = whole.index(b'"sha256":"') + 10

    @settings(max_examples=200, deadline=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        forged = bytearray(whole)
        for _ in range(data.draw(st.integers(1, 4))):
            place = data.draw(st.integers(8, len(whole) - 1))
            piece = data.draw(st.binary(min_size=1, max_size=3) | st.sampled_from([b"[", b"]", b"9", b"-", b'"', b"{"]))
            forged[place : place + len(piece)] = piece
        forged = forged[: len(whole)]
        forged[at : at + 64] = b"0" * 64
        forged[at : at + 64] = hashlib.sha256(forged).hexdigest().encode()
        path.write_bytes(forged)
        with suppress(InputError):  # any other error fails
            read_state(path)

    check()

"""A state as one file, which is whole or refused.

It is a file of safetensors, for any of its readers: the tensors, and everything around them as JSON in the metadata.

    8 bytes     length of the header
    header      {"__metadata__":{"sha256":"…","ownpace":"…"},"0/parameters":{"dtype":"F32","shape":[…], …}, …}
    the rest    the tensors' bytes, without gaps

`sha256` is the digest of the whole file with 64 zeros in that place, which is always the same place: no byte can change
unnoticed. A file gets its name only once it is on the disk, so after a crash there is the new one, or the one before.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
from torch import Tensor

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.plain_state import Filling, Outline, PlainState, bytes_of
from ownpace.core.version import __version__
from ownpace.core.whole_file import whole_file

FORMAT = 1
MOST_HEADER_BYTES = 100_000_000
"""What other readers of safetensors accept, too."""
_BEFORE_DIGEST = b'{"__metadata__":{"sha256":"'
_NO_DIGEST = "0" * 64
_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "I16": torch.int16, "U16": torch.uint16, "F16": torch.float16,
    "BF16": torch.bfloat16, "I32": torch.int32, "U32": torch.uint32, "F32": torch.float32, "C64": torch.complex64,
    "I64": torch.int64, "U64": torch.uint64, "F64": torch.float64,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class StateFile:
    """What a file holds."""

    state: dict[str, object]
    about: dict[str, object]
    """What its writer said of it."""
    digest: str


class _Entry(NamedTuple):
    """Where a tensor lies, from the end of the header on."""

    begin: int
    end: int
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    def empty(self) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype)


def write_state(path: Path, state: PlainState, about: PlainState | None = None) -> str:
    """Write a state, its checksum included; what was there before stays until the new file is whole.

    Args:
        path: The file.
        state: Plain values and tensors.
        about: What else to say of it, of plain values.

    Returns:
        The digest.

    Raises:
        InputError: The state holds something else.
        OSError: It could not be written, and nothing is left of it.
    """
    outline = Outline()
    content = {"format": FORMAT, "ownpace": __version__, "about": outline.of(about or {}), "state": outline.of(state)}
    tensors = [(name, *_bytes_of(name, tensor)) for name, tensor in outline.tensors.items()]
    # Large types first, as safetensors does it: every tensor then lies at a multiple of its type's size.
    tensors.sort(key=lambda each: -each[1].itemsize)
    header = _header(json.dumps(content), [(name, dtype, shape, len(data)) for name, dtype, shape, data in tensors])
    digest = hashlib.sha256(header)
    for *_, data in tensors:
        digest.update(data)
    head = header.replace(_NO_DIGEST.encode(), digest.hexdigest().encode(), 1)
    with whole_file(path) as part, part.open("wb", buffering=0) as file:
        for piece in (memoryview(head), *(data for *_, data in tensors)):
            _write_all(file, piece)
    return digest.hexdigest()


def _bytes_of(name: str, tensor: Tensor) -> tuple[torch.dtype, tuple[int, ...], memoryview]:
    if tensor.layout is not torch.strided or tensor.dtype not in _NAMES:
        raise InputError(
            f"{name} is a tensor of {tensor.dtype}, {tensor.layout}, which a checkpoint cannot hold; use a dense one"
        )
    return tensor.dtype, tuple(tensor.shape), bytes_of(tensor).numpy().data


def _header(content: str, tensors: list[tuple[str, torch.dtype, tuple[int, ...], int]]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"sha256": _NO_DIGEST, "ownpace": content}}
    begin = 0
    for name, dtype, shape, size in tensors:
        entries[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": [begin, begin + size]}
        begin += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MOST_HEADER_BYTES:
        raise InputError(f"the state takes {len(text):,} bytes without its tensors; {MOST_HEADER_BYTES:,} are allowed")
    return len(text).to_bytes(8, "little") + text


def _write_all(file: BinaryIO, data: memoryview) -> None:
    while data:  # one call writes 2 GiB at most, and less on a disk that is nearly full
        data = data[file.write(data) :]


def read_state(path: Path) -> StateFile:
    """Read a state, its tensors on the CPU.

    Raises:
        InputError: There is no such file, it is not one of ownpace, it is damaged, or this version cannot read it.
    """
    if not path.exists():
        raise InputError(f"there is no checkpoint {path}")
    try:
        # Before it is opened: a pipe would be waited for.
        if not path.is_file():
            raise InputError("it is not a file")
        with path.open("rb") as file:
            return _read(file, path.stat().st_size)
    except Exception as error:  # whatever a file of garbage makes of json, torch and us
        reason = str(error) if isinstance(error, InputError) else f"it is damaged ({type(error).__name__}: {error})"
        first = (reason.splitlines() or [""])[0][:200]
        raise InputError(f"{path} cannot be read as a checkpoint: {first}") from None


def _read(file: BinaryIO, size: int) -> StateFile:
    start = file.read(8)
    length = int.from_bytes(start, "little")
    # Before anything of that size is read.
    if len(start) < 8 or length > MOST_HEADER_BYTES or 8 + length > size:
        raise InputError("it is cut off, or not a checkpoint of ownpace")
    header = file.read(length)
    at = len(_BEFORE_DIGEST)
    if not header.startswith(_BEFORE_DIGEST):
        raise InputError("it is not a checkpoint of ownpace")
    given = header[at : at + 64]
    entries = json.loads(header)
    content = json.loads(entries.pop("__metadata__")["ownpace"])
    if content["format"] != FORMAT:
        raise InputError(
            f"it has format {content['format']!r}, written by ownpace {content.get('ownpace')}; this is ownpace "
            f"{__version__}, which reads format {FORMAT}: use that version"
        )
    places = list(_checked(entries, size - 8 - length))
    digest = hashlib.sha256(start + header[:at] + _NO_DIGEST.encode() + header[at + 64 :])
    tensors = {}
    for entry in places:
        data = _read_bytes(file, entry.end - entry.begin)
        digest.update(data.numpy().data)
        # The second for what is empty: no bytes cannot be looked at as numbers.
        tensors[entry.name] = data.view(entry.dtype).reshape(entry.shape) if len(data) else entry.empty()
    if digest.hexdigest().encode() != given:
        raise InputError("its checksum is wrong: it is damaged")
    filling = Filling(tensors)
    about, state = filling.of(content["about"]), filling.of(content["state"])
    if not isinstance(about, dict) or not isinstance(state, dict):
        raise InputError("it holds no state")
    return StateFile(state, about, digest.hexdigest())


def _checked(entries: Mapping[str, object], size: int) -> Iterator[_Entry]:
    """Where the tensors lie, in the order of the file. They must fill it, so none can be larger than it is."""
    if size > _memory_bytes():
        raise InputError(f"it has {size:,} bytes, more than the memory of this machine")
    found = [_entry(name, fields) for name, fields in entries.items()]
    filled = 0
    for place in sorted(found):
        needed = place.dtype.itemsize
        for each in place.shape:
            needed *= each
        if place.begin != filled or place.end - place.begin != needed:
            raise InputError("it is cut off or damaged: its tensors do not fill it")
        filled = place.end
        yield place
    if filled != size:
        raise InputError(f"it is cut off or damaged: it has {size:,} bytes of tensors, not {filled:,}")


def _entry(name: str, fields: object) -> _Entry:
    match fields:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if dtype in _DTYPES:
            if all(isinstance(each, int) and 0 <= each < 2**62 for each in (begin, end, *shape)):
                return _Entry(begin, end, name, _DTYPES[dtype], tuple(shape))
    raise InputError(f"it is damaged: what it says of {name[:40]!r} cannot be")


def _read_bytes(file: BinaryIO, size: int) -> Tensor:
    data = torch.empty(size, dtype=torch.uint8)
    rest = data.numpy().data
    while rest:
        if not (count := file.readinto(rest)):  # type: ignore[attr-defined]  # every binary file has it
            raise InputError("it is cut off")
        rest = rest[count:]
    return data


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

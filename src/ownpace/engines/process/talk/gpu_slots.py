"""Tensors of processes that share one GPU (by MPS, say): each reads the others' where they are, by CUDA's own handles.

NCCL refuses two processes on one GPU, and gloo takes every tensor over the host and through sockets.

A GPU does later what it is told now, so a count in shared memory is not enough: it says that an event has been
recorded, and the event says when it is over. Either Python waits for that; or the GPU does, and Python queues the next
update while GPUs still compute the gradients of this one. How far it runs ahead is bounded by the room for tensors.

A process that was killed may leave an event that never comes, and a stream that waits for it for ever: so Python waits
where a run outlives its members. Those that leave because another is gone look for such a stream, and say so.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from ownpace.core.contract.errors import MachineDied, SharedMemoryError
from ownpace.engines.process.talk.shared_slots import Board

EVENTS = 64
"""Of each kind; no more sums are in use at a time."""
_STUCK_S = 30.0
"""No update takes longer on a GPU that processes share, once it is queued."""


def kind_of(device: torch.device) -> str:
    """What all members must have in common to share their tensors: the very same GPU, or none."""
    return "cpu" if device.type == "cpu" else str(torch.cuda.get_device_properties(device).uuid)


class GpuSlots:
    """The tensors of all members, on one GPU."""

    def __init__(self, member: int, room: int, device: torch.device, board: Board) -> None:
        self.device = device
        self._member = member
        self._tensors: Sequence[Tensor] = [torch.empty(room, dtype=torch.uint8, device=device)]
        self._arrived: Sequence[Sequence[torch.cuda.Event]] = [_new_events()]
        self._taken: Sequence[Sequence[torch.cuda.Event]] = [_new_events()]
        shared = self._tensors[0].untyped_storage()._share_cuda_()
        events = [*self._arrived[0], *self._taken[0]]
        board.describe(
            json.dumps(
                {
                    "memory": [part.hex() if isinstance(part, bytes) else part for part in shared],
                    "offset": self._tensors[0].storage_offset(),
                    "events": [event.ipc_handle().hex() for event in events],
                }
            ).encode()
        )

    def open(self, boards: Sequence[Board]) -> None:
        """Get hold of the others' tensors and events.

        Raises:
            SharedMemoryError: It is not what it should be.
        """
        own, arrived, taken = self._tensors[0], self._arrived[0], self._taken[0]
        all_tensors, all_arrived, all_taken = [], [], []
        for member, board in enumerate(boards):
            found = (own, [*arrived, *taken]) if member == self._member else _open(board, own)
            all_tensors.append(found[0])
            all_arrived.append(found[1][:EVENTS])
            all_taken.append(found[1][EVENTS:])
        self._tensors, self._arrived, self._taken = all_tensors, all_arrived, all_taken

    def of(self, member: int, begin: int, nbytes: int) -> Tensor:
        return self._tensors[member][begin : begin + nbytes]

    def arrive(self, number: int) -> None:
        self._arrived[self._member][number % EVENTS].record(torch.cuda.current_stream(self.device))

    def has_arrived(self, member: int, number: int) -> bool:
        return bool(self._arrived[member][number % EVENTS].query())

    def await_arrived(self, number: int) -> None:
        stream = torch.cuda.current_stream(self.device)
        for events in self._arrived:
            stream.wait_event(events[number % EVENTS])

    def take(self, number: int) -> None:
        self._taken[self._member][number % EVENTS].record(torch.cuda.current_stream(self.device))

    def has_taken(self, member: int, number: int) -> bool:
        return bool(self._taken[member][number % EVENTS].query())

    def let_go(self) -> None:
        torch.cuda.synchronize(self.device)  # not before this GPU has read them
        self._tensors = [self._tensors[self._member]]

    def close(self, *, abandon: bool) -> None:
        if abandon and self._is_stuck():
            raise MachineDied(
                "a process that shares this GPU was killed in the middle of a sum, and the GPU waits for it without "
                "end; start again with --resume"
            )
        if not abandon:
            torch.cuda.synchronize(self.device)
        self._tensors, self._arrived, self._taken = [], [], []
        torch.cuda.ipc_collect()

    def _is_stuck(self) -> bool:
        """Whether what this GPU has been told to do does not end, since it waits for a part that never comes."""
        queued = torch.cuda.Event()
        queued.record(torch.cuda.current_stream(self.device))
        deadline = time.monotonic() + _STUCK_S
        while not queued.query():
            if time.monotonic() > deadline:
                return True
            time.sleep(0.01)
        return False


def _new_events() -> list[torch.cuda.Event]:
    return [torch.cuda.Event(interprocess=True) for _ in range(EVENTS)]


def _open(board: Board, like: Tensor) -> tuple[Tensor, list[torch.cuda.Event]]:
    try:
        said = json.loads(board.described())
        _, handle, nbytes, offset, counter, counter_at, event, waits = said["memory"]
        where = like.device.index, bytes.fromhex(handle), nbytes, offset, bytes.fromhex(counter), counter_at
        storage = torch.UntypedStorage._new_shared_cuda(*where, bytes.fromhex(event), waits)
        tensor = torch.empty(0, dtype=torch.uint8, device=like.device)
        tensor.set_(storage, said["offset"], like.shape, like.stride())
        events = [torch.cuda.Event.from_ipc_handle(like.device, bytes.fromhex(each)) for each in said["events"]]
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        raise SharedMemoryError(f"a GPU's memory cannot be opened: {str(error).splitlines()[0][:80]}") from None
    if len(events) != 2 * EVENTS:
        raise SharedMemoryError(f"a GPU's memory comes with {len(events)} events; {2 * EVENTS} are needed")
    return tensor, events

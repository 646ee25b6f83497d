"""Waiting until another process of this host changes a number in memory that both have, without asking again and again.

Linux's futex, by number: neither Python nor torch offers it. Only where stores are seen in the order in which they were
made, as x86 promises: the tensor is written first, the count of tensors after it, and there is no fence in Python.
"""

from __future__ import annotations

import ctypes
import platform
import sys

_SYSCALL = 202  # futex, on x86-64
_WAIT, _WAKE = 0, 1  # not the private kinds: those wake threads of one process only
_ALL = 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def is_available() -> bool:
    """Whether processes of this machine can wait for each other so."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and sys.byteorder == "little"


def wait(address: int, seen: int, timeout_s: float) -> None:
    """Wait until the number there (its lower 32 bits) is not `seen`; or the time is over, or a signal comes."""
    whole = int(timeout_s)
    limit = _Timespec(whole, int((timeout_s - whole) * 1e9))
    _libc.syscall(_SYSCALL, ctypes.c_void_p(address), _WAIT, ctypes.c_uint32(seen & 0xFFFFFFFF), ctypes.byref(limit))


def wake(address: int) -> None:
    """Let all look that wait for the number there."""
    _libc.syscall(_SYSCALL, ctypes.c_void_p(address), _WAKE, _ALL)


_libc = ctypes.CDLL(None)

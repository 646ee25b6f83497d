"""Where the processes of a run find each other: torchrun's environment, a store, an address to listen on, a key."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore

from ownpace.core.contract.errors import InputError, MachineDied
from ownpace.engines.process.meet.environment import Environment, default_timeout_s, number_in
from ownpace.engines.process.meet.incarnation import agree_on_mark, incomplete, new_mark
from ownpace.engines.process.meet.key_exchange import KeySettings, agree_on_key, offered
from ownpace.engines.process.talk.run_key import RunKey
from ownpace.engines.process.talk.sealed_store import SealedStore
from ownpace.engines.process.talk.store import KeyValues, read_when_set

if TYPE_CHECKING:
    from torch.distributed import Store

LOOPBACK = "127.0.0.1"
_LOOPBACK_S = 10.0
_joins = 0


@dataclass(frozen=True)
class Rendezvous:
    """All that a process needs to take part."""

    store_host: str
    store_port: int
    prefix: str
    secret: str = field(repr=False)
    host: str
    """The address of this machine that its nodes listen on."""
    backend: str = "gloo"
    timeout_s: float = field(default_factory=default_timeout_s)
    spans_hosts: bool = False
    """Whether nodes are on more than one host."""

    def open_store(self) -> SealedStore:
        """A connection to the store.

        Raises:
            MachineDied: No process answers.
        """
        try:
            store = TCPStore(
                self.store_host,
                self.store_port,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=self.timeout_s),
            )
        except RuntimeError:
            raise unreachable(self.store_host, self.store_port, self.timeout_s) from None
        return SealedStore(PrefixStore(self.prefix, store), self.secret)

    @property
    def key(self) -> RunKey:
        """The run's key."""
        return RunKey(self.secret)


def unreachable(host: str, port: int, timeout_s: float) -> MachineDied:
    """The error for a rendezvous where no process listens."""
    return MachineDied(
        f"no process answers at the rendezvous {host}:{port} within {timeout_s:g} s; is rank 0 up, and are MASTER_ADDR "
        "and MASTER_PORT those of its machine?"
    )


def port_in_use(host: str, port: int) -> bool:
    """Whether another process listens at an address of this machine."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            # As the store itself does: a port whose last connection is still closing counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def local_store() -> tuple[TCPStore, int]:
    """A store that only this machine can reach, and the port it listens on.

    Raises:
        InputError: Not even this machine can: in a container without a network, say.
    """
    # Bound by hand: a store that binds its own port listens on all interfaces, not on this machine alone.
    listening = socket.socket()
    try:
        listening.bind((LOOPBACK, 0))
        listening.listen(1024)
        port = listening.getsockname()[1]
        # The store would try for minutes.
        socket.create_connection((LOOPBACK, port), timeout=_LOOPBACK_S).close()
    except OSError as error:
        listening.close()
        raise InputError(
            f"{LOOPBACK}, where processes of one machine meet, cannot be used: {error.strerror or error}; is the "
            "loopback interface up (ip link set lo up)?"
        ) from None
    store = TCPStore(
        LOOPBACK,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),  # the store closes it: a second close would hit what has its number then
    )
    return store, port


def meet(environment: Environment, timeout_s: float | None = None) -> tuple[SealedStore, Rendezvous]:
    """Meet the other ranks that torchrun started; `timeout_s` is how long to wait for them.

    Returns:
        The store they share, and what the helpers of this process need to join.
    """
    global _joins
    timeout_s = default_timeout_s() if timeout_s is None else timeout_s
    # Part of the prefix: what an earlier fleet of this process wrote is still in the store.
    _joins += 1
    master = os.environ.get("MASTER_ADDR", LOOPBACK)
    port = number_in("MASTER_PORT", 29500)
    settings = KeySettings.read()
    base = _open_base(environment, master, port, timeout_s)
    host = _address_of_this_host(master, port) if environment.spans_hosts else LOOPBACK
    place = (environment.rank, environment.world_size)
    run, mine = os.environ.get("TORCHELASTIC_RUN_ID", ""), new_mark()
    meeting = f"ownpace/{run}/{_joins}"
    with offered(settings, environment.rank, mine) as secret:
        ours = not _agent_has_store()
        mark = agree_on_mark(PrefixStore(meeting, base), *place, mine, timeout_s, lives_as_long_as_rank_0=ours)
        prefix = f"{meeting}/{mark}"
        store = PrefixStore(prefix, base)
        secret = agree_on_key(store, settings, place, mark, secret, timeout_s)
    met = Rendezvous(master, port, prefix, secret, host, "gloo", timeout_s, environment.spans_hosts)
    return SealedStore(store, secret), met


def _agent_has_store() -> bool:
    """Under torchrun its agent usually hosts the store; started in another way, rank 0 has to."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _open_base(environment: Environment, master: str, port: int, timeout_s: float) -> Store:
    """Torch's own rendezvous: a store that all ranks can reach, and perhaps others."""
    hosts_store = environment.rank == 0 and not _agent_has_store()
    if not hosts_store:
        _await_master(master, port, timeout_s)
    # Before the attempt, which would take the port itself.
    taken = hosts_store and port_in_use(master, port)  # torch's own error tells it in words only
    try:
        base: Store
        base, _, _ = next(
            dist.rendezvous("env://", environment.rank, environment.world_size, timeout=timedelta(seconds=timeout_s))
        )
    except (RuntimeError, ValueError):
        if environment.rank:
            raise unreachable(master, port, timeout_s) from None
        if taken:
            raise InputError(
                f"port {port} on {master} is in use; choose another with torchrun's --master-port (or MASTER_PORT)"
            ) from None
        raise incomplete(environment.world_size, timeout_s) from None
    return base


def _address_of_this_host(master: str, port: int) -> str:
    host = _address_towards(master, port)
    if ipaddress.ip_address(host).is_global and not os.environ.get("OWNPACE_ALLOW_PUBLIC"):
        raise InputError(
            f"this host would listen on {host}, a public address, and collectives are not encrypted; use a private "
            "network or a VPN, or set OWNPACE_ALLOW_PUBLIC=1 if a firewall protects it"
        )
    return host


def common_backend(
    store: KeyValues, environment: Environment, able: str, timeout_s: float, on_wait: Callable[[], None]
) -> str:
    """NCCL if all ranks are able to use it, else gloo; while waiting for them, `on_wait` may know of one that died."""
    store.set(f"backend/{environment.rank}", able)
    read = [
        read_when_set(store, f"backend/{rank}", f"rank {rank}", timeout_s, on_wait)
        for rank in range(environment.world_size)
    ]
    return "nccl" if set(read) == {b"nccl"} else "gloo"


def _await_master(host: str, port: int, timeout_s: float) -> None:
    """Wait until rank 0 listens. The store's own attempts take twice as long as they are told to, and print a lot.

    Raises:
        MachineDied: It does not in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection((host, port), timeout=max(0.1, deadline - time.monotonic())).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise unreachable(host, port, timeout_s) from None
            time.sleep(0.1)


def _address_towards(host: str, port: int) -> str:
    """This machine's address on the network through which it reaches a host."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            # A datagram socket sends nothing on connecting: the kernel only chooses a route, and with it our address.
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise MachineDied(f"this host has no route to {host}: {error}; check MASTER_ADDR and the network") from None

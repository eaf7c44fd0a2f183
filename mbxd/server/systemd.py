"""The two small protocols of systemd: readiness messages and passed sockets.

Owns sd_notify(3) and sd_listen_fds(3). Silent where no manager is.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping

LISTEN_FDS_START = 3


class Notifier:
    """Sends state messages to the manager's socket; does nothing when there is none."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """Takes NOTIFY_SOCKET and WATCHDOG_USEC out of the environment, so that children don't inherit them."""
        address = environment.pop("NOTIFY_SOCKET", "")
        self.watchdog_s = _watchdog(environment)
        self._address: str | None = None
        if address[:1] in {"/", "@"}:
            self._address = "\0" + address[1:] if address[0] == "@" else address

    def send(self, *lines: str) -> None:
        """One datagram of `KEY=value` lines. A manager that doesn't listen is no error."""
        if self._address is None:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
        ):
            sock.setblocking(False)
            sock.sendto("\n".join(lines).encode(), self._address)


def _watchdog(environment: MutableMapping[str, str]) -> float | None:
    """Seconds within which the manager wants to hear from us, None when it doesn't."""
    usec, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
    if _number(usec) == 0 or (pid and pid != str(os.getpid())):
        return None
    return _number(usec) / 1_000_000


def listen_socket(environment: MutableMapping[str, str]) -> socket.socket | None:
    """The listening socket that the manager passed, or None. It is the manager's: never unlinked, never chmoded."""
    pid, count = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    environment.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or _number(count) < 1:
        return None
    for fd in range(LISTEN_FDS_START, LISTEN_FDS_START + _number(count)):
        os.set_inheritable(fd, False)
    sock = socket.socket(fileno=LISTEN_FDS_START)
    if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM:
        raise OSError("the socket passed by the service manager is not a Unix stream socket: check mbxd.socket")
    return sock


def _number(text: str) -> int:
    """A number of the manager's; 0 for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0

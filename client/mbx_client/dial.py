"""Connecting to a socket of this user, and what a failure to do so means.

Owns the check of the peer's uid and the classes of failure. Standard library only.
"""

from __future__ import annotations

import _socket as socket  # `socket` adds selectors, enums and tables: a third of a mebibyte in every shim
import errno
import os
import sys

ABSENT, FORBIDDEN, BUSY, OTHER = "absent", "forbidden", "busy", "other"
_CLASSES = {
    errno.ENOENT: ABSENT,
    errno.ENOTDIR: ABSENT,
    errno.ECONNREFUSED: ABSENT,
    errno.EPERM: FORBIDDEN,
    errno.EACCES: FORBIDDEN,
    errno.EAGAIN: BUSY,  # a full backlog: somebody listens and is slow
}


def connect(path: str, timeout: float) -> socket.socket:
    """A connection to a server of this user; `timeout` in seconds stays set on it, 0 means non-blocking.

    Raises OSError: `reason` tells what it means.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(os.fsencode(path))
        check_peer(connection)
    except OSError:
        connection.close()
        raise
    return connection


def reason(bad: OSError) -> str:
    """absent: nobody listens; forbidden: a sandbox or foreign permissions; busy: it doesn't accept; other."""
    return BUSY if isinstance(bad, TimeoutError) else _CLASSES.get(bad.errno or 0, OTHER)


def check_peer(connection: socket.socket) -> None:
    """Refuse a server of another user, unix(7) SO_PEERCRED. Without that option the 0700 directory stands alone."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return
    # struct ucred {pid, uid, gid}, 4 bytes each
    uid = int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, option, 12)[4:8], sys.byteorder)
    if uid != os.getuid():
        raise OSError(errno.ECONNABORTED, f"the server belongs to uid {uid}")

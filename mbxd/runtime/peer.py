"""Who is at the other end of a Unix socket connection, and which process its session lives in.

Owns the reading of peer credentials and the way from a peer to its host process. Never believes what a
client says about pids, and never signals one.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mbx_wire import hostrule
from mbxd.ports import Processes, ProcessId, ProcessInfo
from mbxd.runtime.processes import unseen

GONE = -1
"""Peer.pid of a peer that had exited before it was looked at."""
FOREIGN = 0
"""Peer.pid of a peer in a pid namespace that can't be seen into."""

_SO_PEERPIDFD = 77  # asm-generic/socket.h, Linux 6.5; not in Python's socket module
_LOCAL_PEERCRED = 1  # sys/un.h of macOS
_LOCAL_PEERPID = 2


class Peer(NamedTuple):
    """A connection's other end as of connect(2). pid: GONE, FOREIGN, or as seen from here.

    pidfd: None where the kernel gives none (before Linux 6.5, or out of descriptors). It belongs to the holder
    of this tuple until `host_of` takes it.
    """

    uid: int
    pid: int
    pidfd: int | None


class HostFinding(NamedTuple):
    """The session's host process and the peer itself (the shim), each with a handle where one could be had.

    When the shim is its own host both identities are equal and there is one handle, in both places: close it
    once (`handles` lists each once). label and why are for people; chain holds the shim first, `description` the
    same in words; reach: the ancestors of the same user, nearest first, and whether each is a known agent CLI.
    Arguments are not kept: they hold secrets.
    """

    host: ProcessId
    host_handle: int | None
    shim: ProcessId
    shim_handle: int | None
    label: str
    why: str
    chain: tuple[ProcessId, ...]
    reach: tuple[tuple[ProcessId, bool], ...]
    description: str

    def agent(self, watched: Callable[[ProcessId], bool]) -> ProcessId | None:
        """The session that a command line acts for: the nearest ancestor that is a watched host or a known agent CLI.

        None for a person's command. The search ends at pid 1 and at other users' processes.
        """
        return next((identity for identity, known in self.reach if known or watched(identity)), None)

    def handles(self) -> set[int]:
        """All handles of the finding, for giving them back."""
        return {handle for handle in (self.host_handle, self.shim_handle) if handle is not None}


def read_peer(sock: socket.socket) -> Peer:
    """The peer of a connected Unix socket, from the kernel alone. OSError when the socket has no credentials.

    See unix(7): SO_PEERCRED, SO_PEERPIDFD; unix(4) of macOS: LOCAL_PEERCRED, LOCAL_PEERPID.
    """
    if sys.platform == "darwin":
        return _read_peer_darwin(sock)
    pid, uid, _gid = struct.unpack("=iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4)
    except OSError as error:
        # The peer was reaped already (Linux 6.16 and later give a pidfd even then); anything else: no such option.
        gone = error.errno in {errno.ESRCH, errno.EINVAL, errno.ENODATA}
        return Peer(uid, GONE if gone else pid, None)
    return Peer(uid, pid, int(struct.unpack("=i", raw)[0]))


def host_of(processes: Processes, peer: Peer) -> HostFinding | None:
    """The host process behind a peer, by `mbx_wire.hostrule`; None when the peer is gone. Takes over peer.pidfd.

    A peer that can't be seen (FOREIGN) is its own host. The caller gives the handles back.
    """
    shim, handle = _shim_of(processes, peer)
    if shim is None or processes.probe(shim, handle).status == "dead":
        _give_up(processes, handle)
        return None
    chain = tuple(processes.ancestry(shim.pid)) if shim.pid > 0 else ()
    if not chain or not _fits(shim, chain[0].identity):
        if processes.probe(shim, handle).status == "dead":
            _give_up(processes, handle)
            return None
        why = "its processes can't be seen from here: the shim is its own host"
        return HostFinding(shim, handle, shim, handle, "unknown", why, (), (), "unseen")
    choice = hostrule.choose_host([_rule_view(info) for info in chain])
    identities = tuple(info.identity for info in chain)
    words = (choice.label, choice.why, identities, reach_of(chain), describe_chain(chain, choice.place))
    if choice.place == 0:
        return HostFinding(shim, handle, shim, handle, *words)
    host = chain[choice.place].identity
    return HostFinding(host, processes.open(host), shim, handle, *words)


def reach_of(chain: Sequence[ProcessInfo]) -> tuple[tuple[ProcessId, bool], ...]:
    """The peer's ancestors below pid 1 and other users' processes, each with whether it is a known agent CLI."""
    found: list[tuple[ProcessId, bool]] = []
    for info in chain[1:]:
        if info.identity.pid <= 1 or info.uid != chain[0].uid:
            break
        found.append((info.identity, hostrule.agent_label(_rule_view(info)) is not None))
    return tuple(found)


def describe_chain(chain: tuple[ProcessInfo, ...], host: int) -> str:
    """`mbx-mcp 412 < uvx 410 < claude-code 400 (host) < bash 300`: programs and pids, no arguments."""
    words = [
        f"{hostrule.label(_rule_view(info))} {info.identity.pid}{' (host)' if index == host else ''}"
        for index, info in enumerate(chain)
    ]
    return " < ".join(words)


def _shim_of(processes: Processes, peer: Peer) -> tuple[ProcessId | None, int | None]:
    if peer.pidfd is not None:
        return processes.adopt(peer.pidfd)
    if peer.pid == GONE:
        return None, None
    if peer.pid == FOREIGN:
        return ProcessId(processes.boot_id(), 0, 0, 0, unseen()), None
    # Without SO_PEERPIDFD the pid may have been reused since connect(2); the uid was checked, more can't be known.
    chain = processes.ancestry(peer.pid)
    if not chain:
        return None, None
    return chain[0].identity, processes.open(chain[0].identity)


def _give_up(processes: Processes, handle: int | None) -> None:
    if handle is not None:
        processes.close(handle)


def _fits(shim: ProcessId, found: ProcessId) -> bool:
    """Whether the walk began at the peer itself: its pid may have been reused before the walk."""
    return all(a == b or 0 in {a, b} for a, b in ((shim.ticks, found.ticks), (shim.inode, found.inode)))


def _rule_view(info: ProcessInfo) -> hostrule.Process:
    return hostrule.Process(info.identity.pid, info.uid, info.argv, info.exe)


def _read_peer_darwin(sock: socket.socket) -> Peer:
    level = 0  # SOL_LOCAL
    # struct xucred: version, uid, number of groups (padded), groups
    _version, uid = struct.unpack_from("=II", sock.getsockopt(level, _LOCAL_PEERCRED, 76))
    (pid,) = struct.unpack("=i", sock.getsockopt(level, _LOCAL_PEERPID, 4))
    return Peer(uid, pid or GONE, None)

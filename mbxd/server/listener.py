"""Accepts connections: who may come in, how many, and what happens when descriptors run out.

Owns the listening socket's loop and the set of open sessions. A session that breaks ends alone.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket

import trio

from mbx_wire.errors import RpcError
from mbxd.runtime.peer import Peer, read_peer
from mbxd.runtime.poller import Poller
from mbxd.server import wire
from mbxd.server.dispatch import Dispatcher
from mbxd.server.limits import CONNECTIONS_KEPT, CONNECTIONS_MAX, CONNECTIONS_SPARE, DESCRIPTORS_EACH, DRAIN_S
from mbxd.server.services import Services
from mbxd.server.session import Session
from mbxd.server.transport import SocketTransport, Transport

log = logging.getLogger("mbxd.listener")

EXHAUSTED_PAUSE_S = 0.5


class Listener:
    """Serves whoever connects and is the same user."""

    def __init__(self, services: Services, poller: Poller) -> None:
        """`services`: the rest of the daemon. `poller`: tells what connections have to read."""
        self._services = services
        self._dispatcher = Dispatcher(services)
        self._poller = poller
        self._sessions: set[Session] = set()
        self._of_process: dict[int, dict[Session, None]] = {}
        room = raise_descriptor_limit() - CONNECTIONS_SPARE
        self.max_connections = min(max(room // DESCRIPTORS_EACH, 1), CONNECTIONS_MAX)

    async def serve(self, sock: socket.socket, sessions: trio.Nursery) -> None:
        """Accept until cancelled. `sessions`: where connections live on when this socket is given up."""
        sock.setblocking(False)
        while True:
            await trio.lowlevel.wait_readable(sock)
            if not self._accept_all(sock, sessions):
                await trio.sleep(EXHAUSTED_PAUSE_S)

    def _accept_all(self, sock: socket.socket, nursery: trio.Nursery) -> bool:
        """Accept what is waiting; False when descriptors ran out and a pause is due."""
        while True:
            try:
                conn, _ = sock.accept()
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno in {errno.ECONNABORTED, errno.EINTR}:
                    continue
                log.warning("can't accept", extra={"why": str(error)})
                return False
            self._welcome(conn, nursery)

    def _welcome(self, conn: socket.socket, nursery: trio.Nursery) -> None:
        try:
            peer = read_peer(conn)
        except OSError:
            conn.close()
            return
        refusal = self._refusal(peer)
        if refusal is not None:
            conn.setblocking(False)
            try:
                conn.send(refusal)
            except OSError:
                pass
            finally:
                conn.close()
            if peer.pidfd is not None:
                os.close(peer.pidfd)
            return
        self._services.connections += 1  # at once: a whole backlog is accepted before the first session runs
        nursery.start_soon(self.serve_one, SocketTransport(conn, self._poller), peer)

    def _refusal(self, peer: Peer) -> bytes | None:
        if peer.uid != os.getuid():
            log.warning("another user connected", extra={"uid": peer.uid})
            return wire.failure(None, RpcError.REFUSED, "This daemon serves another user.")
        if self._services.connections >= self.max_connections and not self._make_room(peer):
            log.warning("too many connections", extra={"limit": self.max_connections})
            return wire.failure(None, RpcError.BUSY, f"The daemon has {self.max_connections} connections already.")
        return None

    def _make_room(self, peer: Peer) -> bool:
        """Let the process that has most connections lose its oldest, when it has many and somebody else asks."""
        pid = max(self._of_process, key=lambda one: len(self._of_process[one]), default=peer.pid)
        if pid == peer.pid or len(self._of_process[pid]) <= CONNECTIONS_KEPT:
            return False
        oldest = next(iter(self._of_process[pid]))
        self._forget(oldest, pid)
        log.warning("a process with many connections loses one", extra={"pid": pid})
        oldest.make_way()
        return True

    def _forget(self, session: Session, pid: int) -> None:
        sessions = self._of_process.get(pid, {})
        sessions.pop(session, None)
        if not sessions:
            self._of_process.pop(pid, None)

    async def serve_one(self, transport: Transport, peer: Peer) -> None:
        """Serve one connection that was counted; whatever goes wrong in it stays in it."""
        session = Session(self._services, self._dispatcher, transport, peer)
        self._sessions.add(session)
        self._of_process.setdefault(peer.pid, {})[session] = None
        try:
            await session.run()
        except Exception:  # a bug in one session must not end the others
            log.exception("session failed")
        finally:
            self._services.connections -= 1
            self._sessions.discard(session)
            self._forget(session, peer.pid)

    async def drain(self) -> None:
        """Let every session finish what it accepted, for at most DRAIN_S, then close."""
        with trio.move_on_after(DRAIN_S):
            async with trio.open_nursery() as nursery:
                for session in self._sessions:
                    nursery.start_soon(session.drain)
        for session in list(self._sessions):
            session.close()


def raise_descriptor_limit() -> int:
    """Raise the soft limit on descriptors to the hard one, within reason; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard if hard != resource.RLIM_INFINITY else 65_536, 65_536)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return soft
    return wanted

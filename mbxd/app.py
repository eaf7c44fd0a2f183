"""The composition root: recover, wire up, serve, leave.

Owns the order in which things come and go. Nurseries are nested in shutdown order: sessions end before the
engine, so that nothing accepted is lost. Decides nothing about identities.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import trio

from mbx_wire import places
from mbx_wire.agent import SweepParams
from mbx_wire.envelope import LockInfo, ServerInfo
from mbx_wire.errors import Code
from mbxd import __version__, config, ground, logs
from mbxd.core import events, snapshot
from mbxd.core.context import PERSON, Context
from mbxd.core.evolve import replay
from mbxd.core.internal import AttachShim, HolderDied
from mbxd.core.rejected import Rejected
from mbxd.core.state import State
from mbxd.core.times import iso
from mbxd.ownfile import open_own
from mbxd.ports import Clock, Processes, ProcessId
from mbxd.runtime import upkeep
from mbxd.runtime.archive import Archive
from mbxd.runtime.clock import AwakeTime
from mbxd.runtime.committer import Committer
from mbxd.runtime.edits import Edits
from mbxd.runtime.engine import Engine, NoRoom
from mbxd.runtime.fanout import Fanout
from mbxd.runtime.holders import Holders
from mbxd.runtime.instances import Instances
from mbxd.runtime.poller import Poller
from mbxd.runtime.post import Post
from mbxd.runtime.repo import GitRepo
from mbxd.server import tools
from mbxd.server.listener import Listener
from mbxd.server.services import Services, Settings
from mbxd.server.systemd import Notifier
from mbxd.store.errors import Unreadable
from mbxd.store.lock import Lock
from mbxd.store.log import Recovery

log = logging.getLogger("mbxd")

T = TypeVar("T")
PLACES_CHECK_S = 10.0


@dataclass(slots=True)
class Parts:
    """What the outside hands to the daemon: the real things, or fakes."""

    ground: ground.Ground
    lock: Lock
    recovery: Recovery
    processes: Processes
    clock: Clock
    committer: Committer
    poller: Poller
    notifier: Notifier
    passed: socket.socket | None
    host_label: str
    ready: Callable[[], None]
    key: bytes


def recover(recovery: Recovery) -> State:
    """The registry as the log has it. Raises Unreadable for whole records that mean nothing to this build."""
    at = 0

    def decoded() -> Iterator[events.Event]:
        nonlocal at
        decode = events.decode
        for at, record in recovery.records:  # noqa: B007 - it says where it was when it failed
            yield decode(record)

    gc.disable()  # nothing of all this is garbage
    try:
        state = State() if recovery.snapshot is None else snapshot.load(recovery.snapshot)
        return replay(state, decoded())
    except (msgspec.DecodeError, LookupError, AttributeError) as error:
        place = f"record {at}" if at else "the snapshot"
        raise Unreadable(place, __version__, str(error)) from error
    finally:
        gc.enable()
        gc.freeze()  # what was read stays: no collection looks through it again


class Daemon:
    """One running daemon."""

    def __init__(self, parts: Parts) -> None:
        """Recovers the registry; nothing runs yet. Raises what `recover` raises."""
        self._parts = parts
        self._activated = parts.passed is not None
        self._edits = Edits(parts.ground.config, self._reload)
        engine = Engine(recover(parts.recovery), parts.recovery.log, parts.committer)
        awake = AwakeTime(parts.clock)
        self._degraded: dict[str, str] = {}
        holders = Holders(parts.processes, awake, self._propose_death)
        fanout = Fanout(engine.state, parts.clock.wall)
        engine.on_staged.append(holders.on_event)
        engine.on_durable.append(fanout.on_durable)
        post = Post(engine, in_thread, parts.clock, self._degraded)
        post.on_arrival = fanout.on_mail
        engine.on_durable.append(post.on_durable)
        archive_path = parts.ground.file(places.ARCHIVE_NAME)
        repo = GitRepo(archive_path, os.environ.get("PATH", os.defpath))
        archive = Archive(engine, repo, in_thread, parts.clock, self._degraded, archive_path)
        self._spares = upkeep.Spares(engine, in_thread, self._degraded)
        self._snapshots = upkeep.Snapshots(engine, in_thread, self._degraded)
        device, inode = parts.lock.identity
        self.services = Services(
            engine=engine,
            holders=holders,
            instances=Instances(awake, engine.state.replies),
            fanout=fanout,
            post=post,
            archive=archive,
            processes=parts.processes,
            clock=parts.clock,
            awake=awake,
            run_sync=in_thread,
            server=ServerInfo(__version__, os.getpid(), iso(parts.clock.wall())),
            lock=LockInfo(parts.lock.path, device, inode),
            settings=Settings(),
            stop=trio.Event(),
            host_label=parts.host_label,
            key=parts.key,
            extra_status=self._extra_status,
            room=self._room,
            attach=self._attach,
            degraded=self._degraded,
        )
        self._reload(first=True)

    # -- the whole life --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until stopped. Raises what the log raised when it failed."""
        services, parts = self.services, self._parts
        async with trio.open_nursery() as engine_nursery:
            engine_nursery.start_soon(parts.poller.run)
            await engine_nursery.start(services.engine.run)
            engine_nursery.start_soon(self._spares.keep)
            if services.engine.log.needs_spare:
                services.engine.spare_wanted.set()
            # Every logged holder is looked at before anybody may ask.
            services.holders.adopt(services.engine.state)
            services.holders.propose_all_gone()
            await services.engine.wait_durable()
            services.post.open(parts.ground.file(places.MAIL_NAME))
            services.instances.known(services.post.instances())
            engine_nursery.start_soon(services.post.follow)
            engine_nursery.start_soon(services.post.mend, parts.ground.file(places.MAIL_NAME))
            for loop in (services.holders.watch_deaths, services.holders.sweep_for_ever, self._snapshots.keep):
                engine_nursery.start_soon(loop)
            engine_nursery.start_soon(upkeep.tick, services.awake)
            engine_nursery.start_soon(
                upkeep.forget, services.engine, services.instances, parts.clock, services.post.forget
            )
            engine_nursery.start_soon(self._sweep_names)
            engine_nursery.start_soon(self._edits.poll_for_ever)
            engine_nursery.start_soon(self._edits.watch_for_ever)
            engine_nursery.start_soon(services.archive.keep)
            await self._serve()
            await services.engine.wait_durable()
            await services.archive.close()
            await in_thread(services.post.close)
            engine_nursery.cancel_scope.cancel()
        log.info("stopped")

    async def _serve(self) -> None:
        services, parts = self.services, self._parts
        listener = Listener(services, parts.poller)
        sock = parts.passed or ground.bind(parts.ground)
        self._write_pointer()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._accept, listener, sock)
            await nursery.start(self._signals)  # ready means: from here on a signal stops it in order
            nursery.start_soon(self._watchdog)
            log.info(
                "ready",
                extra={
                    "version": __version__,
                    "socket": parts.ground.socket,
                    "identities": len(services.engine.state.identities),
                    "held": services.engine.state.held_count(),
                },
            )
            parts.notifier.send("READY=1", f"STATUS={len(services.engine.state.identities)} identities")
            parts.ready()
            nursery.start_soon(in_thread, tools.warm)
            await services.stop.wait()
            services.stopping = True
            services.post.wake_all()
            parts.notifier.send("STOPPING=1")
            await listener.drain()
            nursery.cancel_scope.cancel()

    async def _accept(self, listener: Listener, sock: socket.socket) -> None:
        """Serve the socket; bind it anew when its path vanished, leave when the state directory did."""
        # Those who are connected stay so when the listening socket is replaced: their nursery is this one.
        async with trio.open_nursery() as sessions:
            while True:
                with sock:
                    async with trio.open_nursery() as accepting:
                        accepting.start_soon(listener.serve, sock, sessions)
                        fresh = await self._replacement()
                        accepting.cancel_scope.cancel()
                sock = fresh

    async def _replacement(self) -> socket.socket:
        """A fresh listening socket, once the path of the one that is served has vanished."""
        path = self._parts.ground.socket
        mine = None if self._activated else _inode(path)
        while True:
            await trio.sleep(PLACES_CHECK_S)
            logs.cap(self._parts.ground.file(places.LOG_NAME))
            if not self._parts.lock.still_mine():
                log.error("the state directory is gone or was replaced; leaving", extra={"lock": self._parts.lock.path})
                self.services.stop.set()
                await trio.sleep_forever()
            if self._activated or (mine is not None and _inode(path) == mine):
                continue
            try:
                fresh = ground.bind(self._parts.ground)
            except ground.Unfit as problem:
                # Those who are connected are served on; whatever is in the way may go again.
                self._degraded["socket"] = f"nobody can connect: {problem}"
                log.error("the socket's path vanished and can't be bound anew", extra={"why": str(problem)})
                continue
            self._degraded.pop("socket", None)
            log.warning("the socket's path vanished; it is bound anew", extra={"socket": path})
            return fresh

    async def _signals(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
            task_status.started()
            async for number in received:
                log.info("stopping", extra={"signal": signal.Signals(number).name})
                self.services.stop.set()

    async def _watchdog(self) -> None:
        every = self._parts.notifier.watchdog_s
        while every is not None:
            self._parts.notifier.send("WATCHDOG=1")
            await trio.sleep(every / 3)

    async def _sweep_names(self) -> None:
        """Retire what nobody used for long, when the configuration says so."""
        while True:
            await trio.sleep(upkeep.SWEEP_NAMES_EVERY_S)
            older = self.services.settings.sweep_older_than_s
            if older is not None and self.services.post.usable:  # without mail nobody knows what is unread
                self._inner("admin.sweep", SweepParams(older_than_s=older))

    # -- what the parts need of each other -------------------------------------------------------------------

    def _propose_death(self, identity: int, epoch: int, reason: str) -> None:
        self._inner("internal.holder_died", HolderDied(identity, epoch, reason))

    def _attach(self, identity: int, epoch: int, shim: ProcessId) -> None:
        self._inner("internal.attach_shim", AttachShim(identity, epoch, shim))

    def _inner(self, command: str, params: Any) -> None:
        services = self.services
        ctx = Context(
            PERSON,
            services.clock.wall(),
            services.settings.policy,
            services.holders.evidence,
            services.engine.active,
            services.post.unread,
        )
        try:
            services.engine.stage(command, params, ctx)
        except NoRoom:
            # The evidence stays: rows show it, a claim acts on it, and the next start proposes it again.
            log.warning("no room to log", extra={"command": command})

    async def _room(self, deadline: float) -> None:
        try:
            await self._spares.wait(deadline)
        except OSError as error:
            raise Rejected(
                Code.DISK_FULL,
                "Nothing was changed: there is no room for the registry log "
                f"({error.strerror or 'no answer from the disk'}).",
                f"Make room on the disk of {self._parts.ground.state_dir} and repeat the call; reading still works.",
                retryable=True,
            ) from None

    def _reload(self, *, first: bool = False) -> None:
        settings = self.services.settings
        try:
            loaded = config.load(self._parts.ground.config)
        except config.BadConfig as error:
            settings.error = str(error)
            self._degraded["config"] = f"the configuration is not used: {error}"
            log.error("bad configuration; the values before it stay", extra={"why": str(error)})
            return
        settings.error = None
        settings.policy = loaded.policy()
        hours = loaded.sweep.older_than_h
        settings.sweep_older_than_s = None if hours is None else hours * 3600
        self._degraded.pop("config", None)
        if not first:
            log.info("configuration reloaded")

    def _extra_status(self) -> dict[str, object]:
        parts = self._parts
        return {
            "socket": parts.ground.socket,
            "state_dir": parts.ground.state_dir,
            "socket_activated": self._activated,
            "config_path": parts.ground.config,
        }

    def _write_pointer(self) -> None:
        """`daemon.json`: where clients whose environment differs find the socket."""
        parts = self._parts
        chain = parts.processes.ancestry(os.getpid())
        pointer = {
            "socket": parts.ground.socket,
            "pid": os.getpid(),
            "ticks": chain[0].identity.ticks if chain else 0,
            "version": __version__,
        }
        path = parts.ground.file(places.POINTER_NAME)
        temporary = f"{path}.{os.getpid()}"
        try:
            fd = open_own(temporary, os.O_WRONLY | os.O_CREAT)
            os.ftruncate(fd, 0)  # only now: what is not ours is left alone
            with os.fdopen(fd, "w") as file:
                json.dump(pointer, file)
            os.replace(temporary, path)
        except OSError as error:
            # A full disk: clients of the usual environment find the socket all the same.
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            self._degraded["pointer"] = f"daemon.json could not be written ({error.strerror})"
            log.warning("daemon.json could not be written", extra={"why": str(error)})


def in_thread(fn: Callable[..., T], *args: Any) -> Awaitable[T]:
    """The RunSync port on trio's worker threads."""
    return trio.to_thread.run_sync(fn, *args)


def _inode(path: str) -> int | None:
    try:
        return os.lstat(path).st_ino
    except OSError:
        return None

"""The `mbxd` command: run the daemon, or look at its log offline.

Owns arguments, exit codes and the one clear line for every start that fails.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from mbx_wire import places
from mbxd.ports import Processes
from mbxd.store.lock import Lock

USAGE = """usage: mbxd [--version | --help]
       mbxd log dump|verify|repair [options]

mbxd keeps named mailbox identities for coding agents. Without arguments it runs the daemon in the foreground;
agents' shims and `mbxctl start` start it by themselves. `mbxd log` looks at the registry log while no daemon runs.
State: $MBX_STATE_DIR, else ~/.local/state/mbx. Configuration: ~/.config/mbx/config.toml."""

EX_TEMPFAIL = 75
"""sysexits(3): another daemon holds the lock."""
GIVE_WAY_S = 5.0


def main() -> int:
    """Entry point. Exit codes: 0 stopped in order, 1 failed, 2 usage, 75 another daemon runs."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["log"]:
        return _log(arguments[1:])
    if arguments in (["--help"], ["-h"]):
        print(USAGE)
        return 0
    if arguments == ["--version"]:
        from mbxd import __version__

        print(f"mbxd {__version__}")
        return 0
    if arguments:
        print(USAGE, file=sys.stderr)
        return 2
    if sys.platform == "win32":
        print("mbxd: Windows is not supported: use WSL 2", file=sys.stderr)
        return 1
    return run()


def run() -> int:
    """Run the daemon until it is stopped."""
    from mbx_wire import places
    from mbxd import ground, logs
    from mbxd.store.errors import Damaged, NewerFormat, Unreadable
    from mbxd.store.lock import Held

    ready = _Ready(os.environ.pop("MBXD_READY_FD", ""))
    logs.setup()
    try:
        return _serve(ready)
    except Held as held:
        return ready.failed(f"{places.RUNS_ALREADY}: {held}", EX_TEMPFAIL)
    except (ground.Unfit, Damaged, NewerFormat, Unreadable) as problem:
        return ready.failed(str(problem), 1)
    except OSError as error:
        return ready.failed(f"can't start: {error}", 1)


def _serve(ready: _Ready) -> int:
    import trio

    from mbxd import ground
    from mbxd.app import Daemon, Parts
    from mbxd.runtime.clock import RealClock
    from mbxd.runtime.committer import ThreadCommitter
    from mbxd.runtime.poller import Poller
    from mbxd.runtime.processes import LocalProcesses
    from mbxd.server.secrets import load_key
    from mbxd.server.systemd import Notifier, listen_socket
    from mbxd.store.errors import LogFailed
    from mbxd.store.lock import Lock
    from mbxd.store.log import Log
    from mbxd.store.vfs import OsVfs

    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.umask(0o077)
    notifier = Notifier(os.environ)
    passed = listen_socket(os.environ)
    where = ground.find(os.environ)
    if passed is not None:
        where = where._replace(socket=passed.getsockname() or where.socket)
    ground.prepare_state(where, os.environ)
    os.chdir("/")
    processes = LocalProcesses()
    chain = processes.ancestry(os.getpid())
    acquire = partial(Lock.acquire, where.file(places.LOCK_NAME), ticks=chain[0].identity.ticks if chain else 0)
    lock = acquire() if passed is None else _acquire_or_replace(acquire, processes)
    recovery = Log.open(OsVfs(), where.file("registry"), entropy=os.urandom)
    for note in recovery.notes:
        logging.getLogger("mbxd").warning("recovered", extra={"note": note})
    poller = Poller()
    daemon = Daemon(
        Parts(
            ground=where,
            lock=lock,
            recovery=recovery,
            processes=processes,
            clock=RealClock(),
            committer=ThreadCommitter(recovery.log, poller),
            poller=poller,
            notifier=notifier,
            passed=passed,
            host_label=socket.gethostname(),
            ready=ready.succeeded,
            key=load_key(where.file(places.KEY_NAME)),
        )
    )
    try:
        trio.run(daemon.run)
    except BaseExceptionGroup as group:
        failures = _leaves(group)
        unfit = [failure for failure in failures if isinstance(failure, ground.Unfit)]
        if len(unfit) == len(failures):
            raise unfit[0] from None
        if all(isinstance(failure, OSError) for failure in failures):
            raise failures[0] from None
        if not all(isinstance(failure, LogFailed) for failure in failures):
            raise
        logging.getLogger("mbxd").critical("the registry log failed; leaving", extra={"why": str(failures[0])})
        return 1
    finally:
        recovery.log.close()
    return 0


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    out: list[BaseException] = []
    for error in group.exceptions:
        out += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return out


def _acquire_or_replace(acquire: Callable[[], Lock], processes: Processes) -> Lock:
    """Take the lock as the service: an auto-started daemon that has it is asked to leave, and waited for.

    Only the process named in the lock file is signalled, and only while its start ticks are those of the file.
    """
    from mbxd.store.lock import Held

    deadline = time.monotonic() + GIVE_WAY_S
    asked = 0
    while True:
        try:
            return acquire()
        except Held as held:
            if time.monotonic() > deadline:
                raise
            chain = processes.ancestry(held.pid) if held.pid and held.pid != asked else []
            if chain and chain[0].identity.ticks == held.ticks:
                asked = held.pid
                with contextlib.suppress(ProcessLookupError):
                    os.kill(held.pid, signal.SIGTERM)
            time.sleep(0.02)


def _log(arguments: list[str]) -> int:
    from mbxd import ground
    from mbxd.core import events
    from mbxd.store import tool

    try:
        where = ground.find(os.environ)
        ground.inspect_state(where)
    except ground.Unfit as problem:
        print(f"mbxd: {problem}", file=sys.stderr)
        return 1

    @contextlib.contextmanager
    def lock() -> Iterator[Lock]:
        held = Lock.acquire(where.file(places.LOCK_NAME))
        try:
            yield held
        finally:
            held.release()

    return tool.run(arguments, directory=where.file("registry"), decode=events.decode, lock=lock)


class _Ready:
    """Tells whoever started the daemon how that went: one line on the descriptor it passed, and on stderr."""

    def __init__(self, descriptor: str) -> None:
        self._fd = int(descriptor) if descriptor.isascii() and descriptor.isdigit() and len(descriptor) < 8 else None
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.set_inheritable(self._fd, False)

    def succeeded(self) -> None:
        self._say("ready\n")

    def failed(self, text: str, code: int) -> int:
        print(f"mbxd: {text}", file=sys.stderr)
        self._say(f"error: {text}\n")
        return code

    def _say(self, line: str) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.write(self._fd, line.encode())
                os.close(self._fd)
            self._fd = None


if __name__ == "__main__":
    sys.exit(main())

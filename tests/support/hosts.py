"""Real process trees for tests: agents, wrappers, shims, zombies, orphans, reused pids.

A *shim* here is a tiny process that connects to a listening socket of the test and lives until the test closes the
connection. An *agent* runs a command as its child and lives until the test lets it go. Everything ends with `Hosts`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

PATIENCE = 20.0
"""Longest wait for anything, in seconds; a wait this long is a failed test."""

PYTHON = (sys.executable, "-I", "-S")

_SHIM = """
import socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
peer.sendall(b"up\\n")
peer.recv(1)
"""

_AGENT = """
import subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
sys.stdin.read()
"""

_WRAPPER = """
import subprocess, sys
sys.exit(subprocess.call(sys.argv[1:]))
"""

_DOUBLE_FORK = """
import os, sys
if os.fork():
    os.wait()
    sys.exit()
os.setsid()
if os.fork():
    os._exit(0)
os.execv(sys.argv[1], sys.argv[1:])
"""

_SUBREAPER = """
import ctypes, os, subprocess, sys
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL)
sys.stdin.read()
"""

ZOMBIE_WITH_THREAD = """
import ctypes, os, sys, threading
def stay():
    print("up", flush=True)
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=stay).start()
ctypes.CDLL(None).pthread_exit(None)
"""
"""The main thread ends and another one goes on: the process shows as a zombie and lives."""


class Hosts:
    """Starts processes and ends them all. Use as a context manager."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="mbx-hosts-"))
        self.path = str(self.root / "s")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(64)
        self._listener.settimeout(PATIENCE)
        self._connections: list[socket.socket] = []
        self._children: list[subprocess.Popen[bytes]] = []
        self._strays: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections:
            connection.close()
        self._listener.close()
        for pidfd in self._strays:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        for child in self._children:
            self.end(child)
        shutil.rmtree(self.root)

    def open_to_all(self) -> None:
        """Let other users connect."""
        self.root.chmod(0o755)
        Path(self.path).chmod(0o666)

    def script(self, name: str, code: str, *, folder: str = "") -> str:
        """A Python program of that name; run it as `[*PYTHON, path, ...]`."""
        path = self.root / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
        return str(path)

    def shim(self) -> list[str]:
        """Command line of a shim."""
        return [*PYTHON, self.script("mbx-mcp", _SHIM), self.path]

    def agent(self, command: Sequence[str], name: str = "agentcli") -> list[str]:
        """Command line of an agent that runs a command as its child and stays."""
        return [*PYTHON, self.script(name, _AGENT), *command]

    def wrapper(self, name: str, command: Sequence[str]) -> list[str]:
        """Command line of a launcher that waits for its child: uvx, pipx, ..."""
        return [*PYTHON, self.script(name, _WRAPPER, folder="wrappers"), *command]

    def double_fork(self, command: Sequence[str]) -> list[str]:
        """Command line that leaves the command as an orphan in a session of its own."""
        return [*PYTHON, self.script("daemonize", _DOUBLE_FORK), *command]

    def subreaper(self, command: Sequence[str], name: str = "subreaper") -> list[str]:
        """Command line of a process that becomes the parent of orphans beneath it."""
        return [*PYTHON, self.script(name, _SUBREAPER), *command]

    def start(self, command: Sequence[str], **more: str) -> subprocess.Popen[bytes]:
        """Start a process with its stdin and stdout on pipes. `more`: environment."""
        child = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **more} if more else None
        )
        self._children.append(child)
        return child

    def sleeper(self) -> subprocess.Popen[bytes]:
        """A process that does nothing."""
        return self.start([*PYTHON, "-c", "import sys; sys.stdin.read()"])

    def accept(self) -> socket.socket:
        """The next shim's connection, once the shim says that it is up."""
        connection, _ = self._listener.accept()
        connection.settimeout(PATIENCE)
        self._connections.append(connection)
        assert connection.recv(3) == b"up\n"
        return connection

    def care_for(self, pid: int) -> None:
        """End this process, which is no child of ours, with the rest."""
        self._strays.append(os.pidfd_open(pid))

    def end(self, child: subprocess.Popen[bytes]) -> None:
        """Kill a child of ours and reap it."""
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        child.kill()
        child.wait(PATIENCE)


def wait_zombie(pid: int) -> None:
    """Wait until a child of ours has exited, and leave it unreaped."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def wait_until(what: str, *, every: float = 0.005) -> Iterator[None]:
    """Loop `for _ in wait_until("..."): if done: break`; fails when patience ends. For what nothing announces."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        yield
        time.sleep(every)
    raise AssertionError(f"waited {PATIENCE} s for: {what}")


def is_root() -> bool:
    """Whether namespaces and other users can be had."""
    return os.geteuid() == 0


def in_pid_namespace(command: Sequence[str]) -> list[str]:
    """Run a command as pid 1 of a new pid namespace with its own /proc. Needs root."""
    return ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *command]

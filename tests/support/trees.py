"""Real processes that play agent CLIs and their shims, under a test's control.

One tiny program plays every part: it forks children, starts others beneath wrappers, and connects to the daemon
and hands the connection to the test. So the kernel names a real process as the peer, the test speaks for it, and
either may be stopped or killed at will. `Forest` ends them all.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.daemon import PATIENCE, Client, DaemonProcess
from tests.support.hosts import PYTHON

_PART = """
import array, json, os, signal, socket, subprocess, sys

def take(sock):
    data, ancillary, _, _ = sock.recvmsg(65536, 64)
    fds = array.array("i")
    for _, _, raw in ancillary:
        fds.frombytes(raw[: len(raw) - len(raw) % 4])
    return data, list(fds)

def give(sock, answer, fd=None):
    rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    sock.sendmsg([json.dumps(answer).encode()], rights)

def play(control):
    kept = []
    while True:
        data, fds = take(control)
        if not data:
            os._exit(0)
        order = json.loads(data)
        if order["do"] == "fork":
            signal.signal(signal.SIGCHLD, signal.SIG_IGN if order["reap"] else signal.SIG_DFL)
            child = os.fork()
            if child == 0:
                control.close()
                for one in kept:
                    one.close()
                kept, control = [], socket.socket(fileno=fds[0])
                give(control, {"pid": os.getpid()})
                continue
            os.close(fds[0])
        elif order["do"] == "spawn":
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            command = [str(fds[0]) if word == "FD" else word for word in order["command"]]
            kept.append(subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL).stdin or control)
            os.close(fds[0])
        elif order["do"] == "connect":
            daemon = socket.socket(socket.AF_UNIX)
            try:
                daemon.connect(order["path"])
            except OSError as error:
                give(control, {"errno": error.errno})
                continue
            give(control, {"errno": 0}, daemon.fileno())
            if order["keep"]:
                kept.append(daemon)
            else:
                daemon.close()

if len(sys.argv) > 1 and sys.argv[-1].isdigit():
    control = socket.socket(fileno=int(sys.argv[-1]))
    give(control, {"pid": os.getpid()})
    play(control)
"""

_WRAPPER = """
import subprocess, sys
sys.exit(subprocess.call(sys.argv[1:], close_fds=False))
"""


class Part:
    """One process of a tree."""

    def __init__(self, forest: Forest, control: socket.socket) -> None:
        self.forest = forest
        self._control = control
        self.pid: int = self._answer()[0]["pid"]
        self.pidfd = os.pidfd_open(self.pid)
        forest.parts.append(self)

    def fork(self, *, reap: bool = True) -> Part:
        """A child that plays the same program. reap: whether this process reaps its children from now on."""
        return self._child({"do": "fork", "reap": reap})

    def spawn(self, command: Sequence[str]) -> Part:
        """Run a command whose innermost program is `forest.part()`."""
        return self._child({"do": "spawn", "command": list(command)})

    def connect(self, path: str, *, keep: bool = False, instance: str | None = None) -> Client:
        """A connection of this process to the daemon. keep: the process has it open as well."""
        self._order({"do": "connect", "path": path, "keep": keep})
        answer, fds = self._answer()
        if answer["errno"]:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        self.forest.clients.append(Client(socket.socket(fileno=fds[0]), instance=instance))
        return self.forest.clients[-1]

    def signal(self, number: int) -> None:
        signal.pidfd_send_signal(self.pidfd, number)

    def kill(self) -> None:
        """kill -9. Its end is not waited for: that is the daemon's business."""
        self.signal(signal.SIGKILL)

    def end(self) -> None:
        self._control.close()
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        os.close(self.pidfd)

    def _child(self, order: dict[str, Any]) -> Part:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._order(order, theirs.fileno())
        return Part(self.forest, ours)

    def _order(self, order: dict[str, Any], fd: int | None = None) -> None:
        rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        self._control.sendmsg([json.dumps(order).encode()], rights)

    def _answer(self) -> tuple[Any, list[int]]:
        self._control.settimeout(PATIENCE)
        data, ancillary, _, _ = self._control.recvmsg(65536, 64)
        fds = array.array("i")
        for _, _, raw in ancillary:
            fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
        return json.loads(data), list(fds)


class Speaker:
    """A session: an agent process, its shim, and the connection that the test holds for it."""

    def __init__(self, host: Part, shim: Part, daemon: DaemonProcess, **hello: Any) -> None:
        self.host = host
        self.shim = shim
        self.hello = hello
        self.client = shim.connect(daemon.socket_path)
        self.client.hello(**hello)

    def reconnect(self, daemon: DaemonProcess) -> Client:
        """As a shim does: the same process, the same instance."""
        self.client.close()
        self.client = self.shim.connect(daemon.socket_path, instance=self.client.instance)
        self.client.hello(**self.hello)
        return self.client


class Forest:
    """Grows trees and fells them. Use as a context manager."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="mbx-trees-"))
        self.parts: list[Part] = []
        self.clients: list[Client] = []
        self._children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self.clients:
            client.close()
        for part in self.parts:
            part.end()
        for child in self._children:
            child.kill()
            child.wait(PATIENCE)
        shutil.rmtree(self.root)

    def part(self, name: str = "mbx-mcp") -> list[str]:
        """Command line of a part, for `Part.spawn`."""
        return [*PYTHON, self._script(name, _PART), "FD"]

    def wrapper(self, name: str, command: Sequence[str]) -> list[str]:
        """The command beneath a launcher of that name that waits for its child."""
        return [*PYTHON, self._script(f"wrappers/{name}", _WRAPPER), *command]

    def ground(self) -> Part:
        """A process whose children are agents."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fd = theirs.fileno()
            command = [*PYTHON, self._script("agentcli", _PART), str(fd)]
            self._children.append(subprocess.Popen(command, pass_fds=[fd], stdin=subprocess.DEVNULL))
        return Part(self, ours)

    def sessions(self, daemon: DaemonProcess, count: int, **hello: Any) -> list[Speaker]:
        """Agents, each with one shim, introduced."""
        ground = self.ground()
        hosts = [ground.fork() for _ in range(count)]
        return [Speaker(host, host.fork(), daemon, **hello) for host in hosts]

    def session(self, daemon: DaemonProcess, **hello: Any) -> Speaker:
        return self.sessions(daemon, 1, **hello)[0]

    def _script(self, name: str, code: str) -> str:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(code)
        return str(path)

"""The processes of one agent: itself, what stands between it and its shims, and the shims."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.daemon import PATIENCE, Client, environment
from tests.support.hosts import _DOUBLE_FORK, PYTHON
from tests.support.trees import Forest, Part
from tests.torture.daemons import Daemons, python_path
from tests.torture.history import Op
from tests.torture.plan import STAYING, Agent
from tests.torture.voices import Call, RawVoice, ShimVoice, Voice

_ON_A_SOCKET = 'echo $$ >&"$0"; exec "$@" <&"$0" >&"$0"'
"""A shell that becomes the command, with its standard streams on the descriptor $0, once it told its pid there."""


@dataclass(slots=True)
class Shim:
    """A process that speaks for an agent. between: the process that stands between them, 0 for none."""

    id: str
    pid: int
    pidfd: int
    between: int
    voice: Voice
    alive: bool = True
    stopped: bool = False

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)


@dataclass(slots=True)
class Talk:
    """A conversation. op, call, shim: of the request that has no answer yet. again: it may be repeated when lost.

    last: the newest act that changed something, and what it got. mail: ids of what it saw unread, by token.
    name, epoch: what it believes to hold.
    """

    session: str
    handle: str
    op: Op | None = None
    call: Call | None = None
    shim: Shim | None = None
    again: bool = False
    last: tuple[Call, Op, Shim, Any] | None = None
    mail: dict[str, str] = field(default_factory=dict)
    owed: dict[str, Any] | None = None
    name: str = ""
    epoch: int = 0


class Body:
    """One life of an agent of the cast."""

    def __init__(self, forest: Forest, ground: Part, daemons: Daemons, agent: Agent, name: str, state: Path) -> None:
        self.id = name
        self.agent = agent
        self.alive = True
        self.host = ground.fork()
        self.host_stopped = False
        self.sealed = agent.shape == "orphan"
        """No second shim: it would be of another session."""
        self.shims: list[Shim] = []
        self.pids = {self.host.pid}
        stem = name.partition(".")[0] if agent.resumes else name
        handles = [""] if agent.talks == 1 else [f"{stem}-{number}" for number in range(agent.talks)]
        self.talks = [Talk(f"{name}/{handle}" if handle else name, handle) for handle in handles]
        self._forest = forest
        self._daemons = daemons
        self._state = state
        self.add_shim()

    @property
    def able(self) -> bool:
        """Whether it can start another shim now."""
        return self.alive and not self.sealed and not self.host_stopped and len(self.living()) < 3

    def living(self) -> list[Shim]:
        return [shim for shim in self.shims if shim.alive]

    def add_shim(self) -> None:
        shim = self._real() if self.agent.real else self._raw()
        self.shims.append(shim)
        if self.agent.shape == "orphan":
            self.pids = {shim.pid}

    def kill(self) -> None:
        """kill -9 of the process that is the host."""
        self.alive = False
        if self.agent.shape == "orphan":
            self.shims[-1].signal(signal.SIGKILL)
        else:
            self.host.kill()

    def stop(self, *, shim: bool) -> None:
        if shim or self.agent.shape == "orphan":
            for one in self.living()[:1]:
                one.signal(signal.SIGSTOP)
                one.stopped = True
        else:
            self.host.signal(signal.SIGSTOP)
            self.host_stopped = True

    def go(self) -> None:
        for shim in self.living():
            shim.signal(signal.SIGCONT)
            shim.stopped = False
        if self.alive:
            self.host.signal(signal.SIGCONT)
        self.host_stopped = False

    def kill_between(self) -> bool:
        """kill -9 of what stands between the agent and its only shim."""
        living = self.living()
        if len(living) != 1 or not living[0].between or len(self.talks) > 1:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(living[0].between, signal.SIGKILL)
        living[0].between = 0
        self.pids.add(living[0].pid)
        self.sealed = True
        return True

    def close(self) -> None:
        """End it all."""
        self.alive = False
        with contextlib.suppress(ProcessLookupError):
            self.host.kill()
        for shim in self.shims:
            if shim.pidfd >= 0:
                shim.signal(signal.SIGKILL)
                shim.voice.close()
                os.close(shim.pidfd)
                shim.pidfd, shim.alive = -1, False

    # -- starting --------------------------------------------------------------------------------------------

    def _command(self, inner: Sequence[str]) -> list[str]:
        match self.agent.shape:
            case "sh":
                # Quiet: a shell says so when its child is killed.
                return ["/bin/sh", "-c", 'exec 2>/dev/null; "$@"; exit $?', "sh", *inner]
            case "sh-exec":
                return ["/bin/sh", "-c", 'exec "$@"', "sh", *inner]
            case "npx" | "uvx":
                return self._forest.wrapper(self.agent.shape, inner)
            case "timeout":
                return ["timeout", "600", *inner]
            case "orphan":
                return [*PYTHON, self._forest._script("daemonize", _DOUBLE_FORK), *inner]
            case _:
                return list(inner)

    def _raw(self) -> Shim:
        part = self.host.spawn(self._command(self._forest.part()))
        voice = RawVoice(part, self._daemons.path)
        return Shim(self._shim_id(), part.pid, os.pidfd_open(part.pid), self._between(part.pid), voice)

    def _real(self) -> Shim:
        env = {**environment(self._state), "PYTHONPATH": python_path(self._daemons.build)}
        assignments = [f"{name}={value}" for name, value in env.items()]
        program = ["env", "-i", *assignments, sys.executable, "-m", "mbx_mcp.main"]
        ours, theirs = socket.socketpair()
        with theirs:
            command = self._command(["/bin/sh", "-c", _ON_A_SOCKET, "FD", *program])
            self.host._order({"do": "spawn", "command": command}, theirs.fileno())
        ours.settimeout(PATIENCE)
        line = b""
        while not line.endswith(b"\n"):
            piece = ours.recv(1)
            assert piece, "the shim did not start"
            line += piece
        pid = int(line)
        voice = ShimVoice(Client(ours), self.agent.handle_key)
        return Shim(self._shim_id(), pid, os.pidfd_open(pid), self._between(pid), voice)

    def _shim_id(self) -> str:
        return f"{self.id}:{len(self.shims)}"

    def _between(self, pid: int) -> int:
        if self.agent.shape not in STAYING:
            return 0
        with open(f"/proc/{pid}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
        return parent if parent not in {self.host.pid, 1} else 0

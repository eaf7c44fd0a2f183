"""A real daemon process for tests, in a temporary state directory with a short path, and a raw client.

Whoever makes a `Place` ends what it started and fails when anything of it is left. Every wait is bounded.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mbx_wire.framing import LineReader, Oversized

ROOT = Path(__file__).parents[2]
SOURCES = os.pathsep.join([str(ROOT / "client"), str(ROOT)])
PATIENCE = 30.0
"""Longest wait for anything, in seconds; a wait this long is a failed test."""
PROGRAM = ("-m", "mbxd")
FAULTY = (str(ROOT / "tests/support/faulty.py"),)
PROJECT = {"key": "/tmp/shop", "slug": "shop"}


class Refused(Exception):
    """A JSON-RPC error: its number and, for refusals of the contract, the error object."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.number: int = error["code"]
        self.body: dict[str, Any] = error.get("data") or {}
        self.code: str = self.body.get("code", "")
        self.data: dict[str, Any] = self.body.get("data") or {}


class Client:
    """One connection, as raw as a test wants it. `instance` and the request ids outlive a connection if passed on."""

    def __init__(self, sock: socket.socket, *, instance: str | None = None) -> None:
        sock.settimeout(PATIENCE)
        self.sock = sock
        self.instance = instance or secrets.token_hex(8)
        self.notes: deque[dict[str, Any]] = deque()
        self._numbers = itertools.count(1)
        self._reader = LineReader(64 * 1024 * 1024)
        self._lines: deque[bytes | Oversized] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def send_raw(self, data: bytes) -> None:
        self.sock.sendall(data)

    def send(self, method: str, params: Any = None, **meta: Any) -> int:
        """Send a request and return its id. A request id is made unless `meta` brings one."""
        number = next(self._numbers)
        meta = {"request_id": f"{secrets.token_hex(6)}", **meta}
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}, "meta": meta}
        self.send_raw(json.dumps(request).encode() + b"\n")
        return number

    def receive(self, limit: float = PATIENCE) -> dict[str, Any]:
        """The next message. Raises ConnectionError at the end, TimeoutError when nothing comes."""
        deadline = time.monotonic() + limit
        while not self._lines:
            self.sock.settimeout(max(0.001, deadline - time.monotonic()))
            data = self.sock.recv(1 << 20)
            if not data:
                raise ConnectionError("the daemon closed the connection")
            self._lines.extend(self._reader.feed(data))
        line = self._lines.popleft()
        assert isinstance(line, bytes)
        message = json.loads(line)
        assert isinstance(message, dict)
        return message

    def reply(self, number: int | None) -> Any:
        """The result of the request with this id; notifications on the way are kept. Raises Refused."""
        while True:
            message = self.receive()
            if "method" in message:
                self.notes.append(message)
                continue
            assert message["id"] == number, message
            if "error" in message:
                raise Refused(message["error"])
            return message["result"]

    def call(self, method: str, params: Any = None, **meta: Any) -> Any:
        return self.reply(self.send(method, params, **meta))

    def note(self) -> dict[str, Any]:
        """The next notification."""
        while not self.notes:
            message = self.receive()
            assert "method" in message, message
            self.notes.append(message)
        return self.notes.popleft()

    def hello(self, name: str = "mbx-mcp", *, project: Any = PROJECT, label: str | None = None, **hints: Any) -> Any:
        client = {"name": name, "version": "0", "instance": self.instance, "label": label}
        params = {"protocol": {"min": 1, "max": 1}, "client": client, "project": project, "hints": hints}
        return self.call("hello", params)

    # what an agent does

    def register(self, name: str, role: str = "backend", **meta: Any) -> Any:
        return self.call("identity.register", {"name": name, "role": role}, **meta)

    def claim(self, name: str | None = None, **meta: Any) -> Any:
        return self.call("identity.claim", {"name": name} if name else {}, **meta)

    def release(self, **meta: Any) -> Any:
        return self.call("identity.release", **meta)

    def row(self, name: str) -> Any:
        return self.call("identity.show", {"name": name})["identity"]

    def rows(self) -> dict[str, Any]:
        return {row["name"]: row for row in self.call("identity.list", {"all": True})["identities"]}

    def refused(self, method: str, params: Any = None, **meta: Any) -> Refused:
        """The refusal that this call must get."""
        try:
            result = self.call(method, params, **meta)
        except Refused as refusal:
            return refusal
        raise AssertionError(f"{method} was not refused: {result}")


class DaemonProcess:
    """One daemon. `ready` is whether it said so; its log is a file beside the state directory."""

    def __init__(
        self,
        state: Path,
        program: tuple[str, ...] = PROGRAM,
        *,
        prepare: Callable[[], None] | None = None,
        pass_fds: tuple[int, ...] = (),
        **env: str,
    ) -> None:
        self.state = state
        self.log_path = state.parent / f"daemon-{secrets.token_hex(3)}.log"
        read_end, write_end = os.pipe()
        os.set_inheritable(write_end, True)
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", *program],
                env={**environment(state), "MBXD_READY_FD": str(write_end), **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                close_fds=True,
                pass_fds=(write_end, *pass_fds),
                preexec_fn=lambda: _in_the_child(prepare),  # noqa: PLW1509 - it calls prctl and setrlimit alone
            )
        os.close(write_end)
        self._ready_fd = read_end
        self.clients: list[Client] = []
        self.said = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def socket_path(self) -> str:
        return str(self.state / "run/mbxd.sock")

    def wait_ready(self, *, must: bool = True) -> str:
        """What it said on the descriptor of its starter: `ready`, `error: ...`, or nothing when it just ended."""
        deadline = time.monotonic() + PATIENCE
        text = b""
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([self._ready_fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the daemon says nothing: {self.log()}"
            piece = os.read(self._ready_fd, 4096)
            if not piece:
                break
            text += piece
        self.said = text.decode().strip()
        assert not must or self.said == "ready", (self.said, self.log())
        return self.said

    def log(self) -> str:
        return self.log_path.read_text()

    def connect(self, **more: Any) -> Client:
        """A connection of this very process."""
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(PATIENCE)
        self.clients.append(Client(sock, **more))
        sock.connect(self.socket_path)
        return self.clients[-1]

    def person(self) -> Client:
        """A person's command line, introduced. (The tests run beneath no agent.)"""
        client = self.connect()
        client.hello("mbxctl")
        return client

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
        if self._ready_fd >= 0:
            os.close(self._ready_fd)
            self._ready_fd = -1


class Place:
    """A temporary root with a state directory, and the daemons that ran in it. Use as a context manager."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="mbxd"))
        self.state = self.root / "s"
        self.daemons: list[DaemonProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for daemon in self.daemons:
            daemon.close()
        until = time.monotonic() + PATIENCE
        # A git that worked for a killed daemon ends by itself: its pipe is closed.
        while (strays := leftovers(self.root)) and time.monotonic() < until:
            select.select([], [], [], 0.02)
        logs = [daemon.log() for daemon in self.daemons if daemon.log_path.exists()]
        shutil.rmtree(self.root)
        assert not strays, f"left behind: {strays}"
        if error is None:
            assert not [log for log in logs if "Traceback" in log], logs

    def start(
        self, program: tuple[str, ...] = PROGRAM, *, state: Path | None = None, wait: bool = True, **more: Any
    ) -> DaemonProcess:
        """Start a daemon and wait until it is ready."""
        daemon = DaemonProcess(state or self.state, program, **more)
        self.daemons.append(daemon)
        if wait:
            daemon.wait_ready()
        return daemon

    def forget(self, daemon: DaemonProcess) -> None:
        """End it now; for tests that start very many."""
        daemon.close()
        daemon.log_path.unlink()
        self.daemons.remove(daemon)

    def config(self, text: str) -> Path:
        """Write the configuration file."""
        path = self.root / "home/.config/mbx/config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


def environment(state: Path) -> dict[str, str]:
    """A clean environment whose every place is below the test's directory."""
    home = state.parent / "home"
    home.mkdir(exist_ok=True)
    return {"PATH": os.defpath, "HOME": str(home), "MBX_STATE_DIR": str(state), "PYTHONPATH": SOURCES}


def leftovers(root: Path) -> list[str]:
    """Processes whose command line or environment names this root."""
    found = []
    wanted = os.fsencode(root)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            if wanted in command or wanted in (entry / "environ").read_bytes():
                found.append(f"{entry.name}: {command!r}")
    return found


def image(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, with its contents."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def wait_until(what: str, done: Callable[[], Any], *, limit: float = PATIENCE) -> Any:
    """Ask again and again, for what nothing announces; the first true answer."""
    until = time.monotonic() + limit
    while time.monotonic() < until:
        answer = done()
        if answer:
            return answer
        select.select([], [], [], 0.01)
    raise AssertionError(f"waited {limit} s for: {what}")


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """SIGSTOP for the time of a block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _in_the_child(prepare: Callable[[], None] | None) -> None:
    # Whatever ends the test run ends its daemons: prctl(2), PR_SET_PDEATHSIG.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if prepare is not None:
        prepare()

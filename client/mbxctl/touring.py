"""The actors of `mbxctl tour`: agents as an agent CLI would be, and handles on what was started.

Owns the child processes of a tour. Every process here was started by the tour; nothing else is ever signalled.
An agent is two processes, as in life: a host (the agent CLI's part, killed with SIGKILL on stage) and the real
shim beneath it, spoken to over MCP's stdio.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from mbxctl.failure import Failure

WAIT_S = 5.0
"""The longest that any single answer may take."""

# The host relays lines, so that the shim's only way to the outside ends with it, as with a crashed agent CLI.
_HOST = """
import os, subprocess, sys, threading
shim = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
sys.stdout.buffer.write(b'{"shim": %d}\\n' % shim.pid)
sys.stdout.buffer.flush()
def up():
    for line in shim.stdout:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    os._exit(0)
threading.Thread(target=up, daemon=True).start()
for line in sys.stdin.buffer:
    shim.stdin.write(line)
    shim.stdin.flush()
shim.stdin.close()
shim.wait()
"""


class Handle:
    """One process of the tour, by pidfd where the system has them, so that a reused pid is never hit."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd: int | None = None
        opener = getattr(os, "pidfd_open", None)
        if opener is not None:
            with contextlib.suppress(OSError):
                self._fd = opener(pid)

    def kill(self) -> None:
        """SIGKILL, unless it has gone."""
        with contextlib.suppress(ProcessLookupError):
            if self._fd is not None:
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)
            else:
                os.kill(self.pid, signal.SIGKILL)

    def wait_gone(self, seconds: float) -> bool:
        """Whether it ended within so many seconds."""
        if self._fd is not None:
            readable, _, _ = select.select([self._fd], [], [], seconds)
            return bool(readable)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                return True
            time.sleep(0.01)
        return False

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class Agent:
    """An agent CLI of the tour: a host process and the real shim beneath it.

    `call` raises `Failure("TOUR_FAILED")` when the shim answers with an error, or not at all within WAIT_S.
    """

    def __init__(self, label: str, place: Path) -> None:
        self.label = label
        self._log_path = place.parent / f"{label}.log"
        self._log = self._log_path.open("wb")
        self._host = subprocess.Popen(
            [sys.executable, "-c", _HOST, *shim_command()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=place,
            start_new_session=True,
        )
        self.pid = self._host.pid
        self._buffer = b""
        self._next_id = 0
        self.shim: Handle | None = None

    def introduce(self) -> None:
        """Meet the shim: its pid from the host, then MCP's handshake."""
        self.shim = Handle(int(self._read()["shim"]))
        client = {"name": self.label, "version": "1"}
        self._request("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def call(self, action: str, **arguments: Any) -> dict[str, Any]:
        """One call of mbx_identity; its structured result."""
        params = {"name": "mbx_identity", "arguments": {"action": action, **arguments}}
        result = self._request("tools/call", params)
        content: dict[str, Any] = result.get("structuredContent") or {}
        if result.get("isError"):
            error = content.get("error", {})
            raise failed(f"{self.label}: {action} was refused: {error.get('message', result)}")
        return content

    def kill_host(self) -> None:
        """What a crash does: SIGKILL for the host alone, and nobody says goodbye."""
        self._host.kill()
        self._host.wait(WAIT_S)

    def end(self) -> bool:
        """Take both processes away, whatever state they are in. Whether nothing is left."""
        for stream in (self._host.stdin, self._host.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._host.kill()
        self._host.wait(WAIT_S)
        self._log.close()
        if self.shim is None:
            return True
        gone = self.shim.wait_gone(2.5)
        if not gone:
            self.shim.kill()
            gone = self.shim.wait_gone(1.0)
        self.shim.close()
        return gone

    def _request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._next_id += 1
        self._send({"jsonrpc": "2.0", "id": self._next_id, "method": method, "params": params})
        while True:
            message = self._read()
            if message.get("id") == self._next_id:
                break
        if "error" in message:
            raise failed(f"{self.label}: {method} failed: {message['error'].get('message')}")
        result: dict[str, Any] = message["result"]
        return result

    def _send(self, message: dict[str, Any]) -> None:
        assert self._host.stdin is not None  # noqa: S101 - opened as a pipe above
        try:
            self._host.stdin.write(json.dumps(message).encode() + b"\n")
            self._host.stdin.flush()
        except OSError as error:
            raise failed(f"{self.label}: its process has gone: {error}") from None

    def _read(self) -> dict[str, Any]:
        assert self._host.stdout is not None  # noqa: S101 - opened as a pipe above
        descriptor = self._host.stdout.fileno()
        deadline = time.monotonic() + WAIT_S
        while b"\n" not in self._buffer:
            readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise failed(f"{self.label}: no answer within {WAIT_S:.0f} s")
            chunk = os.read(descriptor, 65536)
            if not chunk:
                raise failed(f"{self.label}: its shim ended without an answer{self._last_words()}")
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def _last_words(self) -> str:
        lines = self._log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return f": {lines[-1]}" if lines else ""


def wait_for_starter(lock: Path) -> bool:
    """Whether a start was under way, which has ended now or has been waited for WAIT_S."""
    try:
        file = lock.open("rb")
    except FileNotFoundError:
        return False
    with file:
        deadline = time.monotonic() + WAIT_S
        busy = False
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                busy = True
                time.sleep(0.02)
            else:
                break
        return busy


def shim_command() -> list[str]:
    """How this installation's shim is started."""
    return [sys.executable, "-m", "mbx_mcp.main"]


def failed(message: str) -> Failure:
    """A step of the tour did not hold."""
    return Failure("TOUR_FAILED", message, "Run `mbxctl doctor`; it looks for what is wrong with this installation.")

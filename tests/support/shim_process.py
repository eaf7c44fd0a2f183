"""A real `mbx-mcp` process under a test's control: lines in, parsed lines out, every wait bounded."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mbx_wire.framing import LineReader, Oversized

ROOT = Path(__file__).parents[2]
LIMIT = 20.0
SOURCES = os.pathsep.join([str(ROOT / "client"), str(ROOT)])
COMMAND = [sys.executable, "-m", "mbx_mcp.main"]
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}


def environment(state: Path, **more: str) -> dict[str, str]:
    """A clean environment whose every place is below the test's directory."""
    home = state.parent / "home"
    home.mkdir(exist_ok=True)
    return {
        "PATH": os.defpath,
        "HOME": str(home),
        "MBX_STATE_DIR": str(state),
        "PYTHONPATH": SOURCES,
        "PYTHONWARNINGS": "error",
        **more,
    }


def initialize(version: str = "2025-11-25", name: str = "test", request_id: int | str = 0) -> dict[str, Any]:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": name, "version": "1"}}
    return request("initialize", params, request_id)


def request(method: str, params: dict[str, Any] | None = None, request_id: int | str = 1) -> dict[str, Any]:
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return message if params is None else {**message, "params": params}


def modern(method: str, params: dict[str, Any] | None = None, request_id: int | str = 1) -> dict[str, Any]:
    return request(method, {"_meta": ENVELOPE, **(params or {})}, request_id)


def call(
    arguments: dict[str, Any] | None = None, request_id: int | str = 1, meta: dict[str, Any] | None = None
) -> dict[str, Any]:
    params: dict[str, Any] = {"name": "mbx_identity", "arguments": arguments or {"action": "list"}}
    return request("tools/call", {**params, "_meta": meta} if meta else params, request_id)


class ShimProcess:
    """One shim. Use it in a `with`: it is ended and its descriptors are closed."""

    def __init__(
        self, env: dict[str, str], *arguments: str, cwd: Path | None = None, command: list[str] = COMMAND, **popen: Any
    ) -> None:
        options: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }
        self.process = subprocess.Popen([*command, *arguments], env=env, cwd=cwd, **{**options, **popen})
        self._reader = LineReader()
        self._lines: list[bytes | Oversized] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LIMIT)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def send(self, *messages: Any) -> None:
        self.send_raw(b"".join(json.dumps(message).encode() + b"\n" for message in messages))

    def send_raw(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def receive(self, limit: float = LIMIT) -> Any:
        """The next message; fails when none comes in time. Every line must be JSON."""
        line = self.line(limit)
        assert line is not None, "stdout has ended"
        return json.loads(line)

    def line(self, limit: float = LIMIT) -> bytes | None:
        """The next line, None at the end of stdout."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + limit
        while not self._lines:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"nothing on stdout for {limit} s"
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                return None
            self._lines.extend(self._reader.feed(data))
        line = self._lines.pop(0)
        assert isinstance(line, bytes)
        return line

    def ask(self, message: dict[str, Any]) -> Any:
        self.send(message)
        return self.receive()

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def rest(self) -> list[Any]:
        """Every message up to the end of stdout."""
        found = []
        while (line := self.line()) is not None:
            found.append(json.loads(line))
        return found

    def wait(self, limit: float = LIMIT) -> int:
        return self.process.wait(limit)

    def errors(self) -> str:
        assert self.process.stderr is not None
        return bytes(self.process.stderr.read()).decode()

"""Agents under a test's control: `agent_program.py` as processes, each a session of its own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jsonschema

from mbx_wire.tools import TOOLS, definition
from tests.support.daemon import PATIENCE, environment

PROGRAM = Path(__file__).with_name("agent_program.py")
SCHEMAS = {name: definition(tool)["outputSchema"] for name, tool in TOOLS.items()}


class ToolRefused(Exception):
    """A result with isError: its error object."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__(body["message"])
        self.body = body
        self.code: str = body["code"]


class Agent:
    """One agent process with its MCP client and shim. `heard`: every answer, as text, for what must not be in it."""

    def __init__(self, state: Path, cwd: Path, client: str = "sdk", mode: str = "auto", **env: str) -> None:
        self.heard: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), client, mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=cwd,
            env={**environment(state), **env},
        )
        self._rest = b""
        self.ready = False

    @property
    def pid(self) -> int:
        return self.process.pid

    def order(self, tool: str, arguments: dict[str, Any] | None = None) -> None:
        if not self.ready:
            assert self.answer()["pid"] == self.pid
            self.ready = True
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"tool": tool, "arguments": arguments or {}}).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """The next line; bounded."""
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            assert select.select([self.process.stdout], [], [], PATIENCE)[0], "the agent says nothing"
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            assert piece, "the agent ended"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        self.heard.append(line.decode())
        return json.loads(line)

    def result(self, tool: str) -> Any:
        """The structured result of the order that was given, checked against its schema. Raises ToolRefused."""
        answer = self.answer()
        assert "failed" not in answer, answer
        structured = answer["structured"]
        jsonschema.validate(structured, SCHEMAS[tool])
        if answer["is_error"]:
            raise ToolRefused(structured["error"])
        return structured

    def call(self, tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> Any:
        """A call of a tool."""
        self.order(tool, {**(arguments or {}), **more})
        return self.result(tool)

    def refused(self, tool: str, **arguments: Any) -> ToolRefused:
        """The refusal that this call must get."""
        try:
            result = self.call(tool, arguments)
        except ToolRefused as refusal:
            return refusal
        raise AssertionError(f"{tool} was not refused: {result}")

    def close(self) -> None:
        """End it; closing its input lets the client end the shim."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(PATIENCE)


class Agents:
    """Starts agents and ends them all. Use as a context manager, inside the daemon's place."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self.all: list[Agent] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for agent in self.all:
            agent.close()

    def start(self, cwd: Path, client: str = "sdk", mode: str = "auto", **env: str) -> Agent:
        """A new agent in this directory. It gets ready by itself: the first order waits for it."""
        self.all.append(Agent(self._state, cwd, client, mode, **env))
        return self.all[-1]

"""How a session speaks: through a real mbx-mcp, or as a process whose connection the harness holds.

Both take a call and give its answer some time later, or say that it will never come.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.support.daemon import Client, Refused
from tests.support.shim_process import initialize, request
from tests.support.trees import Part

TOOLS = {
    "identity.claim": ("mbx_identity", {"action": "claim"}),
    "identity.register": ("mbx_identity", {"action": "register"}),
    "identity.release": ("mbx_identity", {"action": "release"}),
    "identity.list": ("mbx_identity", {"action": "list"}),
    "agent.create": ("create_agent_identity", {}),
    "agent.register": ("register_agent", {}),
    "mail.send": ("mbx_send", {}),
    "mail.ack": ("mbx_ack", {}),
    "mail.inbox": ("mbx_inbox", {}),
    "mail.read": ("mbx_read", {}),
}
UNKNOWN = {"OUTCOME_UNKNOWN", "DAEMON_UNRESPONSIVE"}
"""What a shim answers when nobody knows what became of a call."""


class Lost(Exception):
    """The connection is gone."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request: a native method and its params, for a conversation. epoch: sent along when it is not None."""

    method: str
    params: dict[str, Any]
    handle: str
    id: str
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """code: "" for a result. body: the result, or the error object."""

    id: str
    code: str
    body: dict[str, Any]


class RawVoice:
    """A process of a forest that has a connection, on which the harness speaks for it."""

    def __init__(self, part: Part, path: str) -> None:
        self._part = part
        self._path = path
        self._client: Client | None = None
        self._instance: str | None = None
        self._numbers: dict[int, str] = {}
        self._handles: dict[str, None] = {}

    @property
    def used(self) -> bool:
        """Whether it was ever connected."""
        return self._instance is not None

    @property
    def connected(self) -> bool:
        return self._client is not None

    def connect(self) -> None:
        """As a shim does: the same instance, and the conversations that it spoke for."""
        if self._client is not None:
            return
        try:
            self._client = self._part.connect(self._path, instance=self._instance)
            self._instance = self._client.instance
            self._client.hello(sessions=list(self._handles))
        except (OSError, Refused) as error:
            self.cut()
            raise Lost(str(error)) from error

    def cut(self) -> None:
        """Break the connection off; answers that were on their way are lost."""
        if self._client is not None:
            self._client.close()
            self._part.forest.clients.remove(self._client)
        self._client = None
        self._numbers.clear()

    def send(self, call: Call) -> None:
        self.connect()
        assert self._client is not None
        meta: dict[str, Any] = {"request_id": call.id}
        if call.handle:
            meta["session"] = call.handle
        if call.epoch is not None:
            meta["epoch"] = call.epoch
        self._handles[call.handle] = None
        try:
            self._numbers[self._client.send(call.method, call.params, **meta)] = call.id
        except OSError as error:
            self.cut()
            raise Lost(str(error)) from error

    def receive(self, limit: float) -> Answer | None:
        """The next answer; None when none comes in time. Raises Lost."""
        if self._client is None:
            raise Lost("not connected")
        try:
            message = self._client.receive(limit)
        except TimeoutError:
            return None
        except OSError as error:
            self.cut()
            raise Lost(str(error)) from error
        number = self._numbers.pop(message["id"])
        if "result" in message:
            return Answer(number, "", message["result"])
        return Answer(number, *_refusal(message["error"]))

    def close(self) -> None:
        self.cut()


class ShimVoice:
    """A real mbx-mcp behind a pair of sockets."""

    def __init__(self, client: Client, handle_key: str) -> None:
        self._client = client
        self._handle_key = handle_key
        self._numbers: dict[int, str] = {}
        self._last = 0
        self._client.send_raw(json.dumps(initialize(name="test-agent")).encode() + b"\n")
        assert "result" in self._client.receive()

    def connect(self) -> None:
        """It does so by itself."""

    def cut(self) -> None:
        """It can't be done from here."""

    def send(self, call: Call) -> None:
        tool, fixed = TOOLS[call.method]
        params: dict[str, Any] = {"name": tool, "arguments": {**fixed, **call.params}}
        if call.handle:
            params["_meta"] = {self._handle_key: call.handle}
        self._last += 1
        self._numbers[self._last] = call.id
        try:
            self._client.send_raw(json.dumps(request("tools/call", params, self._last)).encode() + b"\n")
        except OSError as error:
            raise Lost(str(error)) from error

    def receive(self, limit: float) -> Answer | None:
        """The next answer; None when none comes in time. Raises Lost."""
        try:
            message = self._client.receive(limit)
            while "method" in message:
                message = self._client.receive(limit)
        except TimeoutError:
            return None
        except OSError as error:
            raise Lost(str(error)) from error
        number = self._numbers.pop(message["id"])
        if "error" in message:
            return Answer(number, *_refusal(message["error"]))
        body = message["result"]["structuredContent"]
        if message["result"].get("isError"):
            return Answer(number, body["error"]["code"], body["error"])
        return Answer(number, "", body)

    def close(self) -> None:
        self._client.close()


Voice = RawVoice | ShimVoice


def _refusal(error: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Code and body of a JSON-RPC error; one that is no refusal of the contract has its number as its code."""
    body: dict[str, Any] = error.get("data") or {}
    return body.get("code") or f"RPC {error['code']}: {error['message']}", body

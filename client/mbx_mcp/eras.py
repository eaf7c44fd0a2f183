"""The rules of both MCP eras, sans-io: lines from the client in, lines to the client and accepted calls out.

Owns what is answered without a daemon (initialize, server/discover, ping, the lists), the era of every
request and the shape of results in its revision. Never touches a descriptor, a clock or the daemon, and
never raises for anything a client sends. Standard library only.

Sources: the MCP specification, revisions 2024-11-05 to 2026-07-28 (https://modelcontextprotocol.io), and
JSON-RPC 2.0. A request with the envelope (`_meta` with a protocol version) is of the stateless revision;
after `initialize`, bare requests belong to the negotiated one.
"""

from __future__ import annotations

import json

from mbx_mcp import shapes
from mbx_mcp.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE,
    UNSUPPORTED_VERSION,
    Malformed,
    ProtocolError,
    encode,
    parse,
    valid_id,
    valid_text,
)

TYPE_CHECKING = False  # the idiom without `import typing`, which would cost a tenth of the start-up
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from mbx_mcp.resources import Subscribers, Watch

MAX_OPEN = 256
"""Calls and subscriptions that may be open at once; one more is refused."""
MAX_WAIT = 3600.0
"""Seconds beyond which a wait is nonsense, which the daemon says; progress is not told for it."""
MAX_HANDLE = 200
"""Longest conversation handle in characters."""
HANDLE_KEYS = ("threadId", "ai.opencode/sessionID", "mbx/session")
"""Members of a call's `_meta` that tell conversations apart, in order of preference."""
_NO_PARAMS: dict[str, Any] = {}


class Call:
    """An accepted `tools/call`: the ticket to answer it with, the tool, its arguments, the handle or None.

    looks: it reads a resource, for which no daemon is started. waits: seconds for which it asks to be told that it
    still waits; 0: not at all.
    """

    __slots__ = ("arguments", "looks", "name", "session", "ticket", "waits")

    def __init__(
        self,
        ticket: int,
        name: str,
        arguments: dict[str, Any],
        session: str | None,
        *,
        looks: bool = False,
        waits: float = 0.0,
    ) -> None:
        self.ticket = ticket
        self.name = name
        self.arguments = arguments
        self.session = session
        self.looks = looks
        self.waits = waits


class _Batch:
    """An array of messages (2025-03-26 only): its responses go out together when all are there."""

    __slots__ = ("parts", "pending")

    def __init__(self) -> None:
        self.parts: list[dict[str, Any]] = []
        self.pending = 0


class _Open:
    """An accepted request without its answer: id, revision, the batch that it came in.

    uri: the resource that it reads. token: what its progress is told under. Both may be None.
    """

    __slots__ = ("batch", "id", "token", "uri", "version")

    def __init__(
        self,
        request_id: int | str,
        version: str,
        batch: _Batch | None,
        *,
        uri: str | None = None,
        token: int | str | None = None,
    ) -> None:
        self.id = request_id
        self.version = version
        self.batch = batch
        self.uri = uri
        self.token = token


class Eras:
    """One client's conversation. Feed it lines; then take `out`, `calls` and `cancelled`.

    out: lines for the client, without newline. calls: newly accepted calls. cancelled: tickets to forget.
    label: the client's own name for itself. answered: whether a request was answered yet. subscribers: who listens
    to which resource, None until somebody does.
    """

    def __init__(self, tools: Callable[[], list[dict[str, Any]]]) -> None:
        """`tools` loads the definitions of the newest legacy revision; it is called when they are needed."""
        self.out: list[bytes] = []
        self.calls: list[Call] = []
        self.cancelled: list[int] = []
        self.label: str | None = None
        self.answered = False
        self.subscribers: Subscribers | None = None
        self._load_tools = tools
        self._tools: list[dict[str, Any]] | None = None
        self._legacy: str | None = None
        self._open: dict[int, _Open] = {}
        self._listening: dict[tuple[str, int | str], int | str] = {}
        self._tickets = 0

    @property
    def open(self) -> int:
        """Accepted calls that wait for their answer."""
        return len(self._open)

    def receive(self, line: bytes) -> None:
        """Take one line from the client."""
        if not line or line.isspace():
            return
        try:
            message = parse(line)
        except Malformed as bad:
            self._send(_failure(None, PARSE, str(bad)))
            return
        if isinstance(message, list):
            self._receive_batch(message)
        else:
            self._receive_one(message, None)

    def oversized(self, size: int, limit: int) -> None:
        """The client sent a line that was longer than the limit; it is gone."""
        self._send(_failure(None, INVALID_REQUEST, f"line longer than {limit} bytes (at least {size})"))

    def answer(self, ticket: int, result: dict[str, Any]) -> None:
        """Answer an accepted call with a CallToolResult of the newest legacy revision. Unknown tickets are ignored."""
        opened = self._open.pop(ticket, None)
        if opened is None:
            return
        if opened.uri is None:
            message = _success(opened.id, shapes.call_result(result, opened.version))
        else:
            message = _read(opened.id, opened.uri, result, opened.version)
        self._reply(opened.batch, message, late=True)

    def answer_encoded(self, ticket: int, encoded: bytes) -> None:
        """The same with a result that is JSON already; it is decoded only where its revision differs."""
        opened = self._open.get(ticket)
        if opened is None:
            return
        result = shapes.encoded_call_result(encoded, opened.version) if opened.uri is None else None
        if result is None:
            try:
                self.answer(ticket, dict(json.loads(encoded)))
            except (ValueError, TypeError, RecursionError):
                self.fail(ticket, -32603, "The daemon's answer can't be read; mbxctl doctor says more.")
            return
        del self._open[ticket]
        self.answered = True
        self.out.append(b'{"jsonrpc":"2.0","id":' + encode(opened.id) + b',"result":' + result + b"}")

    def fail(self, ticket: int, code: int, message: str, data: Any = None) -> None:
        """Answer an accepted call with a JSON-RPC error. Unknown tickets are ignored."""
        opened = self._open.pop(ticket, None)
        if opened is not None:
            self._reply(opened.batch, _failure(opened.id, code, message, data), late=True)

    def progress(self, ticket: int, seconds: int, total: float) -> None:
        """Tell that an accepted call still waits, to a client that asked for it. Unknown tickets are ignored."""
        opened = self._open.get(ticket)
        if opened is not None and opened.token is not None:
            self._send(shapes.progress(opened.token, seconds, total))

    def updated(self, changed: Sequence[Watch]) -> None:
        """Tell whoever listens what has changed: resources, each as a conversation sees it."""
        for message in self.subscribers.updated(changed) if self.subscribers is not None else ():
            self._send(message)

    def finish(self) -> None:
        """The conversation ends in good order: answer the subscriptions."""
        for request_id in self._listening.values():
            self._send(_success(request_id, shapes.modern({"_meta": {shapes.SUBSCRIPTION: request_id}})))
        self._listening.clear()

    def _receive_batch(self, messages: list[Any]) -> None:
        if self._legacy != shapes.BATCHES_IN:
            self._send(_failure(None, INVALID_REQUEST, "arrays of messages exist only in revision 2025-03-26"))
            return
        if not messages:
            self._send(_failure(None, INVALID_REQUEST, "an empty array holds no request"))
            return
        batch = _Batch()
        batch.pending = 1  # held until every entry was looked at
        for message in messages:
            self._receive_one(message, batch)
        self._settle(batch)

    def _receive_one(self, message: Any, batch: _Batch | None) -> None:
        try:
            request = _checked(message)
        except ProtocolError as error:
            self._reply(batch, _failure(error.request_id, error.code, error.message))
            return
        if request is None:  # the client's response to something we never ask
            return
        method, params, request_id = request
        if request_id is None:
            self._notified(method, params)
            return
        try:
            result = self._request(method, params, request_id, batch)
        except ProtocolError as error:
            self._reply(batch, _failure(request_id, error.code, error.message, error.data))
            return
        if result is not None:
            self.answered = True
            self._reply(batch, _success(request_id, result))

    def _request(self, method: str, params: Any, request_id: int | str, batch: _Batch | None) -> dict[str, Any] | None:
        if params is None:
            params = _NO_PARAMS
        elif not isinstance(params, dict):
            raise ProtocolError(INVALID_PARAMS, "params must be an object")
        meta = params.get("_meta")
        enveloped = isinstance(meta, dict) and (shapes.VERSION in meta or shapes.CAPABILITIES in meta)
        if method == "initialize" and not enveloped:
            return self._initialize(params, batch)
        if enveloped or self._legacy is None:
            if method == "ping" and not enveloped:  # the older revisions allow it before initialize
                return {}
            self._check_envelope(meta)
            return self._modern(method, params, request_id)
        return self._older(method, params, request_id, self._legacy, batch)

    def _initialize(self, params: dict[str, Any], batch: _Batch | None) -> dict[str, Any]:
        if batch is not None:
            raise ProtocolError(INVALID_REQUEST, "initialize can't be part of an array")
        wanted = params.get("protocolVersion")
        known = isinstance(wanted, str) and wanted in shapes.LEGACY
        self._legacy = wanted if known else shapes.LEGACY[0]
        self._introduced(params.get("clientInfo"))
        return shapes.initialize_result(self._legacy or shapes.LEGACY[0])

    def _older(
        self, method: str, params: dict[str, Any], request_id: int | str, version: str, batch: _Batch | None
    ) -> dict[str, Any] | None:
        if method == "ping":
            return {}
        if method == "tools/list":
            return self._list(params, version)
        if method == "tools/call":
            return self._call(params, request_id, version, batch)
        if method in {"resources/subscribe", "resources/unsubscribe"}:
            return self._known_subscribers().requested(method, params, version, _handle(params.get("_meta")))
        if method.startswith("resources/"):
            return self._resources(method, params, request_id, version, batch)
        raise ProtocolError(METHOD_NOT_FOUND, f"Method not found: {method[:100]}")

    def _modern(self, method: str, params: dict[str, Any], request_id: int | str) -> dict[str, Any] | None:
        if method == "server/discover":
            return shapes.discover_result()
        if method == "tools/list":
            return self._list(params, shapes.MODERN[0])
        if method == "tools/call":
            return self._call(params, request_id, shapes.MODERN[0], None)
        if method in {"resources/list", "resources/read", "resources/templates/list"}:
            return self._resources(method, params, request_id, shapes.MODERN[0], None)
        if method == "subscriptions/listen":
            self._listen(params, request_id)
            return None
        raise ProtocolError(METHOD_NOT_FOUND, f"Method not found: {method[:100]}")

    def _check_envelope(self, meta: Any) -> None:
        if not isinstance(meta, dict):
            meta = _NO_PARAMS
        version = meta.get(shapes.VERSION)
        if not isinstance(version, str) or not isinstance(meta.get(shapes.CAPABILITIES), dict):
            raise ProtocolError(
                INVALID_PARAMS,
                f"params._meta must carry {shapes.VERSION} (a string) and {shapes.CAPABILITIES} (an object), "
                "or the session must begin with initialize",
            )
        if version not in shapes.MODERN:
            raise ProtocolError(
                UNSUPPORTED_VERSION,
                "Unsupported protocol version",
                {"supported": list(shapes.MODERN), "requested": version},
            )
        self._introduced(meta.get(shapes.CLIENT_INFO))

    def _introduced(self, info: Any) -> None:
        name = info.get("name") if isinstance(info, dict) else None
        if isinstance(name, str) and name:
            self.label = valid_text(name[:MAX_HANDLE])

    def _list(self, params: dict[str, Any], version: str) -> dict[str, Any]:
        if params.get("cursor") is not None:
            raise ProtocolError(INVALID_PARAMS, "unknown cursor: the list has one page")
        return shapes.list_result(self._definitions(), version)

    def _resources(
        self, method: str, params: dict[str, Any], request_id: int | str, version: str, batch: _Batch | None
    ) -> dict[str, Any] | None:
        from mbx_mcp import resources

        if method == "resources/read":
            uri = resources.uri_of(params, version)
            if len(self._open) >= MAX_OPEN:
                raise ProtocolError(INVALID_REQUEST, f"at most {MAX_OPEN} requests may be open at once")
            name, arguments = resources.reading(uri)
            handle = _handle(params.get("_meta"))
            ticket = self._accept(_Open(request_id, version, batch, uri=uri))
            self.calls.append(Call(ticket, name, arguments, handle, looks=True))
            return None
        if params.get("cursor") is not None:
            raise ProtocolError(INVALID_PARAMS, "unknown cursor: the list has one page")
        if method == "resources/list":
            return resources.list_result(version)
        if method == "resources/templates/list":
            return resources.templates_result(version)
        raise ProtocolError(METHOD_NOT_FOUND, f"Method not found: {method[:100]}")

    def _known_subscribers(self) -> Subscribers:
        if self.subscribers is None:
            from mbx_mcp.resources import Subscribers

            self.subscribers = Subscribers()
        return self.subscribers

    def _accept(self, opened: _Open) -> int:
        self._tickets += 1
        self._open[self._tickets] = opened
        if opened.batch is not None:
            opened.batch.pending += 1
        return self._tickets

    def _call(
        self, params: dict[str, Any], request_id: int | str, version: str, batch: _Batch | None
    ) -> dict[str, Any] | None:
        name = params.get("name")
        if not isinstance(name, str):
            raise ProtocolError(INVALID_PARAMS, "tools/call needs the tool's name (a string)")
        if all(tool["name"] != name for tool in self._definitions()):
            raise ProtocolError(INVALID_PARAMS, f"Unknown tool: {name[:100]}")
        arguments = params.get("arguments")
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            raise ProtocolError(INVALID_PARAMS, "arguments must be an object")
        if len(self._open) >= MAX_OPEN:
            return shapes.call_result(shapes.too_many_calls(MAX_OPEN), version)
        meta = params.get("_meta")
        handle = _handle(meta)
        token = meta.get("progressToken") if name == "mbx_inbox" and isinstance(meta, dict) else None
        if not valid_id(token):
            token = None
        waits = arguments.get("wait_s") if token is not None else None
        total = float(waits) if isinstance(waits, (int, float)) and 0 < waits < MAX_WAIT else 0.0
        ticket = self._accept(_Open(request_id, version, batch, token=token))
        self.calls.append(Call(ticket, name, arguments, handle, waits=total))
        return None

    def _listen(self, params: dict[str, Any], request_id: int | str) -> None:
        wanted = params.get("notifications")
        if not isinstance(wanted, dict):
            raise ProtocolError(INVALID_PARAMS, "subscriptions/listen needs notifications (an object)")
        if len(self._listening) >= MAX_OPEN:
            raise ProtocolError(INVALID_REQUEST, f"at most {MAX_OPEN} subscriptions at once")
        handle = _handle(params.get("_meta"))
        self._listening[_key(request_id)] = request_id
        honoured: dict[str, Any] = {
            kind: True for kind in ("toolsListChanged", "resourcesListChanged") if wanted.get(kind) is True
        }
        if wanted.get("resourceSubscriptions"):
            honoured["resourceSubscriptions"] = self._known_subscribers().listen(
                _key(request_id), wanted["resourceSubscriptions"], handle
            )
        self._send(
            {
                "jsonrpc": "2.0",
                "method": "notifications/subscriptions/acknowledged",
                "params": {"_meta": {shapes.SUBSCRIPTION: request_id}, "notifications": honoured},
            }
        )

    def _notified(self, method: str, params: Any) -> None:
        if method != "notifications/cancelled" or not isinstance(params, dict):
            return
        request_id = params.get("requestId")
        if not valid_id(request_id):
            return
        if self._listening.pop(_key(request_id), None) is not None and self.subscribers is not None:
            self.subscribers.end(_key(request_id))
        for ticket, opened in list(self._open.items()):
            if _key(opened.id) == _key(request_id):
                del self._open[ticket]
                self.cancelled.append(ticket)
                if opened.batch is not None:
                    self._settle(opened.batch)

    def _definitions(self) -> list[dict[str, Any]]:
        if self._tools is None:
            self._tools = self._load_tools()
        return self._tools

    def _reply(self, batch: _Batch | None, message: dict[str, Any], *, late: bool = False) -> None:
        if late:
            self.answered = True
        if batch is None:
            self._send(message)
            return
        batch.parts.append(message)
        if late:
            self._settle(batch)

    def _settle(self, batch: _Batch) -> None:
        batch.pending -= 1
        if batch.pending == 0 and batch.parts:
            self.out.append(encode(batch.parts))

    def _send(self, message: dict[str, Any]) -> None:
        self.out.append(encode(message))


def load_tools() -> list[dict[str, Any]]:
    """The definitions that stand beside this module in tools.json, made from the wire schema."""
    path = __file__.rsplit("/", 1)[0] + "/tools.json"
    with open(path, "rb") as file:
        tools: list[dict[str, Any]] = json.loads(file.read())
    return tools


def _checked(message: Any) -> tuple[str, Any, int | str | None] | None:
    """(method, params, id or None for a notification); None for a response; raises ProtocolError."""
    if not isinstance(message, dict):
        raise ProtocolError(INVALID_REQUEST, "a message must be an object")
    request_id = message.get("id")
    known_id = request_id if valid_id(request_id) else None
    method = message.get("method")
    if method is None and ("result" in message or "error" in message):
        return None
    if "id" in message and known_id is None:
        raise ProtocolError(INVALID_REQUEST, "id must be a string or an integer")
    if message.get("jsonrpc") != "2.0":
        raise ProtocolError(INVALID_REQUEST, 'jsonrpc must be "2.0"', request_id=known_id)
    if not isinstance(method, str):
        raise ProtocolError(INVALID_REQUEST, "method must be a string", request_id=known_id)
    return method, message.get("params"), known_id


def _handle(meta: Any) -> str | None:
    """The conversation's handle. One that can't be used is refused: without it the call would be another's."""
    if not isinstance(meta, dict):
        return None
    for key in HANDLE_KEYS:
        value = meta.get(key)
        if value is None or value == "":
            continue
        if not isinstance(value, str):
            raise ProtocolError(INVALID_PARAMS, f"_meta.{key} must be a string")
        if len(value) > MAX_HANDLE:
            raise ProtocolError(INVALID_PARAMS, f"_meta.{key} is longer than {MAX_HANDLE} characters")
        if valid_text(value) != value:  # it goes into what the daemon must be able to read
            raise ProtocolError(INVALID_PARAMS, f"_meta.{key} holds half of a surrogate pair: no valid Unicode")
        return value
    return None


def _key(request_id: int | str) -> tuple[str, int | str]:
    return type(request_id).__name__, request_id


def _read(request_id: int | str, uri: str, result: dict[str, Any], version: str) -> dict[str, Any]:
    from mbx_mcp import resources

    try:
        return _success(request_id, resources.read_result(uri, result, version))
    except ProtocolError as error:
        return _failure(request_id, error.code, error.message, error.data)


def _success(request_id: int | str, result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def _failure(request_id: int | str | None, code: int, message: str, data: Any = None) -> dict[str, Any]:
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": request_id, "error": error}

"""Accepted calls on their way to the daemon and back, sans-io.

Owns request ids, the queue of calls that wait for a daemon, their deadlines, the replay after a lost
connection and what a call is told when there is no answer. Never touches a descriptor or a clock: `now` is
seconds of a monotonic clock that the caller brings. Standard library only.

A call keeps its request id for life, and the instance id never changes: a replay after a reconnect returns
the first result instead of acting twice.
"""

from __future__ import annotations

import json

from mbx_mcp.jsonrpc import encode, valid_id
from mbx_mcp.shapes import refusal
from mbx_wire.framing import MAX_LINE, Oversized

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mbx_mcp.eras import Call
    from mbx_mcp.updates import Updates

WAIT_FOR_DAEMON = 5.0
"""Seconds that a call waits for a daemon that takes it."""
LOOK_WAIT = 1.0
"""The same for what only looks: no daemon is started for it."""
PROGRESS_EVERY = 5.0
"""Seconds between two signs of life to a client that asked for them."""
SILENCE_PING = 2.0
SILENCE_MAX = 5.0
"""Seconds of a daemon's silence while calls are with it: then it is pinged; then they are told."""
MAX_SENDS = 3
"""Times that one call is sent; a call that was with three daemons that all went away is not sent again."""
MAX_HANDLES = 64
"""Handles that a reconnect mentions, the most recent ones."""

_HEAD, _MIDDLE, _TAIL = b'{"id":', b',"result":{', b',"jsonrpc":"2.0"}'

DOWN, HELLO, READY = "down", "hello", "ready"


class Outcome:
    """What a call is answered: a CallToolResult, the same as JSON (`encoded`), or a JSON-RPC error (`code`)."""

    __slots__ = ("code", "encoded", "message", "result", "ticket")

    def __init__(
        self,
        ticket: int,
        result: dict[str, Any] | None = None,
        *,
        encoded: bytes | None = None,
        code: int = 0,
        message: str = "",
    ) -> None:
        self.ticket = ticket
        self.result = result
        self.encoded = encoded
        self.code = code
        self.message = message


class Trouble:
    """Why no daemon takes calls: an error code of the contract, the words, the advice. final: waiting is no use."""

    __slots__ = ("code", "final", "hint", "message")

    def __init__(self, code: str, message: str, hint: str, *, final: bool = False) -> None:
        self.code = code
        self.message = message
        self.hint = hint
        self.final = final


class _Pending:
    __slots__ = (
        "began", "deadline", "line", "looks", "name", "sends", "sent_at", "session", "tell_at", "ticket", "waits",
    )  # fmt: skip

    def __init__(self, call: Call, line: bytes, now: float) -> None:
        self.ticket = call.ticket
        self.name = call.name
        self.session = call.session
        self.line = line
        self.looks = call.looks
        self.waits = call.waits
        self.began = now
        self.tell_at = now + PROGRESS_EVERY
        self.deadline = now + (LOOK_WAIT if call.looks else WAIT_FOR_DAEMON)  # counts only while no daemon has it
        self.sent_at: float | None = None
        self.sends = 0


class Bridge:
    """The calls of one shim. Feed it calls, connection events and lines; then take `outbox` and `outcomes`.

    outbox: lines for the daemon, with newline. outcomes: answered calls. phase: down, hello, ready. progress: (ticket,
    seconds, of how many) of calls that still wait. updates: set while somebody listens to resources.
    """

    def __init__(
        self,
        introduce: Callable[[list[str]], dict[str, Any]],
        accept: Callable[[dict[str, Any]], Trouble | None],
        projects: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        """`introduce` makes the params of hello from the handles spoken for so far; `accept` checks its result.

        projects: finds the project of each directory that the arguments of a call name. Raises ValueError when this one
        or the session's can't be told: the call is refused in those words.
        """
        self.outbox: list[bytes] = []
        self.outcomes: list[Outcome] = []
        self.progress: list[tuple[int, int, float]] = []
        self.updates: Updates | None = None
        self.phase = DOWN
        self._hello: dict[str, Any] = {}
        self._introduce = introduce
        self._accept = accept
        self._projects = projects
        self._trouble: Trouble | None = None
        self._calls: dict[int, _Pending] = {}
        self._handles: dict[str, None] = {}
        self._numbers = 0
        self._hellos = 0
        self._heard_at = 0.0
        self._pinged = False

    @property
    def waiting(self) -> bool:
        """Whether calls wait for a daemon."""
        return self.phase != READY and bool(self._calls)

    @property
    def starting(self) -> bool:
        """Whether calls wait that are reason enough to start a daemon."""
        return self.waiting and not all(pending.looks for pending in self._calls.values())

    @property
    def idle(self) -> bool:
        """Whether nothing waits for an answer."""
        return not self._calls

    def submit(self, call: Call, now: float) -> None:
        """Take an accepted call: send it now or when a daemon is there."""
        self._numbers += 1
        number = self._numbers
        meta: dict[str, Any] = {"request_id": f"c{number}"}
        if call.session is not None:
            meta["session"] = call.session
        params = {"name": call.name, "arguments": call.arguments}
        try:
            projects = self._projects(call.arguments) if self._projects is not None else None
        except ValueError as bad:
            self.outcomes.append(Outcome(call.ticket, refusal(_words().bad_project_file(str(bad)))))
            return
        if projects:
            params["projects"] = projects
        try:
            text = json.dumps(
                {"jsonrpc": "2.0", "id": number, "method": "tool.call", "params": params, "meta": meta},
                ensure_ascii=False,
                separators=(",", ":"),
            )
            line = text.encode() + b"\n"
        except UnicodeEncodeError:
            self.outcomes.append(Outcome(call.ticket, refusal(_words().no_text(call.arguments))))
            return
        if len(line) > MAX_LINE:
            self.outcomes.append(Outcome(call.ticket, refusal(_words().too_much(len(line)))))
            return
        self._remember(call.session or "")  # "": it spoke for the session that has no handle
        if not self._calls:
            self._trouble = None  # what was true for earlier calls is found out anew
        pending = _Pending(call, line, now)
        self._calls[number] = pending
        if self.phase == READY:
            self._send(pending, now)

    def cancel(self, ticket: int) -> None:
        """Forget a call. One that is with the daemon already runs to its end there; its answer is dropped."""
        for number, pending in list(self._calls.items()):
            if pending.ticket == ticket:
                del self._calls[number]

    def connected(self, now: float) -> None:
        """A connection to a daemon stands: introduce ourselves."""
        self.phase = HELLO
        self._heard_at = now
        self._pinged = False
        self._say_hello()

    def introduce_again(self) -> None:
        """The client told its name, or another one, after the connection was made."""
        if self.phase != DOWN:
            self._say_hello()

    def lost(self, now: float) -> None:
        """The connection is gone; calls that were with the daemon wait for the next one."""
        ready, self.phase = self.phase == READY, DOWN
        self.outbox.clear()
        self._hello = {}
        if self.updates is not None:
            self.updates.lost()
        for number, pending in list(self._calls.items()):
            if pending.sent_at is None:
                if ready:  # a stopping daemon gave it back, and may have taken seconds to end: the next has its time
                    pending.deadline = now + WAIT_FOR_DAEMON
                continue
            pending.sent_at = None
            pending.deadline = now + WAIT_FOR_DAEMON
            if pending.sends >= MAX_SENDS:
                self._refuse(number, _words().unknown_outcome("The daemon went away each time this call reached it."))

    def unavailable(self, trouble: Trouble) -> None:
        """No daemon can be had now, and why. Waiting calls are told at their deadline, or at once when final."""
        self._trouble = trouble
        if trouble.final:
            self.give_up()

    def receive(self, line: bytes | Oversized, now: float) -> None:
        """Take one line from the daemon."""
        self._heard_at = now
        self._pinged = False
        if isinstance(line, bytes) and self._answered_plainly(line):
            return
        message = self._unread(line) if isinstance(line, Oversized) else _decoded(line)
        if message is None:
            return
        number = message.get("id")
        if "method" in message:
            if self.updates is not None:
                self.updates.receive(message)
        elif isinstance(number, str) and number.startswith("look-"):
            if self.updates is not None:
                self.updates.answered(message)
        elif isinstance(number, str):
            self._answered_hello(number, message, now)
        elif isinstance(number, int):
            self._answered_call(number, message, now)
        elif "error" in message:
            # The daemon could not read one of our lines. Which one can't be told: nobody may wait for ever.
            for sent in [n for n, pending in self._calls.items() if pending.sent_at is not None]:
                self._answer_error(sent, message["error"])

    def tick(self, now: float) -> None:
        """Let time pass: deadlines of waiting calls, a daemon's silence."""
        for number, pending in list(self._calls.items()):
            if pending.sent_at is None and now >= pending.deadline:
                self._give_up(number)
        self._tell_progress(now)
        if self.updates is not None:
            self.updates.tick(now)
            self.outbox += self.updates.outbox
            self.updates.outbox.clear()
        if self.phase == READY:
            self._watch_silence(now)

    def next_deadline(self) -> float | None:
        """When `tick` has something to do at the latest."""
        times = [pending.deadline for pending in self._calls.values() if pending.sent_at is None]
        times += [pending.tell_at for pending in self._calls.values() if pending.waits]
        if self.updates is not None:
            pace = self.updates.next_deadline()
            times += [] if pace is None else [pace]
        silent_since = self._silent_since()
        if self.phase == READY and silent_since is not None:
            times.append(silent_since + (SILENCE_MAX if self._pinged else SILENCE_PING))
        return min(times, default=None)

    def give_up(self) -> None:
        """Answer every call that waits; used when waiting is no use and when the shim must go."""
        for number in list(self._calls):
            self._give_up(number)

    def _tell_progress(self, now: float) -> None:
        for pending in self._calls.values():
            if not pending.waits or now < pending.tell_at:
                continue
            seconds = int(now - pending.began)  # at least PROGRESS_EVERY more than last time
            pending.tell_at = now + PROGRESS_EVERY
            if seconds < pending.waits:
                self.progress.append((pending.ticket, seconds, pending.waits))
            else:
                pending.waits = 0.0  # it is over its time, and nothing is left to tell

    def _say_hello(self) -> None:
        self._hellos += 1
        params = self._introduce(list(self._handles))
        hello = {"jsonrpc": "2.0", "id": f"hello-{self._hellos}", "method": "hello", "params": params}
        self.outbox.append(encode(hello) + b"\n")

    def _answered_plainly(self, line: bytes) -> bool:
        """The common case without decoding: a success in exactly the form in which our daemon writes it."""
        middle = line.find(_MIDDLE, 0, 32)
        if middle < 0 or not line.startswith(_HEAD) or not line.endswith(_TAIL):
            return False
        number = line[len(_HEAD) : middle]
        if not number.isdigit():
            return False
        pending = self._calls.pop(int(number), None)
        if pending is not None:
            if self.updates is not None:
                self.updates.acted(pending.name, pending.session)
            encoded = line[middle + len(_MIDDLE) - 1 : -len(_TAIL)]
            self.outcomes.append(Outcome(pending.ticket, encoded=encoded))
        return True

    def _answered_hello(self, number: str, message: dict[str, Any], now: float) -> None:
        if number != f"hello-{self._hellos}":  # a ping, or a hello that another one has overtaken
            return
        result = message.get("result")
        if isinstance(result, dict):
            trouble = self._accept(result)
            if trouble is not None:
                self.unavailable(trouble)
                self.phase = DOWN
                return
            self._hello = result
            if self.phase == HELLO:
                self.phase = READY
                self._trouble = None
                if self.updates is not None:
                    self.updates.connected()
                for pending in list(self._calls.values()):
                    self._send(pending, now)
            return
        error = message.get("error")
        body = _refusal_in(error)
        code = body["code"] if body else "DAEMON_DOWN"
        text = body["message"] if body else f"The daemon refused the connection: {_text(error)}"
        hint = (body or {}).get("hint") or "Run: mbxctl doctor"
        self.unavailable(Trouble(code, text, hint, final=code == "VERSION_SKEW"))
        self.phase = DOWN

    def _answered_call(self, number: int, message: dict[str, Any], now: float) -> None:
        pending = self._calls.get(number)
        if pending is None:
            return
        result = message.get("result")
        if isinstance(result, dict):
            del self._calls[number]
            if self.updates is not None:
                self.updates.acted(pending.name, pending.session)
            self.outcomes.append(Outcome(pending.ticket, result))
            return
        error = message.get("error")
        body = _refusal_in(error)
        if body is not None and body["code"] == "STOPPING":
            # It was not executed: the next daemon takes it.
            pending.sends -= 1
            pending.sent_at = None
            pending.deadline = now + WAIT_FOR_DAEMON
            return
        self._answer_error(number, error)

    def _answer_error(self, number: int, error: Any) -> None:
        body = _refusal_in(error)
        if body is not None:
            self._refuse(number, body)
            return
        code = error.get("code") if isinstance(error, dict) else None
        standard = isinstance(code, int) and -32768 <= code <= -32600
        self._fail(self._calls.pop(number).ticket, code if standard and code else -32603, _text(error))

    def _unread(self, line: Oversized) -> dict[str, Any]:
        """An answer that was too long to be taken, as an error: it still says whose it is, if it is our daemon's."""
        number = _number_in(line.head)
        pending = self._calls.get(number) if isinstance(number, int) else None
        body = _words().too_long(pending.name if pending is not None else "")
        return {"id": number, "error": {"code": -32603, "message": body["message"], "data": body}}

    def _send(self, pending: _Pending, now: float) -> None:
        pending.sent_at = now
        pending.sends += 1
        self.outbox.append(pending.line)

    def _silent_since(self) -> float | None:
        oldest = min((p.sent_at for p in self._calls.values() if p.sent_at is not None), default=None)
        return None if oldest is None else max(oldest, self._heard_at)

    def _watch_silence(self, now: float) -> None:
        since = self._silent_since()
        if since is None or now < since + SILENCE_PING:
            return
        if not self._pinged:
            self._pinged = True
            self.outbox.append(b'{"jsonrpc":"2.0","id":"ping","method":"ping"}\n')
        if now >= since + SILENCE_MAX:
            body = _words().body(
                "DAEMON_UNRESPONSIVE",
                f"The daemon{self._pid()} took the call and has been silent for {SILENCE_MAX:g} s. "
                "The call may have taken effect.",
                "Look with mbx_identity action=list before you repeat it; mbxctl doctor says more.",
            )
            for number in [n for n, p in self._calls.items() if p.sent_at is not None]:
                self._refuse(number, body)

    def _pid(self) -> str:
        server = self._hello.get("server")
        pid = server.get("pid") if isinstance(server, dict) else None
        return f" (pid {pid})" if isinstance(pid, int) else ""

    def _give_up(self, number: int) -> None:
        trouble = self._trouble
        if self._calls[number].sends:
            why = trouble.message if trouble else "The daemon went away before it answered."
            self._refuse(number, _words().unknown_outcome(why))
        elif trouble is not None:
            self._refuse(number, _words().body(trouble.code, trouble.message, trouble.hint))
        elif self.phase == HELLO:
            text = "The daemon's socket is there but it does not answer."
            self._refuse(number, _words().body("DAEMON_UNRESPONSIVE", text, "Try again; mbxctl doctor says more."))
        else:
            text = f"No daemon took the call within {WAIT_FOR_DAEMON:g} s."
            self._refuse(number, _words().body("DAEMON_DOWN", text, "Try again; else run: mbxctl start"))

    def _refuse(self, number: int, body: dict[str, Any]) -> None:
        self.outcomes.append(Outcome(self._calls.pop(number).ticket, refusal(body)))

    def _fail(self, ticket: int, code: int, message: str) -> None:
        self.outcomes.append(Outcome(ticket, code=code, message=message))

    def _remember(self, handle: str) -> None:
        self._handles.pop(handle, None)
        self._handles[handle] = None
        if len(self._handles) > MAX_HANDLES:
            del self._handles[next(iter(self._handles))]


def _decoded(line: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(line.decode())
    except (ValueError, RecursionError):
        body = _words().unknown_outcome("The daemon's answer can't be read.")
        return {"error": {"code": -32603, "message": body["message"], "data": body}}
    return message if isinstance(message, dict) else None


def _number_in(head: bytes) -> int | str | None:
    """The id of a message in the form in which our daemon writes it, out of its first bytes."""
    number, comma, _rest = head.removeprefix(_HEAD).partition(b",")
    if not comma or not head.startswith(_HEAD):
        return None
    try:
        found = json.loads(number)
    except ValueError:
        return None
    return found if valid_id(found) else None


def _refusal_in(error: Any) -> dict[str, Any] | None:
    """The contract's error object inside a JSON-RPC error, complete, or None."""
    data = error.get("data") if isinstance(error, dict) else None
    if not isinstance(data, dict) or not isinstance(data.get("code"), str):
        return None
    body = {
        "code": data["code"],
        "message": str(data.get("message") or _text(error)),
        "hint": str(data.get("hint") or ""),
        "retryable": data.get("retryable") is True,
    }
    return {**body, "data": data["data"]} if isinstance(data.get("data"), dict) else body


def _text(error: Any) -> str:
    text = error.get("message") if isinstance(error, dict) else None
    return text if isinstance(text, str) and text else "internal error"


def _words() -> Any:
    """What calls without an answer are told, imported when it is needed."""
    from mbx_mcp import refusals

    return refusals

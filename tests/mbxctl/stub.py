"""The scripted daemon for tests of the command line, with answers from a table, and what such answers look like.

It says what it is told to say; the real daemon's behaviour is tested end to end elsewhere.
"""

from __future__ import annotations

import fcntl
import json
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.support.stub_daemon import NOW, Message, StubDaemon, failure, reply

Answer = dict[str, Any] | Callable[[dict[str, Any]], dict[str, Any]]


def refusal(code: str, message: str, hint: str = "do something", **data: Any) -> dict[str, Any]:
    """A table entry that refuses."""
    body = {"code": code, "message": message, "hint": hint, "retryable": False, "data": data}
    return {"__error__": {"code": -32000, "message": message, "data": body}}


def row(name: str = "shop-backend", **changes: Any) -> dict[str, Any]:
    """An identity as the daemon shows it."""
    base = {
        "id": 1,
        "name": name,
        "address": name.lower(),
        "project": "shop",
        "role": "backend",
        "description": None,
        "state": "vacant",
        "reason": "released",
        "claimable": True,
        "claim_error": None,
        "claimable_in_s": None,
        "unread": 0,
        "holder": None,
        "last_holder": None,
        "program": None,
        "model": None,
        "task_description": None,
        "created_at": NOW,
        "last_active_at": NOW,
    }
    return {**base, **changes}


HOLDER = {"client": "claude-code", "session": None, "pid": 4711, "since": NOW}


def listing(*rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Result of identity.list."""
    base = {
        "action": "list",
        "host": {"label": "box", "container": None},
        "project": {"id": 1, "key": "/shop", "slug": "shop"},
        "you": None,
        "pending": None,
        "lost": None,
        "identities": list(rows),
        "truncated": False,
        "warnings": [],
        "next": None,
    }
    return {**base, **changes}


class TableDaemon(StubDaemon):
    """Answers by method from a table: a result, or a function of the params. Holds the lock of its state directory.

    Whoever subscribes gets `pushes`, and is hung up on unless `keep_open`.
    """

    def __init__(self, state: Path, path: Path, answers: dict[str, Answer]) -> None:
        super().__init__(state, path=path)
        self.answers = answers
        self.pushes: list[Message] = []
        self.keep_open = False
        self._lock = ExitStack()

    @property
    def calls(self) -> list[tuple[str, Message]]:
        """What came in: (method, params)."""
        return [(request["method"], request.get("params") or {}) for request in self.requests]

    @property
    def hello(self) -> Message:
        """Params of the newest hello."""
        return [params for method, params in self.calls if method == "hello"][-1]

    def methods(self) -> list[str]:
        """Methods asked for, without hello."""
        return [method for method, _ in self.calls if method != "hello"]

    def start(self) -> None:
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = self._lock.enter_context((self.state / "mbxd.lock").open("a+"))
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        super().start()

    def stop(self) -> None:
        super().stop()
        self._lock.close()

    def _reply(self, request: Message, instance: str) -> Message | None:
        answer = self.answers.get(request["method"])
        if answer is None:
            return super()._reply(request, instance)
        result = answer(request.get("params") or {}) if callable(answer) else answer
        return failure(request, **result["__error__"]) if "__error__" in result else reply(request, result)

    def _replied(self, request: Message, connection: socket.socket) -> None:
        if request["method"] == "events.subscribe":
            for push in self.pushes:
                connection.sendall(json.dumps(push).encode() + b"\n")
            if not self.keep_open:
                connection.shutdown(socket.SHUT_WR)

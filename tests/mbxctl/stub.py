"""A scripted daemon for tests of the command line: real socket, real framing, answers from a table.

It says what it is told to say; the real daemon's behaviour is tested end to end elsewhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

Answer = dict[str, Any] | Callable[[dict[str, Any]], dict[str, Any]]

NOW = "2026-01-02T03:04:05.678Z"


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


class StubDaemon:
    """Serves one Unix socket from a thread until closed. `requests` keeps what came in: (method, params)."""

    def __init__(self, state_dir: Path, socket_path: Path, answers: dict[str, Answer]) -> None:
        self.answers = {
            "hello": self._hello,
            "ping": {"pong": True, "pid": os.getpid(), "version": "0.1.0"},
            **answers,
        }
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.pushes: list[dict[str, Any]] = []
        self.hello: dict[str, Any] = {}
        self.keep_open = False
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock_path = state_dir / "mbxd.lock"
        self._lock = self._lock_path.open("a+")
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(socket_path))
        socket_path.chmod(0o600)
        self._listener.listen(16)
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self._start(self._accept)

    def close(self) -> None:
        """Stop serving; every thread ends."""
        for sock in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(5)
        self._lock.close()

    def methods(self) -> list[str]:
        """Methods asked for, without hello."""
        return [method for method, _ in self.requests if method != "hello"]

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                conn, _ = self._listener.accept()
                self._open.append(conn)
                self._start(self._serve, conn)

    def _serve(self, conn: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), conn, conn.makefile("rb") as lines:
            for line in lines:
                self._answer(conn, json.loads(line))

    def _answer(self, conn: socket.socket, request: dict[str, Any]) -> None:
        method, params = request["method"], request.get("params") or {}
        self.requests.append((method, params))
        answer = self.answers.get(method)
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        if answer is None:
            reply["error"] = {"code": -32601, "message": f"unknown method {method}"}
        else:
            result = answer(params) if callable(answer) else answer
            reply |= {"error": result["__error__"]} if "__error__" in result else {"result": result}
        conn.sendall(json.dumps(reply).encode() + b"\n")
        if method == "events.subscribe":
            for push in self.pushes:
                conn.sendall(json.dumps(push).encode() + b"\n")
            if not self.keep_open:
                conn.shutdown(socket.SHUT_WR)

    def _hello(self, params: dict[str, Any]) -> dict[str, Any]:
        self.hello = params
        place = self._lock_path.stat()
        return {
            "protocol": 1,
            "server": {"version": "0.1.0", "pid": os.getpid(), "started_at": NOW},
            "lock": {"path": str(self._lock_path), "device": place.st_dev, "inode": place.st_ino},
        }

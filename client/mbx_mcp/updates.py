"""Which watched resources have changed, out of the daemon's events, sans-io.

Owns the subscription to the daemon's events on the present connection, what it must know to tell whose an event
is, and the pace: one update a second and resource at most. Asks for nothing while nobody listens, and never acts
for the session: the one request that it makes looks. Imported when a client first subscribes. Standard library
only.
"""

from __future__ import annotations

from mbx_mcp.jsonrpc import encode
from mbx_mcp.resources import IDENTITIES, INBOX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PACE = 1.0
"""Seconds between two updates of one resource, and between two looks."""
KEPT_MAX = 256
"""Events kept until the daemon has said who we are; more count as a change of everything."""
NO_PROJECT = ""
"""No project has this slug: a subscription to it is one to nothing."""


class Updates:
    """Feed it connections, events and time; then take `due` and `outbox`.

    due: URIs to tell the client of now. outbox: lines for the daemon, with newline.
    """

    def __init__(self) -> None:
        self.due: list[str] = []
        self.outbox: list[bytes] = []
        self._watched: dict[str, str | None] = {}
        self._ready = False
        self._streaming = False
        self._missed = False
        self._numbers = 0
        self._dirty: set[str] = set()
        self._told_at: dict[str, float] = {}
        self._known = False
        self._asking = False
        self._stale = False
        self._ask_at = 0.0
        self._mine: tuple[str, ...] = ()
        self._home: str | None = None
        self._slug: str | None = None
        self._kept: list[tuple[str, dict[str, Any]]] = []

    def watch(self, watched: dict[str, str | None]) -> None:
        """These resources are listened to from now on, each with the conversation that asked."""
        self._watched = dict(watched)
        self._dirty &= watched.keys()
        self._subscribe()

    def connected(self) -> None:
        """A daemon has accepted us. What changed while there was none is not known: everything may have."""
        self._ready = True
        self._subscribe()
        if self._missed:
            self._missed = False
            self._dirty |= self._watched.keys()

    def lost(self) -> None:
        """The connection is gone."""
        self._missed = self._missed or self._streaming
        self._ready = self._streaming = False
        self._known = self._asking = self._stale = False
        self._kept.clear()
        self.outbox.clear()

    def acted(self, tool: str) -> None:
        """A call of this client was answered: it may hold another name now, or have acked mail."""
        if tool == "mbx_ack":
            self._change(INBOX)
        elif tool in {"mbx_identity", "create_agent_identity", "register_agent", "retire_agent"}:
            self._known = False

    def receive(self, message: dict[str, Any]) -> None:
        """A notification of the daemon, or the answer to a request of ours."""
        if not self._watched:
            return
        method, params = message.get("method"), message.get("params")
        if method == "events.dropped":
            # We were too slow, and its stream has ended: begin anew, and take everything for changed.
            self._streaming = False
            self._dirty |= self._watched.keys()
            self._subscribe()
        elif method in {"events.change", "events.mail"} and isinstance(params, dict):
            self._event(method, params)

    def answered(self, message: dict[str, Any]) -> None:
        """The answer to our look (identity.list): who we are, and which project is ours."""
        self._asking = False
        result = message.get("result")
        if not isinstance(result, dict):
            self._kept.clear()
            self._dirty |= self._watched.keys()
            return
        you, project = result.get("you"), result.get("project")
        mine = (str(you["address"]), str(you["name"]).lower()) if you else ()
        if mine != self._mine:
            self._mine = mine
            self._change(INBOX)
        self._home = you["project"] if you else None
        self._slug = project["slug"] if project else None
        self._known = True
        kept, self._kept = self._kept, []
        for method, params in kept:
            self._judge(method, params)

    def tick(self, now: float) -> None:
        """Let time pass."""
        for uri in sorted(self._dirty):
            if now >= self._told_at.get(uri, now - PACE) + PACE:
                self._dirty.discard(uri)
                self._told_at[uri] = now
                self.due.append(uri)
        if self._wants_look and now >= self._ask_at:
            self._ask_at = now + PACE
            self._look()

    def next_deadline(self) -> float | None:
        """When `tick` has something to do at the latest."""
        times = [self._told_at.get(uri, 0.0) + PACE for uri in self._dirty]
        if self._wants_look:
            times.append(self._ask_at)
        return min(times, default=None)

    @property
    def _wants_look(self) -> bool:
        return self._ready and (self._stale or bool(self._kept)) and not self._asking

    def _subscribe(self) -> None:
        wanted = bool(self._watched)
        if not self._ready or wanted == self._streaming:
            return
        self._streaming = wanted
        self._request("events.subscribe", {} if wanted else {"project": NO_PROJECT})

    def _look(self) -> None:
        self._asking, self._stale = True, False
        handle = next((handle for handle in self._watched.values() if handle is not None), None)
        self._request("identity.list", {}, handle)

    def _request(self, method: str, params: dict[str, Any], handle: str | None = None) -> None:
        self._numbers += 1
        meta = {"request_id": f"u{self._numbers}"}
        if handle is not None:
            meta["session"] = handle
        number = f"look-{self._numbers}" if method == "identity.list" else f"events-{self._numbers}"
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params, "meta": meta}
        self.outbox.append(encode(request) + b"\n")

    def _event(self, method: str, params: dict[str, Any]) -> None:
        if self._known:
            self._judge(method, params)
        elif len(self._kept) < KEPT_MAX:
            self._kept.append((method, params))
        else:
            self._dirty |= self._watched.keys()

    def _judge(self, method: str, params: dict[str, Any]) -> None:
        """What an event changes for this client."""
        if method == "events.mail":
            # Another project may have an agent of the same name.
            if str(params.get("to")).lower() in self._mine and params.get("project") == self._home:
                self._change(INBOX)
            if params.get("project") == self._slug:
                self._change(IDENTITIES)  # the rows show what is unread
            return
        what = params.get("what")
        ours = params.get("name") in self._mine[:1]  # changes name the address, which is the host's only one
        if params.get("project") == self._slug or ours:
            self._change(IDENTITIES)
        if ours:
            self._change(INBOX)
        if ours or (what == "claimed" and not self._mine) or (what == "registered" and self._slug is None):
            # It was lost or renamed, it may be ours now, or it made our project: what we knew is old.
            self._known, self._stale = False, True

    def _change(self, uri: str) -> None:
        if uri in self._watched:
            self._dirty.add(uri)

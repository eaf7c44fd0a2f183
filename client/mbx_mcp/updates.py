"""Which watched resources have changed, out of the daemon's events, sans-io.

Owns the subscription to the daemon's events on the present connection, what it must know to tell whose an event
is, for each conversation that listens, and the pace: one update a second, resource and conversation at most. Asks
for nothing while nobody listens, and never acts for a session: the one request that it makes looks. Imported when a
client first subscribes. Standard library only.
"""

from __future__ import annotations

from mbx_mcp.jsonrpc import encode
from mbx_mcp.resources import IDENTITIES, INBOX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from mbx_mcp.resources import Watch

PACE = 1.0
"""Seconds between two updates of one resource, and between two looks, of one conversation."""
KEPT_MAX = 256
"""Events kept until the daemon has said who a conversation is; more count as a change of all that it watches."""
LOOKS_MAX = 16
"""Looks that may be with the daemon at once."""
NO_PROJECT = ""
"""No project has this slug: a subscription to it is one to nothing."""


class Updates:
    """Feed it connections, events and time; then take `due` and `outbox`.

    due: (conversation, URI) to tell the client of now. outbox: lines for the daemon, with newline.
    """

    def __init__(self) -> None:
        self.due: list[Watch] = []
        self.outbox: list[bytes] = []
        self._watched: dict[str | None, frozenset[str]] = {}
        self._listeners: dict[str | None, _Listener] = {}
        self._looks: dict[str, str | None] = {}
        self._ready = False
        self._streaming = False
        self._missed = False
        self._numbers = 0

    def watch(self, watched: dict[str | None, frozenset[str]]) -> None:
        """These conversations listen to these resources from now on."""
        if watched is self._watched:
            return
        self._watched = watched
        for handle in self._listeners.keys() - watched.keys():
            del self._listeners[handle]
        for handle, uris in watched.items():
            self._listeners.setdefault(handle, _Listener()).watch(uris)
        self._subscribe()

    def connected(self) -> None:
        """A daemon has accepted us. What changed while there was none is not known: everything may have."""
        self._ready = True
        self._subscribe()
        if self._missed:
            self._missed = False
            self._changed_all()

    def lost(self) -> None:
        """The connection is gone."""
        self._missed = self._missed or self._streaming
        self._ready = self._streaming = False
        self._looks.clear()
        for listener in self._listeners.values():
            listener.lost()
        self.outbox.clear()

    def acted(self, tool: str, handle: str | None) -> None:
        """A call of this conversation was answered: it may hold another name now, or have acked mail."""
        if tool == "mbx_ack":
            for listener in self._concerned(handle):
                listener.change(INBOX)
        elif tool in {"mbx_identity", "create_agent_identity", "register_agent", "retire_agent"}:
            for listener in self._concerned(handle):
                listener.known = False

    def receive(self, message: dict[str, Any]) -> None:
        """A notification of the daemon."""
        if not self._listeners:
            return
        method, params = message.get("method"), message.get("params")
        if method == "events.dropped":
            # We were too slow, and its stream has ended: begin anew, and take everything for changed.
            self._streaming = False
            self._changed_all()
            self._subscribe()
        elif method in {"events.change", "events.mail"} and isinstance(params, dict):
            for listener in self._listeners.values():
                listener.event(method, params)

    def answered(self, message: dict[str, Any]) -> None:
        """The answer to a look (identity.list): who a conversation is, and which project is its own."""
        number = message.get("id")
        if number not in self._looks:
            return
        listener = self._listeners.get(self._looks.pop(number))
        if listener is None:
            return  # it listens no more
        result = message.get("result")
        listener.learn(result if isinstance(result, dict) else None)

    def tick(self, now: float) -> None:
        """Let time pass."""
        for handle, listener in self._listeners.items():
            self.due += [(handle, uri) for uri in listener.due(now)]
            if self._may_look(listener) and now >= listener.ask_at:
                listener.asking, listener.stale, listener.ask_at = True, False, now + PACE
                self._looks[self._request("identity.list", {}, handle)] = handle

    def next_deadline(self) -> float | None:
        """When `tick` has something to do at the latest."""
        times: list[float] = []
        for listener in self._listeners.values():
            times += listener.deadlines()
            if self._may_look(listener):
                times.append(listener.ask_at)
        return min(times, default=None)

    def _may_look(self, listener: _Listener) -> bool:
        return self._ready and listener.wants_look and len(self._looks) < LOOKS_MAX

    def _concerned(self, handle: str | None) -> Iterator[_Listener]:
        """Whose mailbox an act may have changed: a call without a handle is for the process's only mailbox."""
        for each, listener in self._listeners.items():
            if handle is None or each is None or each == handle:
                yield listener

    def _changed_all(self) -> None:
        for listener in self._listeners.values():
            listener.change_all()

    def _subscribe(self) -> None:
        wanted = bool(self._listeners)
        if not self._ready or wanted == self._streaming:
            return
        self._streaming = wanted
        self._request("events.subscribe", {} if wanted else {"project": NO_PROJECT})

    def _request(self, method: str, params: dict[str, Any], handle: str | None = None) -> str:
        self._numbers += 1
        meta = {"request_id": f"u{self._numbers}"}
        if handle is not None:
            meta["session"] = handle
        number = f"look-{self._numbers}" if method == "identity.list" else f"events-{self._numbers}"
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params, "meta": meta}
        self.outbox.append(encode(request) + b"\n")
        return number


class _Listener:
    """One conversation: what it watches, who it is, and what has changed for it.

    known: whether who it is is up to date. asking: whether a look is under way. stale: whether one is wanted.
    """

    def __init__(self) -> None:
        self.known = False
        self.asking = False
        self.stale = True  # who it is now tells which of the first events are its own
        self.ask_at = 0.0
        self._uris: frozenset[str] = frozenset()
        self._dirty: set[str] = set()
        self._told_at: dict[str, float] = {}
        self._new = True
        self._mine: tuple[str, ...] = ()
        self._home: str | None = None
        self._slug: str | None = None
        self._kept: list[tuple[str, dict[str, Any]]] = []

    @property
    def wants_look(self) -> bool:
        return not self.asking and (self.stale or bool(self._kept))

    def watch(self, uris: frozenset[str]) -> None:
        self._uris = uris
        self._dirty &= uris

    def lost(self) -> None:
        self.known = self.asking = False
        self.stale = self._new
        self._kept.clear()

    def change(self, uri: str) -> None:
        if uri in self._uris:
            self._dirty.add(uri)

    def change_all(self) -> None:
        self._dirty |= self._uris

    def due(self, now: float) -> list[str]:
        """The URIs to tell of now, which are told with that."""
        found = [uri for uri in sorted(self._dirty) if now >= self._told_at.get(uri, now - PACE) + PACE]
        self._dirty.difference_update(found)
        self._told_at.update(dict.fromkeys(found, now))
        return found

    def deadlines(self) -> list[float]:
        return [self._told_at.get(uri, 0.0) + PACE for uri in self._dirty]

    def event(self, method: str, params: dict[str, Any]) -> None:
        if self.known:
            self._judge(method, params)
        elif len(self._kept) < KEPT_MAX:
            self._kept.append((method, params))
        else:
            self.change_all()

    def learn(self, result: dict[str, Any] | None) -> None:
        """The result of a look; None: it was refused."""
        self.asking = False
        kept, self._kept = self._kept, []
        if result is None:
            self.change_all()
            return
        you, project = result.get("you"), result.get("project")
        mine = (str(you["address"]), str(you["name"]).lower()) if you else ()
        # What it was before the first look is not known: another mailbox is news only if something has happened since.
        if mine != self._mine and not (self._new and all(method == "events.mail" for method, _ in kept)):
            self.change(INBOX)
        self._mine, self._new = mine, False
        self._home = you["project"] if you else None
        self._slug = project["slug"] if project else None
        self.known = True
        for method, params in kept:
            self._judge(method, params)

    def _judge(self, method: str, params: dict[str, Any]) -> None:
        """What an event changes for this conversation."""
        if method == "events.mail":
            # Another project may have an agent of the same name.
            if str(params.get("to")).lower() in self._mine and params.get("project") == self._home:
                self.change(INBOX)
            if params.get("project") == self._slug:
                self.change(IDENTITIES)  # the rows show what is unread
            return
        what = params.get("what")
        ours = params.get("name") in self._mine[:1]  # changes name the address, which is the host's only one
        if params.get("project") == self._slug or ours:
            self.change(IDENTITIES)
        if ours:
            self.change(INBOX)
        if ours or (what == "claimed" and not self._mine) or (what == "registered" and self._slug is None):
            # It was lost or renamed, it may be ours now, or it made our project: what we knew is old.
            self.known, self.stale = False, True

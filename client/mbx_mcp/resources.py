"""The resources `mbx://inbox` and `mbx://identities`: what they are, what a read asks, who listens for updates.

Owns their definitions in each MCP revision and the subscriptions of one client. A read is a tool call in other
clothes. Never touches a descriptor, a clock or the daemon. Imported when a client first asks for resources.
Standard library only.
"""

from __future__ import annotations

from mbx_mcp import shapes
from mbx_mcp.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TypeAlias

    Watch: TypeAlias = tuple[str | None, str]
    """A conversation and a URI that it listens to."""

INBOX = "mbx://inbox"
IDENTITIES = "mbx://identities"
NOT_FOUND = -32002
"""The legacy revisions' code for an unknown resource; 2026-07-28 has INVALID_PARAMS for it."""
FAILED = -32603
SUBSCRIBED_MAX = 256
"""Subscriptions of the older revisions, each of one conversation to one resource; one more is refused."""

_MIME = "application/json"
_DEFINITIONS: tuple[dict[str, Any], ...] = (
    {
        "uri": INBOX,
        "name": "inbox",
        "title": "Inbox",
        "description": "Headers of the unread mail of this session's identity, as mbx_inbox shows them. "
        "Subscribe to hear of new mail.",
        "mimeType": _MIME,
    },
    {
        "uri": IDENTITIES,
        "name": "identities",
        "title": "Identities",
        "description": "The mailbox identities of this project, as mbx_identity action=list shows them.",
        "mimeType": _MIME,
    },
)
_READS: dict[str, tuple[str, dict[str, Any]]] = {
    INBOX: ("mbx_inbox", {}),
    IDENTITIES: ("mbx_identity", {"action": "list"}),
}
"""URI -> the tool call that reads it."""
_NO_CACHE = {"ttlMs": 0, "cacheScope": "private"}


def list_result(version: str) -> dict[str, Any]:
    """ListResourcesResult."""
    titled = version in shapes.WITH_TITLES
    found = [{k: v for k, v in each.items() if titled or k != "title"} for each in _DEFINITIONS]
    return _listed({"resources": found}, version)


def templates_result(version: str) -> dict[str, Any]:
    """ListResourceTemplatesResult: there are none."""
    return _listed({"resourceTemplates": []}, version)


def _listed(result: dict[str, Any], version: str) -> dict[str, Any]:
    return shapes.modern({**result, **shapes.CACHE}) if version in shapes.MODERN else result


def uri_of(params: dict[str, Any], version: str) -> str:
    """The known URI that a request names, or ProtocolError."""
    uri = params.get("uri")
    if not isinstance(uri, str):
        raise ProtocolError(INVALID_PARAMS, "the resource's uri is missing (a string)")
    if uri not in _READS:
        code = INVALID_PARAMS if version in shapes.MODERN else NOT_FOUND
        raise ProtocolError(code, f"Resource not found: {uri[:100]}", {"uri": uri[:100]})
    return uri


def reading(uri: str) -> tuple[str, dict[str, Any]]:
    """The tool and the arguments that read a resource."""
    tool, arguments = _READS[uri]
    return tool, dict(arguments)


def read_result(uri: str, result: dict[str, Any], version: str) -> dict[str, Any]:
    """ReadResourceResult out of the CallToolResult; a refused call is a ProtocolError that says what to do."""
    if result.get("isError"):
        content = result.get("structuredContent")
        error = content.get("error") if isinstance(content, dict) else None
        if not isinstance(error, dict):
            raise ProtocolError(FAILED, "the resource can't be read")
        raise ProtocolError(FAILED, f"{error.get('message')} {error.get('hint') or ''}".strip(), error)
    text = next((part["text"] for part in result.get("content") or () if part.get("type") == "text"), "{}")
    contents = {"contents": [{"uri": uri, "mimeType": _MIME, "text": text}]}
    return shapes.modern({**contents, **_NO_CACHE}) if version in shapes.MODERN else contents


class Subscribers:
    """Who of one client listens to which resource, each as the conversation that asked.

    `watched`: by conversation (its handle, or None), the URIs that are listened to; a new mapping after each change.
    """

    def __init__(self) -> None:
        self.watched: dict[str | None, frozenset[str]] = {}
        self._legacy: set[Watch] = set()
        self._streams: dict[tuple[str, int | str], tuple[str | None, tuple[str, ...]]] = {}

    def requested(self, method: str, params: dict[str, Any], version: str, handle: str | None) -> dict[str, Any]:
        """The result of resources/subscribe or resources/unsubscribe, which the older revisions have.

        An unsubscribe ends what its conversation has asked for; one that names no conversation, all of the resource.
        """
        uri = uri_of(params, version)
        if method == "resources/subscribe":
            if len(self._legacy) >= SUBSCRIBED_MAX and (handle, uri) not in self._legacy:
                raise ProtocolError(INVALID_REQUEST, f"at most {SUBSCRIBED_MAX} subscriptions at once")
            self._legacy.add((handle, uri))
        else:  # one that never was is no error
            self._legacy -= {each for each in self._legacy if each[1] == uri and handle in {None, each[0]}}
        self._settle()
        return {}

    def listen(self, stream: tuple[str, int | str], wanted: Any, handle: str | None) -> list[str]:
        """subscriptions/listen: the URIs of `resourceSubscriptions` that are honoured.

        stream: type and value of the request's id.
        """
        named = wanted if isinstance(wanted, list) else []
        uris = tuple(uri for uri in _READS if uri in named)
        if uris:
            self._streams[stream] = handle, uris
            self._settle()
        return list(uris)

    def end(self, stream: tuple[str, int | str]) -> None:
        """The end of one subscriptions/listen."""
        if self._streams.pop(stream, None) is not None:
            self._settle()

    def updated(self, changed: Sequence[Watch]) -> list[dict[str, Any]]:
        """The notifications that tell of changes; the older revisions', which name no listener, once a resource."""
        legacy = dict.fromkeys(each[1] for each in changed if each in self._legacy)
        told: list[dict[str, Any]] = [{"uri": uri} for uri in legacy]
        told += [
            {"_meta": {shapes.SUBSCRIPTION: stream[1]}, "uri": uri}
            for handle, uri in changed
            for stream, (whose, uris) in self._streams.items()
            if whose == handle and uri in uris
        ]
        return [{"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": each} for each in told]

    def _settle(self) -> None:
        watched: dict[str | None, frozenset[str]] = {}
        for handle, uris in [*((handle, (uri,)) for handle, uri in self._legacy), *self._streams.values()]:
            watched[handle] = watched.get(handle, frozenset()).union(uris)
        self.watched = watched

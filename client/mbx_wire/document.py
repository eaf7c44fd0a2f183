"""The page about the socket protocol, made from the method table. `python -m mbx_wire.document > docs/protocol.md`.

Owns the page's words. The test suite fails when the page in docs/ is not what this prints.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from mbx_wire.errors import EXIT_BY_CODE, Code, RpcError
from mbx_wire.methods import METHODS, Method
from mbx_wire.schema import struct_schema

_INTRO = """# The socket protocol

<!-- Made by `python -m mbx_wire.document`; a test checks that it is current. -->

JSON-RPC 2.0 over a Unix stream socket, one message a line: UTF-8, ended by `\\n`, at most 4 MiB. A line that is no request gets the
standard JSON-RPC error and the connection goes on. Only the daemon's own user is served.

`hello` introduces a connection and agrees on a version; `ping`, `status` and `stop` are answered by every version without it.
Beside `params` a request carries `meta: {request_id, session?, epoch?}`: `request_id` is unique within the client's
`instance`, and a repeat over any connection of the same process gets the first result; `session` is the conversation's handle; an act
under an older `epoch` is refused. Error -32003 tells of a bound: of connections, requests in flight, or unfinished lines.

A refusal is error -32000 (-32602 for a parameter) whose `data` is `{code, message, hint, retryable, data?}`; so is an unknown method or
tool when the client is of another version than the daemon (`VERSION_SKEW`: the hint says what to run). `client.version` is
therefore that of mbx; a program that was written without its libraries says `""`. Times are ISO 8601 UTC.
In params, `null`, `""` and `false` count as an absent optional member.

## Names

Where a mailbox that is there is named, a bare name means the agent of that name in the caller's project (in any case), else the mailbox of
that address. `<slug>/<name>` always means the one that has this address or agent name in exactly that project; `_/<name>` one without a project. A
name is given in the second form wherever the first would mean another mailbox to the caller. A new name has no `/`.
Mail acts for a mailbox: names, `role:` and `*` are meant in that mailbox's project, and shown as they are meant there; for the person they are
meant in the caller's project. `name`, `address` and `project` of a row are what they are, whoever asks.
"""

EXAMPLE = (
    (
        (
            '{"jsonrpc":"2.0","id":1,"method":"hello","params":{"protocol":{"min":1,"max":1},'
            '"client":{"name":"my-tool","version":"","instance":"5f3c9a"},"project":{"key":"shop","slug":"shop"}}}'
        ),
        (
            '{"id":1,"result":{"protocol":1,"server":{"version":"0.1.0","pid":4711,"started_at":"2026-12-01T07:33:18.778Z"},'
            '"lock":{"path":"/home/anna/.local/state/mbx/mbxd.lock","device":65024,"inode":2269607}},"jsonrpc":"2.0"}'
        ),
    ),
    (
        '{"jsonrpc":"2.0","id":2,"method":"identity.claim","params":{"name":"shop-backend"},"meta":{"request_id":"r2"}}',
        (
            '{"id":2,"error":{"code":-32000,"message":"There is no mailbox shop-backend.","data":{"code":"UNKNOWN_IDENTITY",'
            '"message":"There is no mailbox shop-backend.","hint":"Claim one that exists, or make this one: mbx_identity '
            '{\\"action\\":\\"register\\",\\"name\\":\\"shop-backend\\",\\"role\\":\\"backend\\"}.",'
            '"retryable":false,"data":{"near":[],"vacant":[]}}},"jsonrpc":"2.0"}'
        ),
    ),
)
"""Lines of one connection, each with its reply. A test asks a real daemon."""

OWN_CODES = {
    "CONFIRMATION_REQUIRED": (2, "`free` takes a mailbox from somebody, and there is no terminal to ask on"),
    "INTERNAL": (1, "a bug, of mbxctl or of the daemon"),
    "INTERRUPTED": (130, "Ctrl-C; it is the normal end of `watch`, which exits with 0"),
    "IO_ERROR": (1, "a path, a permission, a full disk"),
    "NOT_CONFIRMED": (1, "the answer to the question was not yes"),
    "NO_USER_MANAGER": (1, "systemd runs no manager for this user"),
    "PATH_UNUSABLE": (1, "a path that systemd can't take in a unit"),
    "STREAM_ENDED": (1, "the daemon ended what `watch` or `inbox --watch` followed"),
    "SYSTEMCTL_FAILED": (1, "what `systemctl` said is in the message"),
    "TOUR_FAILED": (1, "the tour did not see what it promises"),
    "UNITS_MISSING": (1, "this installation has no systemd units"),
    "UNSUPPORTED": (1, "Windows"),
}
"""Code -> (exit code, when), of failures that mbxctl alone can have. A test compares its sources."""


def page() -> str:
    """The whole page, Markdown."""
    parts = [_INTRO, _example(), _errors(), "## Methods\n"]
    parts += [_method(method) for method in METHODS.values()]
    parts.append(_EVENTS)
    return "\n".join(parts)


_OTHER_EXITS = """Without an error, mbxctl exits with 1 when `doctor`, `mail check` or `archive verify` found something wrong, with 3 or 1 when `ack` was refused
some messages (3: none there), and with 141 when the reader of its output has gone. `hook` always exits with 0."""

_EVENTS = """## Notifications

`events.change` `{seq, at, what, name, project, state, epoch, who, reason}`: one durable change, after `events.subscribe`.
`events.mail` `{to, from, subject, kind, id, unread, project}`: a message reached a mailbox and is durable; unread: there, with it. A repeated request may be told of again.
`events.dropped` `{queued}`: the subscriber left too much untaken; the stream ends, the connection stays.
"""


def _example() -> str:
    lines = "\n\n".join(f"-> {request}\n<- {reply}" for request, reply in EXAMPLE)
    return f"## Example\n\n```\n{lines}\n```\n"


def _errors() -> str:
    numbers = {k: v for k, v in vars(RpcError).items() if k.isupper()}
    lines = ["## Errors\n", "| number | name |", "|---|---|"]
    lines += [f"| {number} | {name.replace('_', ' ').lower()} |" for name, number in numbers.items()]
    lines += ["", "| code of a refusal | exit code of mbxctl |", "|---|---|"]
    lines += [f"| `{code}` | {EXIT_BY_CODE.get(code, 1)} |" for code in Code]
    lines += ["", "| code of mbxctl's own | exit code | when |", "|---|---|---|"]
    lines += [f"| `{code}` | {number} | {when} |" for code, (number, when) in OWN_CODES.items()]
    lines += ["", _OTHER_EXITS]
    return "\n".join(lines) + "\n"


def _method(method: Method) -> str:
    marks = [
        text
        for flag, text in (
            (method.changes, "changes"),
            (method.frozen, "frozen: answered without hello"),
            (method.people, "for people: refused beneath an agent CLI"),
        )
        if flag
    ]
    title = f"### `{method.name}`\n\n{method.doc}" + (f" ({'; '.join(marks)})" if marks else "")
    return f"{title}\n\n{_members('params', method.params)}\n{_members('result', method.result)}"


def _members(what: str, kind: type[msgspec.Struct]) -> str:
    schema = struct_schema(kind)
    properties: dict[str, Any] = schema.get("properties", {})
    if not properties:
        return f"{what}: see the method's text\n" if what == "result" else f"{what}: none\n"
    required = set(schema.get("required", ()))
    rows = [f"| {what} | type | |", "|---|---|---|"]
    for name, prop in properties.items():
        optional = "" if name in required or what == "result" else "optional"
        about = " ".join(x for x in (optional, prop.get("description", "")) if x)
        rows.append(f"| `{name}` | {_type(prop)} | {about} |")
    return "\n".join(rows) + "\n"


def _type(prop: dict[str, Any]) -> str:
    if "anyOf" in prop:
        return " or ".join(_type(option) for option in prop["anyOf"])
    if "enum" in prop:
        return " ".join(f"`{json.dumps(value)}`" for value in prop["enum"])
    kind = prop.get("type", "any")
    if kind == "object" and "properties" in prop:
        return "{" + ", ".join(prop["properties"]) + "}"
    if kind == "array":
        items = prop.get("items", {})
        return "array of " + (_type(items) if isinstance(items, dict) and items else "any")
    return str(kind)


if __name__ == "__main__":
    print(page(), end="")

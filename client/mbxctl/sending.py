"""`send`, `reply` and `ack`: beneath an agent CLI as that session's identity, elsewhere as `owner`.

Owns where a body comes from. Who sends is never a parameter: the daemon knows it from the process.
"""

from __future__ import annotations

import sys
from typing import Any

from mbx_wire.errors import EXIT_FAILURE, EXIT_NOT_FOUND, EXIT_USAGE, Code
from mbxctl import link, post
from mbxctl.failure import Failure
from mbxctl.render import Output

BODY_MAX = 256 * 1024
"""Bytes of UTF-8, as in mbx_wire.mail, which would load the whole schema."""


def run_send(
    out: Output,
    to: tuple[str, ...],
    subject: str,
    *,
    body: str | None,
    file: str | None,
    kind: str | None,
    needs_reply: bool,
    key: str | None,
    as_name: str | None,
) -> int:
    """Send a message, and tell who can read it."""
    refuse_as(as_name)
    params: dict[str, Any] = {"to": list(to), "subject": subject, "body": text(out, body, file)}
    params |= {name: value for name, value in (("kind", kind), ("idempotency_key", key)) if value is not None}
    return _sent(out, "mail.send", params, needs_reply=needs_reply)


def run_reply(
    out: Output,
    one: str,
    *,
    body: str | None,
    file: str | None,
    kind: str | None,
    needs_reply: bool,
    everybody: bool,
    as_name: str | None,
) -> int:
    """Answer in the thread of a message."""
    refuse_as(as_name)
    params: dict[str, Any] = {"id": one, "body": text(out, body, file)}
    if kind is not None:
        params["kind"] = kind
    if everybody:
        params["all"] = True
    return _sent(out, "mail.reply", params, needs_reply=needs_reply)


def _sent(out: Output, method: str, params: dict[str, Any], *, needs_reply: bool) -> int:
    if needs_reply:
        params["needs_reply"] = True
    with link.connect(start=True) as daemon:
        result = daemon.call(method, params)
    if out.json:
        out.document(result)
        return 0
    before = " before under this key" if result["duplicate"] else ""
    out.data(f"sent {result['id']}{before} to {', '.join(post.told(one) for one in result['recipients'])}")
    out.warn(result["warnings"])
    return 0


def run_ack(out: Output, ids: tuple[str, ...], *, note: str | None, as_name: str | None) -> int:
    """Be done with messages; each has its own result. Exits with 3 when one is unknown."""
    refuse_as(as_name)
    params: dict[str, Any] = {"ids": list(ids)}
    if note is not None:
        params["note"] = note
    with link.connect() as daemon:
        result = daemon.call("mail.ack", params)
    failed = [one for one in result["results"] if not one["ok"]]
    if out.json:
        out.document(result)
    else:
        for one in result["results"]:
            if one["ok"]:
                out.data(f"acked {one['id']}")
            else:
                out.talk(f"error: {one['id']}: {one.get('error') or 'refused'}")
        out.talk(f"{result['unread']} unread")
        out.warn(result["warnings"])
    if not failed:
        return 0
    unknown = all((one.get("error") or "").startswith("UNKNOWN_MESSAGE") for one in failed)
    return EXIT_NOT_FOUND if unknown else EXIT_FAILURE


def refuse_as(name: str | None) -> None:
    """`--as` is looking only."""
    if name is None:
        return
    raise Failure(
        Code.NOT_ALLOWED,
        f"mail is never sent, answered or acked as someone else ({name}); --as is for looking.",
        "Leave --as out: beneath an agent CLI it is that session's mailbox, elsewhere the owner's.",
    )


def text(out: Output, body: str | None, file: str | None) -> str:
    """The body: given, out of a file (`-`: stdin), or out of stdin."""
    if body is not None and file is not None:
        raise _usage("--body and --body-file are two bodies.", "Leave one of them out.")
    if body is not None:
        return body
    if file in {None, "-"}:
        if sys.stdin is None:
            raise _usage("there is no body: stdin is closed.", "Give --body or --body-file.")
        if sys.stdin.isatty():
            out.talk("type the message; Ctrl-D on a line of its own ends it")
        data = sys.stdin.buffer.read(BODY_MAX + 1)
    else:
        try:
            with open(str(file), "rb") as opened:
                data = opened.read(BODY_MAX + 1)
        except OSError as bad:
            raise _usage(f"can't read {file}: {bad.strerror}.", "Name a file with the message.") from None
    if len(data) > BODY_MAX:
        raise Failure(
            Code.BODY_TOO_LONG, f"the body has more than {BODY_MAX // 1024} KiB.", "Send a path to a file instead."
        )
    try:
        found = data.decode()
    except UnicodeDecodeError:
        raise _usage("the body is no UTF-8 text.", "Send text, or a path to the file.") from None
    if not found.strip():
        raise _usage("the message is empty.", "Give --body, --body-file, or the text on stdin.")
    return found


def _usage(message: str, hint: str) -> Failure:
    return Failure(Code.PARAMETER_INVALID, message, hint, exit_code=EXIT_USAGE)

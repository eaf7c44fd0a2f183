"""The spelling of the mail commands and of `hook`, in click. Each imports its work only when it runs.

Owns names, options and help texts, as `cli` does for the others. Never does anything itself.
"""

from __future__ import annotations

import click

from mbxctl.grammar import Command, Group
from mbxctl.render import Output

_LIMIT = click.option("--limit", type=click.IntRange(1, 200), default=30, show_default=True, help="How many.")
_BEFORE = click.option("--before", metavar="CURSOR", help="The next page: what the last one ended with.")
_KIND = click.option(
    "--kind", type=click.Choice(["message", "request", "status", "decision", "alert", "task"]), help="What it is."
)
_NEEDS_REPLY = click.option("--needs-reply", is_flag=True, help="Wait for an answer, and be told if nobody will.")
_NOT_AS = click.option("--as", "as_name", hidden=True)
"""Refused with words instead of "no such option"."""


@click.command("whoami", cls=Command)
@click.pass_obj
def _whoami(out: Output) -> int:
    """Show who this session is, what it should answer and what it waits for."""
    from mbxctl import post

    return post.run_whoami(out)


@click.command("inbox", cls=Command)
@click.option("--all", "everything", is_flag=True, help="Acked ones too.")
@_LIMIT
@_BEFORE
@click.option("--as", "name", metavar="NAME", help="Look into another mailbox (people only).")
@click.option("--owner", is_flag=True, help="Look into the person's own mailbox (people only).")
@click.option("--watch", is_flag=True, help="Go on with what arrives, until Ctrl-C (--json: one document a line).")
@click.pass_obj
def _inbox(
    out: Output, everything: bool, limit: int, before: str | None, name: str | None, owner: bool, watch: bool
) -> int:
    """Show what came, oldest first; outside an agent CLI to `owner`, the person."""
    from mbxctl import post

    return post.run_inbox(out, everything=everything, limit=limit, before=before, name=name, owner=owner, watch=watch)


@click.command("read", cls=Command)
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--as", "name", metavar="NAME", help="Look into another mailbox (people only).")
@click.pass_obj
def _read(out: Output, ids: tuple[str, ...], name: str | None) -> int:
    """Show messages with their bodies; they stay unread until acked."""
    from mbxctl import letters

    return letters.run_read(out, ids, name)


@click.command("send", cls=Command)
@click.argument("to", nargs=-1, required=True, metavar="TO...")
@click.option("--subject", required=True, help="One line.")
@click.option("--body", help="The text; without --body and --body-file it is read from stdin.")
@click.option("--body-file", "file", metavar="FILE", help="A file with the text; - is stdin.")
@_KIND
@_NEEDS_REPLY
@click.option("--key", help="A key of your own: the same key never sends twice.")
@_NOT_AS
@click.pass_obj
def _send(
    out: Output,
    to: tuple[str, ...],
    subject: str,
    body: str | None,
    file: str | None,
    kind: str | None,
    needs_reply: bool,
    key: str | None,
    as_name: str | None,
) -> int:
    """Send to names, role:ROLE, `*` or owner: as this session, outside an agent CLI as `owner`."""
    from mbxctl import sending

    return sending.run_send(
        out, to, subject, body=body, file=file, kind=kind, needs_reply=needs_reply, key=key, as_name=as_name
    )


@click.command("reply", cls=Command)
@click.argument("one", metavar="ID")
@click.option("--body", help="The text; without --body and --body-file it is read from stdin.")
@click.option("--body-file", "file", metavar="FILE", help="A file with the text; - is stdin.")
@_KIND
@_NEEDS_REPLY
@click.option("--all", "everybody", is_flag=True, help="To everybody of the message, not the sender alone.")
@_NOT_AS
@click.pass_obj
def _reply(
    out: Output,
    one: str,
    body: str | None,
    file: str | None,
    kind: str | None,
    needs_reply: bool,
    everybody: bool,
    as_name: str | None,
) -> int:
    """Answer in the thread of a message."""
    from mbxctl import sending

    return sending.run_reply(
        out, one, body=body, file=file, kind=kind, needs_reply=needs_reply, everybody=everybody, as_name=as_name
    )


@click.command("ack", cls=Command)
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--note", help="What came of it; the sender sees it.")
@_NOT_AS
@click.pass_obj
def _ack(out: Output, ids: tuple[str, ...], note: str | None, as_name: str | None) -> int:
    """Be done with messages."""
    from mbxctl import sending

    return sending.run_ack(out, ids, note=note, as_name=as_name)


@click.command("sent", cls=Command)
@_LIMIT
@_BEFORE
@click.pass_obj
def _sent(out: Output, limit: int, before: str | None) -> int:
    """Show what was sent, newest first, and what became of it."""
    from mbxctl import post

    return post.run_sent(out, limit=limit, before=before)


@click.command("thread", cls=Command)
@click.argument("one", metavar="ID")
@_LIMIT
@_BEFORE
@click.pass_obj
def _thread(out: Output, one: str, limit: int, before: str | None) -> int:
    """Show the thread of a message, oldest first."""
    from mbxctl import letters

    return letters.run_thread(out, one, limit=limit, before=before)


@click.command("search", cls=Command)
@click.argument("query")
@_LIMIT
@_BEFORE
@click.option("--in", "within", type=click.Choice(["mine", "received", "sent"]), help="Only what came, or went.")
@click.pass_obj
def _search(out: Output, query: str, limit: int, before: str | None, within: str | None) -> int:
    """Find words in subjects and bodies."""
    from mbxctl import post

    return post.run_search(out, query, limit=limit, within=within, before=before)


@click.group("mail", cls=Group)
def _mail() -> None:
    """Care of the file that holds all mail (people only)."""


@_mail.command("backup")
@click.argument("file")
@click.pass_obj
def _mail_backup(out: Output, file: str) -> int:
    """Copy all mail to a new file, while the daemon goes on."""
    from mbxctl import mailfile

    return mailfile.run_backup(out, file)


@_mail.command("check")
@click.pass_obj
def _mail_check(out: Output) -> int:
    """Check the mail file; exits with 1 when it is damaged."""
    from mbxctl import mailfile

    return mailfile.run_check(out)


@_mail.command("prune")
@click.option("--older-than", required=True, metavar="AGE", help="How long ago they ended, for example 90d.")
@click.option("--dry-run", is_flag=True, help="Only count what would go.")
@click.pass_obj
def _mail_prune(out: Output, older_than: str, dry_run: bool) -> int:
    """Delete threads that are over: all of it acked, nothing owed."""
    from mbxctl import mailfile

    return mailfile.run_prune(out, older_than, dry_run=dry_run)


@click.command("hook", cls=Command)
@click.option("--event", metavar="EVENT", help="session-start, resume, compact, prompt or stop.")
@click.pass_obj
def _hook(out: Output, event: str | None) -> int:
    """Say in one line who this session is: for the hooks of agent CLIs; never fails."""
    del out
    from mbxctl import hook

    return hook.run_hook([] if event is None else ["--event", event])


COMMANDS: tuple[click.Command, ...] = (
    _whoami,
    _inbox,
    _read,
    _send,
    _reply,
    _ack,
    _sent,
    _thread,
    _search,
    _mail,
    _hook,
)
"""In the order in which the help lists them."""

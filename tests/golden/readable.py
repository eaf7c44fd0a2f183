"""What stored data means, as JSON for people: the registry, a mail file, an archive; and the socket's schemas.

Written beside the golden files when a format is released, and compared with what every later build reads.
"""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any, get_args

import msgspec
from msgspec.structs import astuple, fields

from mbx_wire.envelope import Meta
from mbx_wire.methods import METHODS
from mbx_wire.schema import struct_schema
from mbx_wire.tools import TOOLS
from mbxd.core import events as ev
from mbxd.core import snapshot
from mbxd.core.state import State
from mbxd.mail.commands import OWNER
from mbxd.mail.store import MailStore
from mbxd.ports import ProcessId
from mbxd.runtime.repo import GitRepo
from mbxd.store import format as fmt

MAILBOXES = (OWNER, 1, 2, 3)
WORDS = ("hello", "bäckerei", "subject", "everybody", "orphaned")
INDEXES = ("by_address", "by_agent_name", "by_hint", "by_key", "by_session", "project_by_key", "slugs")


def plain(value: Any) -> Any:
    """JSON of a record by field names; a process by its values in order, bytes as text when they are that."""
    if isinstance(value, ProcessId):
        return list(astuple(value))
    if isinstance(value, msgspec.Struct):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, bytes):
        return value.decode() if value.isascii() and value.decode().isprintable() else value.hex()
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: plain(item) for key, item in value.items()}
        return [[plain(key), plain(item)] for key, item in value.items()]
    return [plain(item) for item in value] if isinstance(value, (tuple, list)) else value


def registry(state: State) -> dict[str, Any]:
    """Everything a registry knows, its indexes too."""
    return {
        "next": [state.next_project, state.next_identity],
        "projects": [plain(project) for project in state.projects.values()],
        "identities": [plain(identity) for identity in state.identities.values()],
        "lost": plain(state.lost),
        "replies": plain(state.replies),
        **{name: plain(getattr(state, name)) for name in INDEXES},
        "rosters": {str(project): roster.ordered() for project, roster in state.rosters.items()},
    }


def mail(store: MailStore) -> dict[str, Any]:
    """Everything that the mailboxes of the golden file show."""
    letters = {letter.id: letter for who in MAILBOXES for letter in store.sent(who, limit=200).letters}
    for who in (*MAILBOXES, *store.unread_counts):
        letters |= {letter.id: letter for letter in store.inbox(who, everything=True, limit=200).letters}
    return {
        "unread": {str(who): store.unread(who) for who in sorted(store.unread_counts)},
        "inboxes": {str(who): [one.id for one in store.inbox(who, limit=200).letters] for who in MAILBOXES},
        "letters": [
            plain(msgspec.structs.replace(letter, text=store.read([key], None).parts[0].text))
            for key, letter in sorted(letters.items())
        ],
        "open requests": [plain(one) for one in store.open_requests()],
        "held": [plain(one) for one in store.held_roles()],
        "found": {word: [one.id for one in store.search(None, word).letters] for word in WORDS},
        "found by 2": {word: [one.id for one in store.search(2, word).letters] for word in WORDS},
    }


def archive(repo: GitRepo, contents: dict[str, bytes]) -> dict[str, Any]:
    """The commits, and the files of the newest one; `contents`: what is checked out, by path."""
    tip = repo.tip()
    assert tip is not None
    assert {path: repo.blob_id(data) for path, data in contents.items()} == repo.files(tip.hexsha)
    return {
        "tip": plain(list(tip)),
        "commits": [plain(list(commit)) for commit in repo.log((), None)],
        "files": {path: data.decode().splitlines() for path, data in sorted(contents.items())},
    }


def records() -> dict[str, Any]:
    """The number of the log's format, and the fields of every record that it or a snapshot holds, in order."""
    roots: list[Any] = [*get_args(ev.Event), *get_args(snapshot.Chunk)]
    found: dict[str, list[str]] = {}
    while roots:
        kind = roots.pop()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            if kind.__name__ not in found:
                found[kind.__name__] = list(kind.__struct_fields__)
                roots += [field.type for field in fields(kind)]
        else:
            roots += get_args(kind)
    return {"format": fmt.VERSION, "records": dict(sorted(found.items()))}


def tables(path: str) -> dict[str, Any]:
    """The number of a mail file's schema, the columns of its tables, and its statements."""
    with contextlib.closing(sqlite3.connect(path)) as conn:
        (version,) = conn.execute("PRAGMA user_version").fetchone()
        found = conn.execute("SELECT name, sql FROM sqlite_master WHERE sql NOT NULL ORDER BY name").fetchall()
        columns = {
            name: [column for (column,) in conn.execute("SELECT name FROM pragma_table_info(?)", (name,))]
            for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        }
    return {"version": version, "columns": columns, "statements": dict(found)}


def wire() -> dict[str, Any]:
    """What clients send and read: params and results of methods, arguments of tools, each as `members`."""
    params = {name: members(struct_schema(method.params)) for name, method in METHODS.items()}
    return {
        "params": params | {"meta": members(struct_schema(Meta))},
        "results": {name: members(struct_schema(method.result)) for name, method in METHODS.items()},
        "tools": {name: members(struct_schema(tool.params)) for name, tool in TOOLS.items()},
    }


def members(schema: dict[str, Any], at: str = "") -> dict[str, str]:
    """Every member of an object schema by its path: its types and words with `|` between, `?` when it may be absent."""
    found: dict[str, str] = {}
    for option in schema.get("anyOf", [schema]):
        for name, prop in option.get("properties", {}).items():
            absent = "" if name in option.get("required", ()) else "?"
            found[f"{at}{name}"] = "|".join(sorted(_kinds(prop))) + absent
            found |= members(prop, f"{at}{name}.")
        if "items" in option:
            found |= members(option["items"], f"{at[:-1]}[].")
    return found


def _kinds(schema: dict[str, Any]) -> set[str]:
    if "anyOf" in schema:
        return {kind for option in schema["anyOf"] for kind in _kinds(option)}
    if "enum" in schema:
        return {f"'{word}'" for word in schema["enum"]}
    kind = schema.get("type", "any")
    if kind == "array":
        return {f"[{one}]" for one in _kinds(schema.get("items", {}))}
    return {kind}


def same(now: Any, then: Any) -> bool:
    """Whether everything that was there is there with the same value; later builds may tell more of a record."""
    if isinstance(then, dict):
        return isinstance(now, dict) and all(name in now and same(now[name], then[name]) for name in then)
    if isinstance(then, list):
        return isinstance(now, list) and len(now) == len(then) and all(map(same, now, then))
    return bool(now == then)


def kinds(union: Any) -> set[str]:
    """Names of the records in a union."""
    return {kind.__name__ for kind in get_args(union)}

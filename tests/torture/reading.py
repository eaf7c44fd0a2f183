"""What answers say, as far as the model wants to know. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from tests.torture.history import Op, Row

Holder = Callable[[tuple[int, str] | None], str]


def holder_of(found: dict[str, Any] | None) -> tuple[int, str] | None:
    """Process id and handle of a holder."""
    return None if not found else (found["pid"], found["session"] or "")


def refused_for(error: dict[str, Any]) -> tuple[int, str] | None:
    """Whom a refusal names."""
    return holder_of((error.get("data") or {}).get("holder"))


def name_in(error: dict[str, Any]) -> str:
    """The name that a refusal is about."""
    return (error.get("data") or {}).get("name") or ""


def fill(op: Op, body: dict[str, Any], holder: Holder, names: Collection[str]) -> bool:
    """Put a result into its operation; whether an act changed something."""
    match op.what:
        case "claim" | "register" | "resume":
            op.epoch, op.name = body["epoch"], body["identity"]["address"]
        case "create" | "take":
            op.epoch, op.name, op.bound = body["epoch"], body["address"], body["bound"]
            return op.bound
        case "release":
            op.released = body["released"] or ""
            return bool(op.released)
        case "list":
            you = body["you"]
            op.you = None if you is None else (you["address"], you["epoch"])
            op.rows = tuple(row(one, holder) for one in body["identities"] if one["address"] in names)
        case "send" | "stale":
            op.id = body["id"]
        case "ack":
            done = [one["ok"] for one in body["results"]]
            op.tokens = tuple(token for token, ok in zip(op.tokens, done, strict=True) if ok)
            return any(done)
        case "inbox":
            op.tokens = tuple(one["subject"] for one in body["messages"])
    return True


def row(one: dict[str, Any], holder: Holder) -> Row:
    held = holder(holder_of(one["holder"]))
    return Row(one["address"], one["state"], held, one["claimable"], one["claim_error"] or "")


def ids(body: dict[str, Any]) -> dict[str, str]:
    """Token -> id of the messages of an inbox."""
    return {one["subject"]: one["id"] for one in body["messages"]}


def essence(body: dict[str, Any]) -> tuple[object, ...]:
    """What a repeat must say again."""
    results = [(one["id"], one["ok"]) for one in body.get("results", ())]
    keys = ("epoch", "released", "id", "registration_token")
    return *(body.get(key) for key in keys), results

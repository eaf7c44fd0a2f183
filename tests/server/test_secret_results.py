"""The token of a reply: added to the encoded result, as if it had been a field of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from mbx_wire.agent import AgentResult, CreateAgentParams
from mbxd.core import tokens
from mbxd.server import secrets
from mbxd.server.services import Services

KEY = bytes(range(32))
MADE = AgentResult(
    id=7,
    name="GreenCastle",
    program="p",
    model='"}',
    task_description="ä\n",
    inception_ts="2026-01-31T12:00:00.000Z",
    last_active_ts="2026-01-31T12:00:00.000Z",
    project_id=1,
    address="greencastle",
    bound=True,
    epoch=1,
    unread=0,
    warnings=[],
    next='register_agent {"name":"GreenCastle"}',
)


def services() -> Services:
    identities = {7: SimpleNamespace(generation=2)}
    found: Any = SimpleNamespace(key=KEY, engine=SimpleNamespace(state=SimpleNamespace(identities=identities)))
    return cast("Services", found)


def added(result: Any, *, wanted: bool = True) -> Any:
    params = CreateAgentParams(project_key="/p", program="p", model="m", return_registration_token=wanted)
    return secrets.add(result, params, services())


def test_a_kept_result_and_a_new_one_get_the_same_token() -> None:
    encoded = msgspec.json.encode(MADE)
    whole = replace(MADE, registration_token=tokens.mint(KEY, 7, 2))
    assert added(MADE) == whole
    assert bytes(added(msgspec.Raw(encoded))) == msgspec.json.encode(whole)


def test_none_is_added_unless_it_was_asked_for() -> None:
    kept = msgspec.Raw(msgspec.json.encode(MADE))
    assert added(kept, wanted=False) is kept

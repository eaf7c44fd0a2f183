"""What a row says, field by field."""

from __future__ import annotations

from msgspec.structs import asdict

from mbx_wire.identity import Holder, LastHolder
from mbxd.core import view
from mbxd.core.context import PERSON, Context
from mbxd.core.events import SessionRef
from mbxd.core.liveness import Evidence
from mbxd.core.state import Hold, Identity, PastHold, Project, State
from tests.core.model import process

NOW = 1_700_000_000.0


def test_each_field_of_a_row_is_what_its_name_says() -> None:
    state = State()
    state.add_project(Project(1, "/src/shop", "shop", NOW))
    holder = SessionRef(process(7), "thread-1", "claude-code")
    before = SessionRef(process(9), "", "codex")
    state.add(
        Identity(
            5,
            "GreenLake",
            "shop-green-lake",
            "backend",
            "Takes orders",
            1,
            NOW,
            NOW + 1,
            epoch=2,
            hold=Hold(holder, NOW + 2, ()),
            past=PastHold(before, NOW + 3, "released"),
            program="a program",
            model="a model",
            task_description="a task",
        )
    )
    loose = Evidence("alive", "running", "dead", connected=False, loose_s=10.0)
    ctx = Context(PERSON, NOW, evidence=lambda _: loose, active={5: NOW + 4}, unread={5: 3})
    assert asdict(view.row(state, state.identities[5], None, ctx)) == {
        "id": 5,
        "name": "GreenLake",
        "address": "shop-green-lake",
        "project": "shop",
        "role": "backend",
        "description": "Takes orders",
        "state": "detached",
        "reason": "detached",
        "claimable": False,
        "claim_error": "IDENTITY_IN_USE",
        "claimable_in_s": 50.0,
        "unread": 3,
        "holder": Holder(client="claude-code", session="thread-1", pid=7, since="2023-11-14T22:13:22.000Z"),
        "last_holder": LastHolder(client="codex", pid=9, ended="2023-11-14T22:13:23.000Z", reason="released"),
        "program": "a program",
        "model": "a model",
        "task_description": "a task",
        "created_at": "2023-11-14T22:13:20.000Z",
        "last_active_at": "2023-11-14T22:13:24.000Z",
    }

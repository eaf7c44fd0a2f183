"""Random lives against a model that holds everything in lists."""

from __future__ import annotations

import tempfile
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mbxd.mail import commands as c
from tests.mail.support import NOW, Mail, letter

IDENTITY = st.integers(0, 4)
ROLE = st.sampled_from(["dev", "ops"])


class Life(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.place = tempfile.TemporaryDirectory()
        self.mail = Mail(f"{self.place.name}/mail.db")
        self.messages: list[dict[str, Any]] = []

    @rule(sender=IDENTITY, to=st.sets(IDENTITY, max_size=3), role=st.none() | ROLE, asks=st.booleans(), data=st.data())
    def send(self, sender: int, to: set[int], role: str | None, asks: bool, data: st.DataObject) -> None:
        if not to and role is None:
            return
        held = () if role is None else (c.Role(1, role),)
        replied = data.draw(st.none() | st.sampled_from(self.messages)) if self.messages else None
        if replied is not None and sender != c.OWNER and sender not in self.members(replied["thread"]):
            replied = None
        sent = self.mail.sent(
            letter(
                *(sender, tuple(to)),
                needs_reply=asks,
                held=held,
                reply_to=replied["id"] if replied else "",
                now=data.draw(st.sampled_from([NOW - 9, NOW])),
            )
        )
        if replied is not None:
            assert sent.thread == replied["thread"]
            self.answer(sender, replied)
        self.messages.append(
            {
                "id": sent.id,
                "thread": sent.thread,
                "sender": sender,
                "asks": asks,
                "at": sent.sent_at,
                "unacked": set(to),
                "all": set(to),
                "held": set(held),
                "owed": set(to) if asks else set(),
            }
        )

    def members(self, thread: str) -> set[int]:
        return {one for m in self.messages if m["thread"] == thread for one in (*m["all"], m["sender"])}

    def answer(self, sender: int, replied: dict[str, Any]) -> None:
        if sender in replied["owed"]:
            replied["owed"].discard(sender)
            return
        for message in self.messages[: self.messages.index(replied)]:
            if (message["thread"], message["sender"]) == (replied["thread"], replied["sender"]):
                message["owed"].discard(sender)

    @precondition(lambda self: self.messages)
    @rule(identity=IDENTITY, data=st.data())
    def ack(self, identity: int, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.messages), min_size=1, max_size=4))
        expected = {}
        for one in chosen:
            if one["id"] not in expected:
                state = "acked" if identity in one["unacked"] else "already" if identity in one["all"] else "unknown"
                expected[one["id"]] = state
                one["unacked"].discard(identity)
        assert self.mail.ack(identity, *(one["id"] for one in chosen)) == expected

    @rule(identity=IDENTITY, role=ROLE)
    def release(self, identity: int, role: str) -> None:
        came = self.mail.store.call(c.ReleaseHeld(1, role, identity)).ids
        expected = []
        for one in self.messages:
            if c.Role(1, role) in one["held"] and one["sender"] != identity:
                one["held"].remove(c.Role(1, role))
                if identity in one["all"]:
                    continue
                expected.append(one["id"])
                one["all"].add(identity)
                one["unacked"].add(identity)
                if one["asks"]:
                    one["owed"].add(identity)
        assert came == expected

    @rule()
    def prune(self) -> None:
        needed = {m["thread"] for m in self.messages if m["unacked"] or m["held"] or m["owed"] or m["at"] >= NOW}
        gone = [m for m in self.messages if m["thread"] not in needed]
        result = self.mail.store.call(c.Prune(NOW, NOW))
        assert result.messages == len(gone)
        self.messages = [m for m in self.messages if m["thread"] in needed]

    @rule()
    def reopen(self) -> None:
        self.mail.close()
        self.mail = Mail(self.mail.path)

    @invariant()
    def lists_agree(self) -> None:
        store = self.mail.store
        for identity in range(5):
            unacked = [m["id"] for m in self.messages if identity in m["unacked"]]
            mine = [m["id"] for m in self.messages if identity in m["all"] or identity == m["sender"]]
            assert self.mail.inbox(identity, limit=200) == unacked
            assert store.unread(identity) == len(unacked)
            assert self.mail.found(identity, "body", limit=200) == mine[::-1]
            assert [one.id for one in store.owed(identity)] == [m["id"] for m in self.messages if identity in m["owed"]]
        waited = [(m["id"], one) for m in self.messages if m["sender"] == 1 for one in sorted(m["owed"])]
        assert [(one.id, one.recipient) for one in store.waited_for(1)] == waited

    def teardown(self) -> None:
        try:
            self.mail.close()
        finally:
            self.place.cleanup()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)

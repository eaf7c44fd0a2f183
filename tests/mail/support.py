"""What the mail tests share: commands with defaults, and a store that ends with its test."""

from __future__ import annotations

import itertools
from typing import Any

from mbxd.mail import commands as c
from mbxd.mail.store import MailStore

NOW = 1_800_000_000.0
_numbers = itertools.count()


def entropy() -> bytes:
    """Never the same twice, and no randomness."""
    return next(_numbers).to_bytes(10, "big")


def letter(
    sender: int = 1, to: tuple[int, ...] = (2,), subject: str = "subject", body: str = "body", **more: Any
) -> c.Send:
    fields: dict[str, Any] = {"now": NOW, "entropy": entropy(), "registry_seq": 7, **more}
    return c.Send(sender, to, subject, body, **fields)


class Mail:
    """A store with short ways to say things."""

    def __init__(self, path: str, **options: Any) -> None:
        self.path = path
        self.store = MailStore.open(path, **options)

    def send(
        self, sender: int = 1, to: tuple[int, ...] = (2,), subject: str = "subject", body: str = "body", **more: Any
    ) -> str:
        return self.sent(letter(sender, to, subject, body, **more)).id

    def sent(self, command: c.Send, request: c.Request | None = None) -> c.Sent:
        result = self.store.call(command, request)
        assert isinstance(result, c.Sent)
        return result

    def reply(
        self, to_id: str, sender: int = 2, to: tuple[int, ...] = (1,), body: str = "answer", **more: Any
    ) -> c.Sent:
        return self.sent(letter(sender, to, "", body, reply_to=to_id, **more))

    def ack(self, identity: int, *ids: str, note: str = "", now: float = NOW) -> dict[str, str]:
        result = self.store.call(c.Ack(identity, ids, now, note))
        assert isinstance(result, c.Acked)
        return result.results

    def inbox(self, identity: int, **options: Any) -> list[str]:
        return [one.id for one in self.store.inbox(identity, **options).letters]

    def found(self, identity: int | None, query: str, **options: Any) -> list[str]:
        return [one.id for one in self.store.search(identity, query, **options).letters]

    def close(self) -> None:
        """Check everything, then close."""
        try:
            assert self.store.check().problems == []
        finally:
            assert self.store.close()

"""What the tests of mail over the socket share: a daemon with two agents and the person, and short words for mail."""

from __future__ import annotations

from typing import Any

from tests.support.daemon import Client, Place
from tests.support.trees import Forest


class Office:
    """A daemon with a backend, a tester and the person, and short words for what they do."""

    def __init__(self, place: Place, forest: Forest) -> None:
        self.place = place
        self.daemon = place.start()
        self.forest = forest
        self.speakers = forest.sessions(self.daemon, 2)
        self.anna, self.bert = (speaker.client for speaker in self.speakers)
        self.anna.register("shop-backend")
        self.bert.register("shop-tester", "tester")
        self.person = self.daemon.person()

    def restart(self) -> None:
        self.daemon.kill()
        self.daemon = self.place.start()
        self.anna, self.bert = (speaker.reconnect(self.daemon) for speaker in self.speakers)
        self.person = self.daemon.person()


def send(client: Client, to: str | list[str], body: str = "b", subject: str = "s", **more: Any) -> Any:
    meta = {"request_id": more.pop("request_id")} if "request_id" in more else {}
    to = [to] if isinstance(to, str) else to
    return client.call("mail.send", {"to": to, "subject": subject, "body": body, **more}, **meta)


def unread(client: Client, **params: Any) -> list[Any]:
    found: list[Any] = client.call("mail.inbox", params)["messages"]
    return found


def notices(client: Client) -> list[str]:
    return [one["subject"] for one in unread(client) if one["from"] == "mbxd"]

"""What mail calls somebody reaches just that one, whatever project a session works in."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.daemon import Client, DaemonProcess, Place
from tests.support.office import send, unread
from tests.support.trees import Forest

ALPHA: dict[str, Any] = {"key": "/repos/alpha", "slug": "alpha"}
BETA: dict[str, Any] = {"key": "/repos/beta", "slug": "beta"}


class Town:
    """GreenCastle of alpha and GreenCastle of beta, beta-lead held by a session that works in alpha, and the person."""

    def __init__(self, daemon: DaemonProcess, forest: Forest) -> None:
        def session(project: dict[str, Any]) -> Client:
            return forest.session(daemon, project=project).client

        self.beta, self.alpha, self.lead = session(BETA), session(ALPHA), session(ALPHA)
        for client, project in ((self.beta, BETA), (self.alpha, ALPHA)):
            named = {"project_key": project["key"], "program": "codex", "model": "m-1", "name": "GreenCastle"}
            assert client.call("agent.register", named)["bound"]
        maker = session(BETA)
        maker.register("beta-lead", "lead")
        maker.release()
        self.lead.claim("beta-lead")
        self.person = daemon.connect()
        self.person.hello("mbxctl", project=ALPHA)


@pytest.fixture
def town(place: Place, forest: Forest) -> Town:
    return Town(place.start(), forest)


def test_a_session_in_another_project_answers_whom_it_sees(town: Town) -> None:
    send(town.beta, "beta-lead", "from beta")
    [letter] = unread(town.lead)
    assert (letter["from"], letter["to"]) == ("GreenCastle", ["beta-lead"])
    sent = send(town.lead, letter["from"], "secret")
    assert [one["name"] for one in sent["recipients"]] == ["GreenCastle"]
    assert ([one["from"] for one in unread(town.beta)], unread(town.alpha)) == (["beta-lead"], [])
    answer = town.beta.call("mail.reply", {"id": sent["id"], "body": "yes"})
    assert [one["name"] for one in answer["recipients"]] == ["beta-lead"]


def test_roles_and_everybody_are_those_of_the_mailbox(town: Town) -> None:
    assert [one["name"] for one in send(town.lead, "*")["recipients"]] == ["GreenCastle"]
    assert len(unread(town.beta)) == 1
    assert send(town.alpha, "role:lead")["recipients"][0]["state"] == "held", "alpha has none"
    assert send(town.beta, "role:lead")["recipients"][0]["name"] == "beta-lead"
    held = send(town.lead, "role:tester")
    town.alpha.release()
    town.alpha.register("alpha-tester", "tester")
    assert not unread(town.alpha), "it waits for beta's"
    town.beta.release()
    town.beta.register("beta-tester", "tester")
    assert [one["id"] for one in unread(town.beta)] == [held["id"]]


def test_the_person_sees_names_that_mean_them_where_the_person_is(town: Town) -> None:
    """The address greencastle is beta's, and in alpha it is alpha's agent."""
    assert town.person.row("beta/greencastle")["address"] == "greencastle"
    watching = town.person
    watching.call("events.subscribe", {})
    sent = send(town.beta, ["owner", "beta-lead"])
    shown = [watching.note() for _ in range(2)]
    assert [note["params"]["from"] for note in shown if note["params"]["to"] == "owner"] == ["beta/greencastle"]
    [letter] = unread(town.person)
    assert (letter["from"], letter["to"]) == ("beta/greencastle", ["owner", "beta-lead"])
    [looked] = town.person.call("mail.peek", {"name": "beta/beta-lead"})["messages"]
    assert looked["from"] == "beta/greencastle"
    for name in (letter["from"], "beta/GreenCastle"):
        assert [one["name"] for one in send(town.person, name)["recipients"]] == ["beta/greencastle"]
    assert [one["name"] for one in send(town.person, "greencastle")["recipients"]] == ["GreenCastle"]
    reply = town.person.call("mail.reply", {"id": sent["id"], "body": "thanks"})
    assert [one["name"] for one in reply["recipients"]] == ["beta/greencastle"]
    assert (len(unread(town.beta)), len(unread(town.alpha))) == (3, 1)
    assert "mbxctl free beta/greencastle " in "".join(
        town.person.call("identity.why", {"name": "beta/greencastle"})["options"]
    )

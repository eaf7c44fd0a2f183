"""Agents converse by mail through real shims; recipient, sender and daemon are killed in the middle of it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.agents import Agent, Agents
from tests.support.daemon import FAULTY, Client, DaemonProcess, Place, Refused, wait_until
from tests.support.trees import Forest, Speaker

NAMES = ("crew-anna", "crew-bert", "crew-carl", "crew-dora")
PAGE = 200


# -- through real shims ------------------------------------------------------------------------------------


def shop(place: Place) -> Path:
    path = place.root / "shop"
    path.mkdir()
    (path / ".mbx.toml").write_text('project = "shop"\n')
    return path


def test_two_agents_converse(place: Place) -> None:
    place.start()
    with Agents(place.state) as agents:
        path = shop(place)
        anna, bert = agents.start(path), agents.start(path, "fastmcp")
        anna.call("mbx_identity", action="register", name="shop-backend", role="backend")
        bert.call("mbx_identity", action="register", name="shop-tester", role="tester")
        bert.order("mbx_inbox", {"wait_s": 30})
        sent = anna.call("mbx_send", to=["shop-tester"], subject="Build 7", body="\0 ünïcode 👍", needs_reply=True)
        assert sent["recipients"][0]["state"] == "live"
        [header] = bert.result("mbx_inbox")["messages"]
        assert header["id"] == sent["id"]
        read = bert.call("mbx_read", ids=[header["id"]])
        assert read["messages"][0]["body"] == "\0 ünïcode 👍"
        anna.order("mbx_inbox", {"wait_s": 30})
        reply = bert.call("mbx_reply", id=header["id"], body="green")
        [answer] = anna.result("mbx_inbox")["messages"]
        assert (answer["id"], answer["thread"]) == (reply["id"], sent["id"])
        assert bert.call("mbx_ack", ids=[header["id"]], note="tested")["unread"] == 0
        assert anna.call("mbx_sent")["messages"][0]["recipients"][0]["note"] == "tested"
        assert [one["body"] for one in anna.call("mbx_thread", id=sent["id"])["messages"]] == [
            "\0 ünïcode 👍",
            "green",
        ]
        assert anna.call("mbx_search", query="green")["messages"][0]["snippet"] == "[green]"
        assert anna.call("mbx_whoami")["unread"] == 1
        assert anna.refused("mbx_send", to=["shop-tseter"], subject="s", body="b").body["data"]["near"] == [
            "shop-tester"
        ]


@pytest.mark.timeout(240)
def test_ten_agents_converse_and_the_daemon_is_killed(place: Place) -> None:
    daemon = place.start()
    with Agents(place.state) as agents:
        path = shop(place)
        crew = [agents.start(path) for _ in range(10)]
        for number, agent in enumerate(crew):
            agent.call("mbx_identity", action="register", name=f"shop-w{number}", role="worker")
        for agent in crew:
            agent.order("mbx_send", {"to": ["*"], "subject": "hello", "body": "to all of you"})
        for agent in crew:
            assert len(agent.result("mbx_send")["recipients"]) == 9
        for number, agent in enumerate(crew):
            headers = agent.call("mbx_inbox", limit=50)["messages"]
            assert {one["from"] for one in headers} == {f"shop-w{n}" for n in range(10)} - {f"shop-w{number}"}
            if number == 4:
                daemon.kill()
                daemon = place.start()
            ids = [one["id"] for one in headers]
            agent.order("mbx_reply", {"id": ids[0], "body": "hello", "all": True})
            agent.result("mbx_reply")
            assert all(one["ok"] for one in agent.call("mbx_ack", ids=ids)["results"])
        check_replies(crew)


def check_replies(crew: list[Agent]) -> None:
    """The first greeting of each was answered to all: nobody hears an answer twice, or of mail that was acked."""
    for agent in crew:
        found = Counter((one["from"], one["thread"]) for one in agent.call("mbx_inbox", limit=PAGE)["messages"])
        assert set(found.values()) <= {1}


# -- kill -9 -----------------------------------------------------------------------------------------------


@dataclass
class Ask:
    """A request on its way, to be repeated under the same id until it is answered."""

    method: str
    params: dict[str, Any]
    request_id: str
    tokens: list[str]
    number: int = 0


@dataclass
class Letter:
    """What one acknowledged send is known to be."""

    id: str
    thread: str
    to: set[str]


@dataclass
class Crew:
    """Four mailboxes, whoever holds them now, and what everybody was told so far."""

    place: Place
    forest: Forest
    rng: random.Random
    daemon: DaemonProcess
    speakers: dict[str, Speaker] = field(default_factory=dict)
    open: dict[str, list[Ask]] = field(default_factory=dict)
    certain: dict[str, Letter] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)
    acked: set[tuple[str, str]] = field(default_factory=set)
    perhaps_acked: set[tuple[str, str]] = field(default_factory=set)
    count: int = 0

    def begin(self) -> None:
        for name, speaker in zip(NAMES, self.forest.sessions(self.daemon, len(NAMES)), strict=True):
            self.speakers[name] = speaker
            self.open[name] = []
            speaker.client.register(name, "crew")

    # one round

    def ask(self, name: str) -> Ask:
        self.count += 1
        mine = [t for t, letter in self.certain.items() if name in letter.to and (name, t) not in self.acked]
        kind = self.rng.choice(("send", "send", "send", "reply", "ack"))
        rid = f"r{self.count}"
        if kind == "ack" and mine:
            tokens = self.rng.sample(mine, min(len(mine), 3))
            return Ask("mail.ack", {"ids": [self.certain[t].id for t in tokens]}, rid, tokens)
        body = "x" * self.rng.choice((0, 10, 5_000, 60_000))
        token = f"t{self.count}"
        if kind == "reply" and mine:
            parent = self.certain[self.rng.choice(mine)]
            return Ask("mail.reply", {"id": parent.id, "body": f"{token} {body}", "all": True}, rid, [token])
        others = [other for other in NAMES if other != name]
        to = self.rng.sample(others, self.rng.randint(1, 3))
        return Ask("mail.send", {"to": to, "subject": token, "body": f"{token} {body}"}, rid, [token])

    def drive(self) -> None:
        """Requests of all at once; in the midst of their answers somebody dies."""
        asks = [(name, self.ask(name)) for name in self.rng.choices(NAMES, k=self.rng.randint(4, 24))]
        victim = self.rng.choice(("daemon", "daemon", *NAMES))
        for name, ask in asks:
            ask.number = self.speakers[name].client.send(ask.method, ask.params, request_id=ask.request_id)
            self.open[name].append(ask)
        for name in self.rng.choices(NAMES, k=self.rng.randint(0, len(asks))):
            if self.open[name]:
                self.take(name)
        if victim == "daemon":
            self.daemon.kill()
            self.place.forget(self.daemon)
            self.daemon = self.place.start()
            for speaker in self.speakers.values():
                speaker.reconnect(self.daemon)
        else:
            self.replace(victim)
        self.finish(again=victim == "daemon")

    def finish(self, *, again: bool) -> None:
        for name, asks in self.open.items():
            for ask in asks if again else ():
                ask.number = self.speakers[name].client.send(ask.method, ask.params, request_id=ask.request_id)
            while asks:
                self.take(name)

    def take(self, name: str) -> None:
        """One answer, in whatever order they come."""
        client = self.speakers[name].client
        message = client.receive()
        ask = next(one for one in self.open[name] if one.number == message["id"])
        self.open[name].remove(ask)
        assert "result" in message, message
        result = message["result"]
        if ask.method == "mail.ack":
            assert all(one["ok"] for one in result["results"])
            self.acked |= {(name, token) for token in ask.tokens}
            return
        letter = Letter(result["id"], result["thread"], {one["name"] for one in result["recipients"]})
        self.certain[ask.tokens[0]] = letter
        if ask.method == "mail.reply":
            parent = next(one for one in self.certain.values() if one.id == ask.params["id"])
            assert letter.thread == parent.thread

    def replace(self, name: str) -> None:
        """kill -9 of who holds a name; what it had not heard of is in doubt. A successor claims."""
        self.speakers[name].host.kill()
        self.speakers[name].shim.kill()
        for ask in self.open[name]:
            if ask.method == "mail.ack":
                self.perhaps_acked |= {(name, token) for token in ask.tokens}
            else:
                self.doubtful.add(ask.tokens[0])
        self.open[name] = []
        fresh = self.forest.session(self.daemon)
        self.speakers[name] = fresh

        def claimed() -> Any:
            try:
                return fresh.client.claim(name)
            except Refused as refusal:
                if refusal.code != "IDENTITY_IN_USE":
                    raise
                return None

        wait_until("the successor's claim", claimed)

    # what must be true

    def check(self) -> None:
        person = self.daemon.person()
        for name in NAMES:
            unread, everything = tokens(person, name), tokens(person, name, everything=True)
            assert max(everything.values(), default=1) == 1, "nothing twice"
            due = {t for t, letter in self.certain.items() if name in letter.to}
            assert due <= set(everything), "nothing lost"
            assert set(everything) - due <= self.doubtful
            open_ = {t for t in due if (name, t) not in self.acked}
            perhaps = {t for n, t in self.perhaps_acked if n == name}
            assert open_ - perhaps <= set(unread), "unread until it is acked"
            assert set(unread) - open_ <= self.doubtful
        person.close()

    def check_threads(self) -> None:
        by_thread: dict[str, set[str]] = {}
        for token, letter in self.certain.items():
            by_thread.setdefault(letter.thread, set()).add(token)
        for thread, expected in by_thread.items():
            name = next(iter(next(one for one in self.certain.values() if one.id == thread).to))
            page = self.speakers[name].client.call("mail.thread", {"id": thread, "limit": PAGE})
            found = [one["body"].split()[0] for one in page["messages"]]
            assert expected <= set(found)
            assert len(found) == len(set(found))
            assert set(found) - expected <= self.doubtful
            assert {one["thread"] for one in page["messages"]} == {thread}


def tokens(person: Client, name: str, *, everything: bool = False) -> Counter[str]:
    """Tokens of the mail in a mailbox, by how often they are there."""
    found: Counter[str] = Counter()
    before: dict[str, str] = {}
    while True:
        page = person.call("mail.peek", {"name": name, "all": everything, "limit": PAGE, **before})
        for one in page["messages"]:
            looked = person.call("mail.peek", {"name": name, "id": one["id"]})["messages"][0]
            found[looked["body"].split()[0]] += 1
        if page["before"] is None:
            return found
        before = {"before": page["before"]}


def kill_rounds(place: Place, forest: Forest, rounds: int, seed: int) -> None:
    crew = Crew(place, forest, random.Random(seed), place.start())
    crew.begin()
    for number in range(rounds):
        crew.drive()
        if number % 5 == 4:
            crew.check()
    crew.check()
    crew.check_threads()
    assert crew.daemon.person().call("mail.check")["ok"]
    assert crew.daemon.stop() == 0


@pytest.mark.timeout(300)
def test_thirty_kills_lose_no_mail_and_double_none(place: Place, forest: Forest) -> None:
    kill_rounds(place, forest, 30, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2, 12))
def test_five_hundred_kills_lose_no_mail_and_double_none(place: Place, forest: Forest, seed: int) -> None:
    kill_rounds(place, forest, 50, seed=seed)


def test_a_full_disk_loses_nothing_and_sends_nothing_by_half(place: Place, forest: Forest) -> None:
    """RLIMIT_FSIZE, lifted later: what a full disk does, without a disk to fill."""
    import resource

    limit = 400 * 1024
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    daemon = place.start(
        FAULTY,
        MBX_SEGMENT="65536",
        prepare=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard)),
    )
    anna, bert = (speaker.client for speaker in forest.sessions(daemon, 2))
    anna.register("shop-backend")
    bert.register("shop-tester")
    accepted: set[str] = set()
    params = {"to": ["shop-tester"], "subject": "s", "body": "x" * 60_000, "idempotency_key": "full"}
    for number in range(50):
        try:
            accepted.add(anna.call("mail.send", {**params, "idempotency_key": f"k{number}"})["id"])
        except Refused as refusal:
            if refusal.code != "DISK_FULL":
                raise
            params["idempotency_key"] = f"k{number}"
            break
    else:
        raise AssertionError("the disk never filled")
    assert {one["id"] for one in bert.call("mail.inbox", {"limit": 200})["messages"]} == accepted
    assert anna.call("identity.list")["you"]["name"] == "shop-backend", "the registry goes on"
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (hard, hard))
    accepted.add(anna.call("mail.send", params)["id"])
    assert {one["id"] for one in bert.call("mail.inbox", {"limit": 200})["messages"]} == accepted
    assert daemon.person().call("mail.check")["ok"]

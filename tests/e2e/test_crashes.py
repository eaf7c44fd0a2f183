"""kill -9 of the daemon at every point between a request and its reply, under load: nothing lost, nothing twice."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.daemon import FAULTY, Client, DaemonProcess, Place, Refused
from tests.support.trees import Forest, Speaker

POINTS = ("before_append", "half_written", "after_write", "after_fsync", "before_reply")
SEGMENT = "16384"


@dataclass
class Ask:
    """A request on its way, to be repeated under the same id until it is answered."""

    method: str
    params: dict[str, Any]
    request_id: str
    number: int = 0


@dataclass
class Agent:
    """One session and what it was told so far."""

    speaker: Speaker
    name: str
    epoch: int = 0
    holding: bool = False
    asks: int = 0
    open: Ask | None = None
    acts: Counter[str] = field(default_factory=Counter)
    answers: dict[str, Any] = field(default_factory=dict)

    def next(self) -> Ask:
        self.asks += 1
        request_id = f"r{self.asks}"
        if self.epoch == 0:
            return Ask("identity.register", {"name": self.name, "role": "load"}, request_id)
        if self.holding:
            return Ask("identity.release", {}, request_id)
        return Ask("identity.claim", {"name": self.name}, request_id)

    def send(self) -> None:
        self.open = self.open or self.next()
        ask = self.open
        ask.number = self.speaker.client.send(ask.method, ask.params, request_id=ask.request_id)

    def take(self) -> None:
        assert self.open is not None
        result = self.speaker.client.reply(self.open.number)
        ask, self.open = self.open, None
        self.acts[ask.method] += 1
        self.answers = {ask.request_id: (ask, result)}
        if ask.method == "identity.release":
            assert result["released"] == self.name, result
            self.holding = False
            return
        assert result["epoch"] == self.epoch + 1, (result, self)
        self.epoch, self.holding = result["epoch"], True

    def ask_again(self) -> None:
        """The last answered request, repeated: the first answer, and nothing new."""
        for ask, result in self.answers.values():
            assert self.speaker.client.call(ask.method, ask.params, request_id=ask.request_id) == result


def drive(agents: list[Agent]) -> bool:
    """One request of each session, all in flight at once. False when the daemon is gone."""
    try:
        for agent in agents:
            agent.send()
        for agent in agents:
            agent.take()
    except (ConnectionError, BrokenPipeError):
        return False
    return True


def check(person: Client, agents: list[Agent]) -> None:
    rows = person.rows()
    for agent in agents:
        if not agent.epoch:
            continue
        row = rows[agent.name]
        shown = person.call("identity.show", {"name": agent.name})
        if agent.open is None:
            assert shown["epoch"] == agent.epoch
            assert row["state"] == ("live" if agent.holding else "vacant")
        else:  # in doubt: done or not, but never twice
            assert shown["epoch"] in {agent.epoch, agent.epoch + 1}


def check_history(person: Client, agents: list[Agent]) -> None:
    for agent in agents:
        shown = person.call("admin.log", {"name": agent.name, "limit": 1000})
        entries = shown["entries"]
        grants = agent.acts["identity.register"] + agent.acts["identity.claim"]
        releases = agent.acts["identity.release"]
        assert (grants, releases) == (agent.epoch, agent.epoch - agent.holding)
        acts = [entry["what"] for entry in entries if entry["what"] != "registered"]
        newest, other = ("claimed", "released") if agent.holding else ("released", "claimed")
        assert acts == [other if place % 2 else newest for place in range(len(acts))], "newest first, in turns"
        epochs = [entry["epoch"] for entry in entries if entry["what"] == "claimed"]
        assert epochs == list(range(agent.epoch, agent.epoch - len(epochs), -1))
        assert len(entries) == (1000 if shown["truncated"] else 1 + grants + releases)
        seqs = [entry["seq"] for entry in entries]
        assert seqs == sorted(set(seqs), reverse=True)


def crash(place: Place, forest: Forest, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    daemon: DaemonProcess | None = None
    agents: list[Agent] = []
    for number in range(rounds):
        point = POINTS[number % len(POINTS)]
        # A batch carries requests of several sessions, a reply goes to one.
        nth = rng.randint(1, 60) if point == "before_reply" else rng.randint(1, 8)
        if daemon is not None:
            place.forget(daemon)
        daemon = place.start(FAULTY, MBX_FAULT=f"{point}:{nth}", MBX_SEGMENT=SEGMENT)
        if not agents:
            agents = [Agent(s, f"load-{at}") for at, s in enumerate(forest.sessions(daemon, 8))]
        elif not reconnect(daemon, agents):
            continue
        while drive(agents):
            pass
        assert daemon.process.wait(30) == -9, daemon.log()
    last = place.start(FAULTY, MBX_SEGMENT=SEGMENT)
    assert reconnect(last, agents)
    person = last.person()
    check(person, agents)
    assert drive(agents)
    for agent in agents:
        agent.ask_again()
    check(person, agents)
    check_history(person, agents)
    assert last.stop() == 0


def reconnect(daemon: DaemonProcess, agents: list[Agent]) -> bool:
    """False when the daemon dies meanwhile: a hello is a reply too."""
    try:
        for agent in agents:
            agent.speaker.reconnect(daemon)
    except (ConnectionError, BrokenPipeError, FileNotFoundError, OSError):
        daemon.process.wait(30)
        return False
    return True


@pytest.mark.timeout(300)
def test_fifty_crashes_lose_nothing_and_do_nothing_twice(place: Place, forest: Forest) -> None:
    crash(place, forest, 50, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_thousand_crashes_lose_nothing_and_do_nothing_twice(place: Place, forest: Forest) -> None:
    crash(place, forest, 1000, seed=2)


@pytest.mark.timeout(300)
def test_fifty_sessions_keep_name_and_epoch_over_a_crash(place: Place, forest: Forest) -> None:
    daemon = place.start()
    speakers = forest.sessions(daemon, 50)
    epochs = {}
    for at, speaker in enumerate(speakers):
        epochs[f"many-{at}"] = speaker.client.register(f"many-{at}")["epoch"]
        if at % 3 == 0:  # some have a longer history
            speaker.client.release()
            epochs[f"many-{at}"] = speaker.client.claim(f"many-{at}")["epoch"]
    with_stopped = speakers[7]
    daemon.kill()
    daemon = place.start()
    for at, speaker in enumerate(speakers):
        assert daemon.person().row(f"many-{at}")["state"] == "live", "even before its shim is back"
        if speaker is not with_stopped:
            speaker.reconnect(daemon)
    for at, speaker in enumerate(speakers):
        if speaker is with_stopped:
            continue
        you = speaker.client.call("identity.list")["you"]
        assert (you["name"], you["epoch"]) == (f"many-{at}", epochs[f"many-{at}"])
        assert speaker.client.claim()["epoch"] == epochs[f"many-{at}"]
        with pytest.raises(Refused, match="held by"):
            speaker.client.claim("many-7")


def test_a_shim_that_was_stopped_over_a_restart(place: Place, forest: Forest) -> None:
    daemon = place.start()
    speaker, other = forest.sessions(daemon, 2)
    epoch = speaker.client.register("shop-a")["epoch"]
    import os
    import signal

    os.kill(speaker.shim.pid, signal.SIGSTOP)
    daemon.kill()
    daemon = place.start()
    other.reconnect(daemon)
    assert other.client.row("shop-a")["state"] == "live", "stopped is not dead"
    assert other.client.refused("identity.claim", {"name": "shop-a"}).code == "IDENTITY_IN_USE"
    os.kill(speaker.shim.pid, signal.SIGCONT)
    assert speaker.reconnect(daemon).claim()["epoch"] == epoch


def test_who_dies_while_the_daemon_is_down(place: Place, forest: Forest) -> None:
    daemon = place.start()
    gone, shimless, well = forest.sessions(daemon, 3)
    for speaker, name in ((gone, "shop-a"), (shimless, "shop-b"), (well, "shop-c")):
        speaker.client.register(name)
    daemon.kill()
    gone.host.kill()
    shimless.shim.kill()
    daemon = place.start()
    rows = daemon.person().rows()
    assert [(rows[n]["state"], rows[n]["reason"]) for n in ("shop-a", "shop-b", "shop-c")] == [
        ("vacant", "holder-exited"),
        ("detached", "detached"),
        ("live", "held"),
    ]
    lost = daemon.person().call("admin.log", {"name": "shop-a"})["entries"][0]
    assert (lost["what"], lost["reason"]) == ("lost", "holder-exited")


def test_a_released_name_stays_released_over_a_restart(place: Place, forest: Forest) -> None:
    daemon = place.start()
    speaker = forest.session(daemon, resume=["claude-code:abc"])
    speaker.client.register("shop-a")
    speaker.client.release()
    daemon.kill()
    speaker.reconnect(place.start())
    listed = speaker.client.call("identity.list")
    assert (listed["you"], listed["pending"]) == (None, None)


def test_a_resumed_session_finds_its_name_pending(place: Place, forest: Forest) -> None:
    daemon = place.start()
    ground = forest.ground()
    host = ground.fork()
    first = Speaker(host, host.fork(), daemon, resume=["claude-code:abc"])
    first.client.register("shop-a")
    rival = forest.session(daemon)
    host = ground.fork()
    second = Speaker(host, host.fork(), daemon, resume=["claude-code:abc"])
    pending = second.client.call("identity.list")["pending"]
    assert pending == {"name": "shop-a", "why": "resume", "claimable": False}, "the first one lives"
    assert second.client.refused("identity.claim").code == "IDENTITY_IN_USE"
    daemon.kill()
    first.host.kill()
    daemon = place.start()
    rival.reconnect(daemon)
    second.reconnect(daemon)
    assert second.client.call("identity.list")["pending"] == {"name": "shop-a", "why": "resume", "claimable": True}
    claimed = second.client.claim()
    assert (claimed["epoch"], claimed["resumed"]) == (2, True)

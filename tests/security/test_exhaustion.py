"""A process of the same user that asks for too much: memory stays bounded, and the others are served."""

from __future__ import annotations

import contextlib
import json
import resource
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from mbx_wire.agent import CreateAgentParams, EnsureProjectParams
from mbx_wire.framing import MAX_LINE, LineReader
from mbx_wire.identity import ClaimParams, RegisterParams
from mbxd.core import events as ev
from mbxd.core import machine
from mbxd.core.rejected import Rejected
from mbxd.runtime import instances
from mbxd.runtime.clock import AwakeTime
from mbxd.server.holding import Connection, Held
from mbxd.server.limits import (
    CONNECTIONS_SPARE,
    DESCRIPTORS_EACH,
    HELLO_TEXT_MAX,
    IN_FLIGHT_MAX,
    UNFINISHED_MAX,
    UNTAKEN_MAX,
)
from mbxd.server.services import HANDLES_KEPT
from tests.core.model import Refusal, World
from tests.core.test_bounds import ANNA
from tests.support.daemon import Client, DaemonProcess, Place, wait_until
from tests.support.trees import Forest

MIB = 1024 * 1024
BUSY = -32003


def resident(daemon: DaemonProcess) -> int:
    """Bytes of memory, proc(5)."""
    words = Path(f"/proc/{daemon.pid}/status").read_text().partition("VmRSS:")[2].split()
    return int(words[0]) * 1024


def served(daemon: DaemonProcess, honest: Client) -> None:
    """Somebody else gets all of it: a look, a change, a long line."""
    assert honest.call("ping")["pid"] == daemon.pid
    assert honest.call("identity.claim")["epoch"] == 1
    assert honest.call("identity.list", {"all": True})["you"]["name"] == "honest"
    text = "x" * (200 * 1024)
    assert honest.call("mail.send", {"to": ["honest"], "subject": "long", "body": text})["id"]


@pytest.fixture
def honest(daemon: DaemonProcess, forest: Forest) -> Client:
    client = forest.session(daemon).client
    client.register("honest")
    return client


def test_lines_that_do_not_end(daemon: DaemonProcess, honest: Client) -> None:
    served(daemon, honest)
    before = resident(daemon)
    crowd = [daemon.connect() for _ in range(40)]
    for client in crowd:
        client.send_raw(b"x" * (MAX_LINE - 100))
    served(daemon, honest)
    assert resident(daemon) - before < UNFINISHED_MAX * 3 // 2 + 16 * MIB
    told = [client.receive() for client in crowd[: 40 - UNFINISHED_MAX // MAX_LINE]]
    assert {one["error"]["code"] for one in told} == {BUSY}, "the oldest are told"
    assert "send it again, whole" in told[0]["error"]["message"]
    crowd[0].send_raw(b"\n")
    crowd[-1].send_raw(b"\n")
    assert crowd[-1].receive()["error"]["code"] == -32700, "the newest one's line was kept, and is no JSON"
    assert crowd[0].call("ping")["pong"]
    assert crowd[-1].call("ping")["pong"]
    lines = daemon.person().call("admin.stats")["parts"]["lines"]
    assert lines["bytes"] <= UNFINISHED_MAX
    assert lines["given_up"] >= 40 - UNFINISHED_MAX // MAX_LINE


def test_byte_by_byte_costs_no_more() -> None:
    reader, size = LineReader(), 200_000
    tracemalloc.start()
    try:
        for _ in range(size):
            reader.feed(b"x")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reader.buffered == size
    assert held < 2 * size
    assert reader.give_up() == size
    assert reader.feed(b"rest\nnext\n") == [b"next"]


def test_giving_up_nothing_loses_nothing() -> None:
    reader = LineReader()
    assert reader.feed(b"one\n") == [b"one"]
    assert reader.give_up() == 0
    assert reader.feed(b"two\n") == [b"two"]


def test_requests_that_wait_keep_no_padding(daemon: DaemonProcess, honest: Client, forest: Forest) -> None:
    greedy = forest.session(daemon).client
    greedy.register("greedy")
    served(daemon, honest)
    before = resident(daemon)
    blanks = b" " * (MAX_LINE - 300)
    for number in range(40):
        line = b'{"jsonrpc":"2.0","id":%d,"method":"mail.inbox","params":{"wait_s":30},%s"meta":{}}\n' % (
            number,
            blanks,
        )
        greedy.send_raw(line)
    assert greedy.call("ping")["pong"], "all of them wait"
    assert resident(daemon) - before < 48 * MIB
    served(daemon, honest)


def test_thousands_of_waiters(daemon: DaemonProcess, honest: Client, forest: Forest) -> None:
    crowd = forest.sessions(daemon, 8)
    for at, speaker in enumerate(crowd):
        speaker.client.register(f"waiter-{at}")
    before = resident(daemon)
    line = b'{"jsonrpc":"2.0","id":%d,"method":"mail.inbox","params":{"wait_s":40}}\n'
    for speaker in crowd:
        speaker.client.send_raw(b"".join(line % number for number in range(IN_FLIGHT_MAX + 50)))
        assert all(speaker.client.receive()["error"]["code"] == BUSY for _ in range(50))
    served(daemon, honest)
    assert resident(daemon) - before < 64 * MIB
    for speaker in crowd:
        speaker.client.close()
    wait_until("they are gone", lambda: honest.call("status")["connections"] <= 2)
    served(daemon, honest)


def test_a_thousand_subscriptions_of_one_connection_are_one(
    daemon: DaemonProcess, honest: Client, forest: Forest
) -> None:
    greedy = forest.session(daemon).client
    for number in range(1000):
        greedy.call("events.subscribe", {"project": None if number % 2 else f"p{number}"})
    assert daemon.person().call("admin.stats")["parts"]["fanout"]["subscribers"] == 1
    too_long = greedy.refused("events.subscribe", {"project": "p" * (HELLO_TEXT_MAX + 1)})
    assert too_long.code == "PARAMETER_INVALID"
    honest.release()
    assert greedy.note()["params"]["what"] == "released"
    assert greedy.call("ping")["pong"]
    assert not greedy.notes


def test_handles_by_the_thousand(daemon: DaemonProcess, honest: Client, forest: Forest) -> None:
    speaker = forest.session(daemon)
    before = resident(daemon)
    for number in range(2000):
        speaker.client.call("identity.list", {}, session=f"{number:0200d}"[-200:])
    assert resident(daemon) - before < 24 * MIB
    # A command line beneath that host learns of the newest alone.
    person = speaker.host.fork().connect(daemon.socket_path)
    person.hello("mbxctl")
    refusal = person.refused("identity.claim", {"name": "honest"})
    assert refusal.code == "AMBIGUOUS_SESSION"
    assert f"{HANDLES_KEPT} conversations" in refusal.body["message"]
    served(daemon, honest)


def hundred_connections() -> None:
    limit = CONNECTIONS_SPARE + 100 * DESCRIPTORS_EACH
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def test_one_process_can_not_take_all_connections(place: Place, forest: Forest) -> None:
    daemon = place.start(prepare=hundred_connections)
    honest = forest.session(daemon).client
    honest.register("honest")
    crowd = []
    for _ in range(99):
        crowd.append(daemon.connect())
        assert crowd[-1].call("ping")["pong"], "one after another: of those that wait together any may come first"
    assert daemon.connect().receive()["error"]["code"] == BUSY, "it gets no more"
    newcomers = forest.sessions(daemon, 3)
    for at, speaker in enumerate(newcomers):
        speaker.client.register(f"newcomer-{at}")
    told = [client.receive()["error"] for client in crowd[:3]]
    assert {error["code"] for error in told} == {BUSY}
    assert "this process has most of them" in told[0]["message"]
    with pytest.raises(ConnectionError):
        crowd[0].receive()
    assert crowd[3].call("ping")["pong"]
    served(daemon, honest)
    assert daemon.log().count("a process with many connections loses one") == 3


def test_connections_that_come_and_go(daemon: DaemonProcess, honest: Client) -> None:
    before = resident(daemon)
    for _ in range(150):
        client = daemon.connect()
        client.hello("mbxctl")
        client.close()
    wait_until("they are gone", lambda: honest.call("status")["connections"] == 1)
    assert resident(daemon) - before < 16 * MIB
    served(daemon, honest)


class Still:
    """A clock that stands still."""

    def wall(self) -> float:
        return 0.0

    def awake(self) -> float:
        return 0.0


def test_results_of_the_dead_are_kept_for_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "GONE_MAX", 3)
    kept = instances.Instances(AwakeTime(Still()), [])
    for name in "abcde":
        kept.opened(name)
        kept.closed(name)
    kept.opened("c")
    assert kept.take_overdue() == ("a",)
    kept.closed("c")
    assert kept.take_overdue() == ("b",)
    assert kept.take_overdue() == ()
    assert kept.statistics() == {"open": 0, "gone": 3}


class Fake:
    """A connection that holds what it is told to."""

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.let_go = 0

    @property
    def unfinished(self) -> int:
        return self.size

    @property
    def untaken(self) -> int:
        return self.size

    def drop_line(self) -> None:
        self.size, self.let_go = 0, self.let_go + 1

    def cut_off(self) -> None:
        self.drop_line()


def test_what_is_held_together() -> None:
    def oldest(held: dict[Connection, int]) -> Connection:
        return next(iter(held))

    held = Held(100, lambda c: c.unfinished, oldest, lambda c: c.drop_line())
    first, second, third = Fake(), Fake(), Fake()
    for one, size in ((first, 40), (second, 40), (first, 60)):
        one.size = size
        held.note(one)
    assert held.statistics() == {"connections": 2, "bytes": 100, "given_up": 0}
    third.size = 1
    held.note(third)
    assert (first.let_go, second.let_go, third.let_go) == (1, 0, 0), "the oldest, though it grew last"
    second.size = 0  # not noted: it is looked at again before anybody has to go
    third.size = 100
    held.note(third)
    assert held.statistics() == {"connections": 1, "bytes": 100, "given_up": 1}
    third.size = 101
    held.note(third)
    assert third.let_go == 1
    held.forget(third)
    assert held.statistics() == {"connections": 0, "bytes": 0, "given_up": 2}


def test_replies_that_nobody_reads(daemon: DaemonProcess, honest: Client, forest: Forest) -> None:
    """Answers from worker threads are not held up by the bound of the connection: all together are bounded."""
    letter = {"to": ["honest"], "subject": "s", "body": "y" * (200 * 1024)}
    ids = [honest.call("mail.send", letter)["id"] for _ in range(4)]
    before = resident(daemon)
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "mail.read", "params": {"ids": ids}}).encode() + b"\n"
    honest.sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        honest.sock.send(line * IN_FLIGHT_MAX)
    other = forest.session(daemon).client
    other.register("other")
    assert other.call("identity.list")["you"]["name"] == "other"
    assert resident(daemon) - before < UNTAKEN_MAX // 2


SMALL = """
import sys
from mbxd.server import limits
limits.UNTAKEN_MAX = 1 << 21
from mbxd.__main__ import main
sys.exit(main())
"""


def test_who_reads_least_is_cut_off(place: Place, forest: Forest) -> None:
    script = place.root / "small.py"
    script.write_text(SMALL)
    daemon = place.start((str(script),))
    person = daemon.person()
    for at in range(50):
        person.register(f"mailbox-with-a-long-name-{at}")
    crowd = forest.sessions(daemon, 6)
    line = b'{"jsonrpc":"2.0","id":1,"method":"identity.list","params":{"all":true}}\n'
    for speaker in crowd:
        speaker.client.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            speaker.client.sock.send(line * 2000)
    wait_until("some are cut off", lambda: person.call("admin.stats")["parts"]["replies"]["given_up"])
    wait_until("the rest is bounded", lambda: person.call("admin.stats")["parts"]["replies"]["bytes"] <= 1 << 21)
    assert len(person.rows()) == 50
    assert "a peer that reads nothing is cut off" in daemon.log()


def refused(world: World, command: str, params: Any) -> str:
    found = world.run(command, params, ANNA)
    assert isinstance(found, Refusal), found
    return found.code


def test_names_by_the_million(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(machine, "IDENTITIES_MAX", 1)
    monkeypatch.setattr(machine, "PROJECTS_MAX", 2)
    world.run("identity.register", RegisterParams("shop-a", "qa"), ANNA)
    assert refused(world, "agent.create", CreateAgentParams("/tmp/shop", "p", "m")) == ("NAMES_EXHAUSTED")
    world.run("project.ensure", EnsureProjectParams("/tmp/second"), ANNA)
    assert refused(world, "project.ensure", EnsureProjectParams("/tmp/third")) == "NAMES_EXHAUSTED"
    assert world.run("identity.claim", ClaimParams("shop-a"), ANNA)["epoch"] == 1, "all else goes on"
    with pytest.raises(Rejected, match="keeps no more"):
        machine._with_room(world.state, machine.Decision([ev.ProjectCreated(9, "k", "s", 0.0)], None))

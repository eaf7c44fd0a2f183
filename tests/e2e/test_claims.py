"""Claim races, idempotent retries and fencing, on real processes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.support.daemon import PATIENCE, DaemonProcess, Refused
from tests.support.trees import Forest, Speaker


def claim_at_once(speakers: list[Speaker], name: str) -> list[Any]:
    """What each gets for a claim that all send at the same instant."""
    barrier = threading.Barrier(len(speakers))
    results: list[Any] = [None] * len(speakers)

    def go(at: int) -> None:
        barrier.wait(PATIENCE)
        try:
            results[at] = speakers[at].client.claim(name)
        except Refused as refusal:
            results[at] = refusal

    threads = [threading.Thread(target=go, args=(at,)) for at in range(len(speakers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return results


def race(daemon: DaemonProcess, forest: Forest, rounds: int) -> None:
    speakers = forest.sessions(daemon, 20)
    person = daemon.person()
    for number in range(rounds):
        name = f"prize-{number}"
        person.register(name)
        results = claim_at_once(speakers, name)
        winners = [at for at, result in enumerate(results) if isinstance(result, dict)]
        assert len(winners) == 1, results
        winner = speakers[winners[0]]
        assert results[winners[0]]["epoch"] == 1
        for result in results:
            if isinstance(result, Refused):
                assert result.code == "IDENTITY_IN_USE"
                assert result.data["holder"]["pid"] == winner.host.pid
                assert str(winner.host.pid) in result.body["message"]
                assert result.body["retryable"] is False
        claims = [e for e in person.call("admin.log", {"name": name})["entries"] if e["what"] == "claimed"]
        assert [claim["pid"] for claim in claims] == [winner.host.pid]
        holders = {row["name"] for row in person.rows().values() if row["state"] == "live"}
        assert holders == {name}, "losers keep what they had: nothing"
        winner.client.release()


def test_one_of_twenty_gets_the_name(daemon: DaemonProcess, forest: Forest) -> None:
    race(daemon, forest, 10)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_of_twenty_gets_the_name_every_time(daemon: DaemonProcess, forest: Forest) -> None:
    race(daemon, forest, 200)


def test_two_first_calls_of_one_session(daemon: DaemonProcess, forest: Forest) -> None:
    client = forest.session(daemon).client
    first = client.send("identity.register", {"name": "shop-a", "role": "backend"})
    second = client.send("identity.claim", {"name": "shop-a"})
    third = client.send("identity.claim")
    answers = [client.reply(number) for number in (first, second, third)]
    assert {answer["epoch"] for answer in answers} == {1}
    assert [answer["created"] for answer in answers] == [True, False, False]


def test_a_repeat_gets_the_first_answer(daemon: DaemonProcess, forest: Forest) -> None:
    speaker = forest.session(daemon)
    first = speaker.client.register("shop-a", request_id="r1")
    assert speaker.client.register("shop-a", request_id="r1") == first
    speaker.client.release(request_id="r2")
    client = speaker.reconnect(daemon)
    assert client.register("shop-a", request_id="r1") == first, "also over another connection, also after a release"
    assert client.row("shop-a")["state"] == "vacant", "and it is not done again"
    other = client.refused("identity.register", {"name": "shop-b", "role": "backend"}, request_id="r1")
    assert other.code == "REQUEST_ID_REUSED"


def test_a_lost_reply_is_asked_for_again(daemon: DaemonProcess, forest: Forest) -> None:
    speaker = forest.session(daemon)
    speaker.client.send("identity.register", {"name": "shop-a", "role": "backend"}, request_id="r1")
    client = speaker.reconnect(daemon)  # the reply of the first connection is lost
    again = client.register("shop-a", request_id="r1")
    assert again["epoch"] == 1
    assert again["created"]


def test_a_late_release_of_an_older_epoch_changes_nothing(daemon: DaemonProcess, forest: Forest) -> None:
    client = forest.session(daemon).client
    old = client.register("shop-a")["epoch"]
    client.release()
    new = client.claim("shop-a")["epoch"]
    assert new == old + 1
    late = client.release(epoch=old)
    assert late["released"] is None
    assert late["warnings"]
    assert client.row("shop-a")["state"] == "live"


def test_a_freed_holder_is_fenced_and_told(daemon: DaemonProcess, forest: Forest) -> None:
    holder, successor = forest.sessions(daemon, 2)
    epoch = holder.client.register("shop-a")["epoch"]
    person = daemon.person()
    freed = person.call("admin.free", {"name": "shop-a", "reason": "its terminal hangs"})
    assert freed["epoch"] == epoch + 1
    assert successor.client.claim("shop-a")["epoch"] == epoch + 2
    assert holder.client.release(epoch=epoch)["released"] is None
    listed = holder.client.call("identity.list")
    assert listed["you"] is None
    assert listed["lost"]["name"] == "shop-a"
    assert listed["lost"]["how"] == "freed"
    assert holder.client.refused("identity.claim", {"name": "shop-a"}).code == "IDENTITY_IN_USE"
    assert successor.client.call("identity.list")["you"]["epoch"] == epoch + 2


def test_a_taken_name_as_target_of_a_rename_changes_nothing(daemon: DaemonProcess, forest: Forest) -> None:
    one, two = forest.sessions(daemon, 2)
    one.client.register("shop-a")
    two.client.register("shop-b")
    person = daemon.person()
    before = person.rows()
    assert person.refused("admin.rename", {"name": "shop-a", "to": "shop-b"}).code == "NAME_TAKEN"
    assert person.rows() == before
    person.call("admin.rename", {"name": "shop-a", "to": "shop-c"})
    assert one.client.call("identity.list")["you"]["name"] == "shop-c"
    assert person.row("shop-a")["name"] == "shop-c"


def test_second_connection_of_a_session_shares_and_takes_nothing(daemon: DaemonProcess, forest: Forest) -> None:
    speaker = forest.session(daemon)
    epoch = speaker.client.register("shop-a")["epoch"]
    sibling = speaker.host.fork()
    with sibling.connect(daemon.socket_path) as second:
        second.hello()
        assert second.call("identity.list")["you"]["epoch"] == epoch
        assert second.claim()["epoch"] == epoch
        assert second.refused("identity.register", {"name": "shop-b", "role": "x"}).code == "HOLDS_ANOTHER"
    sibling.kill()
    assert speaker.client.claim()["epoch"] == epoch
    assert speaker.client.row("shop-a")["state"] == "live"


def test_a_wish_of_a_child_is_no_authority(daemon: DaemonProcess, forest: Forest) -> None:
    parent = forest.session(daemon)
    parent.client.register("shop-a")
    agent = parent.shim.fork()  # an agent started by the agent, with the parent's environment
    child = Speaker(agent, agent.fork(), daemon, agent="shop-a", resume=["claude-code:1"])
    # What sits between is no wrapper: the child's host is its own process.
    assert child.client.refused("identity.claim").code == "IDENTITY_IN_USE"
    assert child.client.call("identity.list")["pending"] == {"name": "shop-a", "why": "wish", "claimable": False}


def test_conversations_of_one_process_are_apart(daemon: DaemonProcess, forest: Forest) -> None:
    client = forest.session(daemon).client
    one = client.register("shop-a", session="s1")
    two = client.register("shop-b", session="s2")
    assert client.claim(session="s1")["identity"]["name"] == one["identity"]["name"]
    assert client.claim(session="s2")["epoch"] == two["epoch"]
    ambiguous = client.refused("identity.claim")
    assert ambiguous.code == "AMBIGUOUS_SESSION"
    assert set(ambiguous.data["names"]) == {"shop-a", "shop-b"}
    assert client.refused("identity.claim", {"name": "shop-b"}, session="s1").code == "IDENTITY_IN_USE"
    client.release(session="s2")
    assert client.call("identity.list")["you"]["name"] == "shop-a", "the only holding session speaks without a handle"

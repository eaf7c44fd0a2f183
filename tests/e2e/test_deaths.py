"""Who is alive, dead, detached or unknown: real processes that are killed, stopped, orphaned, left as zombies."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.support.daemon import Client, DaemonProcess, Place, stopped, wait_until
from tests.support.trees import Forest, Speaker

SHORT_GRACE = "[liveness]\ndetach_grace_s = 1\n"


def until(client: Client, name: str, state: str) -> Any:
    """The row, once it is in this state."""
    return wait_until(f"{name} is {state}", lambda: row if (row := client.row(name))["state"] == state else None)


def told(client: Client, what: str) -> dict[str, Any]:
    """The next change of this kind, from a subscription."""
    while True:
        note = client.note()
        if note["method"] == "events.change" and note["params"]["what"] == what:
            found: dict[str, Any] = note["params"]
            return found


@pytest.fixture
def watcher(daemon: DaemonProcess) -> Client:
    client = daemon.person()
    client.call("events.subscribe")
    return client


def test_killing_the_host_frees_the_name_though_the_shim_lives(
    daemon: DaemonProcess, forest: Forest, watcher: Client
) -> None:
    holder, successor = forest.sessions(daemon, 2)
    holder.client.register("shop-a")
    holder.host.kill()
    change = told(watcher, "lost")
    assert change["reason"] == "holder-exited"
    row = watcher.row("shop-a")
    assert (row["state"], row["reason"], row["holder"]) == ("vacant", "holder-exited", None)
    assert row["last_holder"]["pid"] == holder.host.pid
    claimed = successor.client.claim("shop-a")
    assert claimed["epoch"] == 2
    assert claimed["predecessor"]["reason"] == "holder-exited"
    # What the dead session's shim still says counts for nothing.
    for method, params in (
        ("identity.claim", {"name": "shop-a"}),
        ("identity.claim", {}),
        ("identity.register", {"name": "shop-b", "role": "x"}),
        ("identity.release", {}),
    ):
        assert holder.client.refused(method, params).code == "NOT_ALLOWED"
    assert "shop-b" not in watcher.rows()
    assert watcher.row("shop-a")["holder"]["pid"] == successor.host.pid


def test_an_orphaned_shim_that_connects_anew_is_still_of_its_dead_host(daemon: DaemonProcess, forest: Forest) -> None:
    holder, other = forest.sessions(daemon, 2)
    holder.client.register("shop-a")
    holder.host.kill()
    until(other.client, "shop-a", "vacant")
    with holder.shim.connect(daemon.socket_path) as orphan:
        orphan.hello()
        assert other.client.claim("shop-a")["epoch"] == 2
        refusal = orphan.refused("identity.claim", {"name": "shop-a"})
        assert refusal.code in {"IDENTITY_IN_USE", "NOT_ALLOWED"}


def test_killing_the_shim_detaches_and_a_new_one_attaches(daemon: DaemonProcess, forest: Forest) -> None:
    holder, other = forest.sessions(daemon, 2)
    epoch = holder.client.register("shop-a")["epoch"]
    holder.shim.kill()
    holder.client.close()
    row = until(other.client, "shop-a", "detached")
    assert row["reason"] == "detached"
    assert row["claim_error"] == "IDENTITY_IN_USE"
    assert 0 < row["claimable_in_s"] <= 60
    refusal = other.client.refused("identity.claim", {"name": "shop-a"})
    assert refusal.body["retryable"] is True
    again = Speaker(holder.host, holder.host.fork(), daemon)
    assert again.client.call("identity.list")["you"]["epoch"] == epoch
    assert again.client.claim()["epoch"] == epoch
    assert other.client.row("shop-a")["state"] == "live"
    why = other.client.call("identity.why", {"name": "shop-a"})
    assert [p["verdict"] for p in why["processes"] if p["pid"] == again.shim.pid] == ["alive"]


def test_others_may_claim_a_detached_name_after_its_grace(place: Place, forest: Forest) -> None:
    place.config(SHORT_GRACE)
    daemon = place.start()
    holder, other = forest.sessions(daemon, 2)
    holder.client.register("shop-a")
    holder.shim.kill()
    holder.client.close()
    until(other.client, "shop-a", "detached")
    row = wait_until("claimable", lambda: row if (row := other.client.row("shop-a"))["claimable"] else None)
    assert (row["state"], row["reason"]) == ("detached", "grace-over")
    assert other.client.claim("shop-a")["epoch"] == 2
    late = Speaker(holder.host, holder.host.fork(), daemon)
    assert late.client.call("identity.list")["lost"]["name"] == "shop-a"
    assert late.client.refused("identity.claim", {"name": "shop-a"}).code == "IDENTITY_IN_USE"


def test_killing_host_and_shim_together(daemon: DaemonProcess, forest: Forest, watcher: Client) -> None:
    holder = forest.session(daemon)
    holder.client.register("shop-a")
    holder.shim.kill()
    holder.host.kill()
    assert told(watcher, "lost")["reason"] == "holder-exited"
    assert watcher.row("shop-a")["claimable"]


@pytest.mark.parametrize("wrapper", ["sh", "uvx", "timeout"])
def test_killing_a_wrapper_frees_nothing(daemon: DaemonProcess, forest: Forest, watcher: Client, wrapper: str) -> None:
    host = forest.ground().fork()
    command = {
        "sh": ["/bin/sh", "-c", 'echo $$ > "$0"; "$@"; exit $?', str(forest.root / "pid"), *forest.part()],
        "uvx": forest.wrapper("uvx", forest.part()),
        "timeout": ["timeout", "600", *forest.part()],
    }[wrapper]
    shim = host.spawn(command)
    speaker = Speaker(host, shim, daemon)
    epoch = speaker.client.register("shop-a")["epoch"]
    assert watcher.row("shop-a")["holder"]["pid"] == host.pid
    parent = parent_of(shim.pid)
    assert parent not in {host.pid, 1}
    os.kill(parent, signal.SIGKILL)
    wait_until("the shim is an orphan", lambda: parent_of(shim.pid) != parent)
    assert speaker.client.claim()["epoch"] == epoch
    assert watcher.row("shop-a")["state"] == "live"
    speaker.reconnect(daemon)
    assert speaker.client.claim()["epoch"] == epoch, "a reconnect beneath no wrapper is the same session still"
    host.kill()
    assert told(watcher, "lost")["name"] == "shop-a"


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])


def test_a_zombie_host_is_dead(daemon: DaemonProcess, forest: Forest, watcher: Client) -> None:
    ground = forest.ground()
    host = ground.fork(reap=False)
    speaker = Speaker(host, host.fork(), daemon)
    speaker.client.register("shop-a")
    host.kill()
    assert told(watcher, "lost")["reason"] == "holder-exited"
    with open(f"/proc/{host.pid}/stat", "rb") as file:
        assert b") Z " in file.read(), "nobody has reaped it"
    assert watcher.row("shop-a")["state"] == "vacant"


def test_a_zombie_host_is_dead_after_a_restart_too(place: Place, forest: Forest) -> None:
    daemon = place.start()
    host = forest.ground().fork(reap=False)
    Speaker(host, host.fork(), daemon).client.register("shop-a")
    daemon.kill()
    host.kill()
    assert place.start().person().row("shop-a")["reason"] == "holder-exited"


@pytest.mark.parametrize("who", ["host", "shim"])
def test_a_stopped_process_keeps_the_name(place: Place, forest: Forest, who: str) -> None:
    place.config(SHORT_GRACE)
    daemon = place.start()
    holder, other = forest.sessions(daemon, 2)
    epoch = holder.client.register("shop-a")["epoch"]
    with stopped(holder.host.pid if who == "host" else holder.shim.pid):
        for _ in range(20):
            assert other.client.refused("identity.claim", {"name": "shop-a"}).code == "IDENTITY_IN_USE"
        row = other.client.row("shop-a")
        assert (row["state"], row["claimable_in_s"]) == ("live", None)
    assert holder.client.claim()["epoch"] == epoch


def test_a_stopped_daemon_frees_nothing(daemon: DaemonProcess, forest: Forest) -> None:
    holder, other = forest.sessions(daemon, 2)
    holder.client.register("shop-a")
    with stopped(daemon.pid):
        number = other.client.send("identity.claim", {"name": "shop-a"})
    with pytest.raises(Exception, match="held by"):
        other.client.reply(number)
    assert other.client.row("shop-a")["state"] == "live"


def test_a_fork_that_inherits_the_connection_is_no_life(daemon: DaemonProcess, forest: Forest, watcher: Client) -> None:
    """The test itself has the dead shim's connection open: no end of file ever comes."""
    holder = forest.session(daemon)
    holder.client.register("shop-a")
    holder.shim.kill()
    assert until(watcher, "shop-a", "detached")["claimable"] is False
    refusal = holder.client.refused("identity.claim", {"name": "shop-a"})
    assert refusal.code == "NOT_ALLOWED"
    holder.host.kill()
    told(watcher, "lost")
    assert watcher.row("shop-a")["claimable"]


def test_a_peer_that_dies_before_its_hello_is_nobody(daemon: DaemonProcess, forest: Forest) -> None:
    host = forest.ground().fork()
    shim = host.fork()
    client = shim.connect(daemon.socket_path)
    shim.kill()
    wait_until("it is gone", lambda: not os.path.exists(f"/proc/{shim.pid}"))
    assert client.call("ping")["pong"]
    params = {
        "protocol": {"min": 1, "max": 1},
        "client": {"name": "mbx-mcp", "version": "0", "instance": "i"},
    }
    assert client.refused("hello", params).code == "STATUS_UNKNOWN"
    assert client.refused("identity.claim", {"name": "shop-a"}).number == -32001


def test_a_broken_connection_alone_changes_nothing(daemon: DaemonProcess, forest: Forest, watcher: Client) -> None:
    holder = forest.session(daemon)
    epoch = holder.client.register("shop-a")["epoch"]
    holder.client.close()
    wait_until("it is closed", lambda: watcher.call("identity.why", {"name": "shop-a"})["connections"] == 0)
    assert watcher.row("shop-a")["state"] == "live"
    assert holder.reconnect(daemon).claim()["epoch"] == epoch


def test_the_states_of_a_name_nobody_holds(daemon: DaemonProcess, forest: Forest, watcher: Client) -> None:
    watcher.register("shop-a")
    assert watcher.row("shop-a")["reason"] == "never-held"
    client = forest.session(daemon).client
    client.claim("shop-a")
    assert client.row("shop-a")["reason"] == "yours"
    assert watcher.row("shop-a")["reason"] == "held"
    client.release()
    assert watcher.row("shop-a")["reason"] == "released"
    assert client.call("identity.list")["pending"] is None, "a released session does not take it back by itself"
    watcher.call("admin.retire", {"name": "shop-a"})
    assert (watcher.row("shop-a")["state"], watcher.row("shop-a")["reason"]) == ("retired", "retired")
    assert client.refused("identity.claim", {"name": "shop-a"}).code == "RETIRED"
    watcher.call("admin.unretire", {"name": "shop-a"})
    client.claim("shop-a")
    watcher.call("admin.free", {"name": "shop-a", "reason": "test"})
    assert watcher.row("shop-a")["reason"] == "freed"


@pytest.mark.skipif(os.geteuid() != 0, reason="pid namespaces need root")
def test_a_session_in_a_pid_namespace_of_its_own(daemon: DaemonProcess, forest: Forest, watcher: Client) -> None:
    """The daemon sees into the namespace beneath its own: the processes have numbers here."""
    ground = forest.ground()
    inside = ground.spawn(["unshare", "--pid", "--fork", "--kill-child", *forest.part("agentcli")])
    # The part says its own number, which means nothing here: what counts is what the kernel tells the daemon.
    client = inside.connect(daemon.socket_path)
    client.hello()
    client.register("shop-a")
    assert watcher.row("shop-a")["state"] == "live"
    assert watcher.row("shop-a")["holder"]["pid"] > 1

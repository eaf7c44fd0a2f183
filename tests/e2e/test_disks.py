"""Disks that fail or are full under a real daemon: refusals that are true, or a stop with one clear line."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import msgspec
import pytest

from mbxd.core import events as ev
from mbxd.ports import ProcessId
from mbxd.store.log import Log
from mbxd.store.vfs import OsVfs
from tests.support.daemon import FAULTY, Client, DaemonProcess, Place, image, wait_until
from tests.support.trees import Forest, Speaker

SEGMENT = "4096"


def fill(client: Client, name: str) -> int:
    """Claim and release until it is refused; the last epoch that was acknowledged."""
    epoch = 0
    for _ in range(500):
        number = client.send("identity.claim", {"name": name})
        message = client.receive()
        assert message["id"] == number
        if "error" in message:
            assert message["error"]["data"]["code"] == "DISK_FULL"
            assert message["error"]["data"]["retryable"] is True
            assert "reading still works" in message["error"]["data"]["hint"]
            return epoch
        epoch = int(message["result"]["epoch"])
        number = client.send("identity.release")
        message = client.receive()
        if "error" in message:
            assert message["error"]["data"]["code"] == "DISK_FULL"
            return epoch
    raise AssertionError("the disk never got full")


@pytest.mark.parametrize("code", ["ENOSPC", "EDQUOT", "EFBIG"])
def test_a_full_disk_refuses_changes_and_serves_reads_until_there_is_room(
    place: Place, forest: Forest, code: str
) -> None:
    full = place.root / "full"
    daemon = place.start(FAULTY, MBX_SEGMENT=SEGMENT, MBX_FAULT=f"spare:1:{code}", MBX_FAULT_UNTIL=str(full))
    client = forest.session(daemon).client
    client.register("shop-a")
    client.release()
    full.touch()
    epoch = fill(client, "shop-a")
    assert epoch >= 1
    person = daemon.person()
    shown = person.call("identity.show", {"name": "shop-a"})
    assert shown["epoch"] == epoch, "what was refused did not happen"
    assert "changes are refused" in person.call("status")["degraded"][0]
    assert person.call("admin.log", {"name": "shop-a"})["entries"]
    tool = client.call(
        "tool.call", {"name": "mbx_identity", "arguments": {"action": "register", "name": "shop-b", "role": "x"}}
    )
    assert tool["structuredContent"]["error"]["code"] == "DISK_FULL"
    assert daemon.process.poll() is None
    full.unlink()
    wait_until("there is room", lambda: not person.call("status")["degraded"])
    if client.call("identity.list")["you"] is None:
        assert client.claim("shop-a")["epoch"] == epoch + 1
    client.release()
    last = person.call("identity.show", {"name": "shop-a"})["epoch"]
    daemon.kill()
    assert place.start(FAULTY, MBX_SEGMENT=SEGMENT).person().call("identity.show", {"name": "shop-a"})["epoch"] == last


def small_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, resource.RLIM_INFINITY))


def test_a_limit_on_file_sizes_is_a_full_disk(place: Place, forest: Forest) -> None:
    """The real program: it can't even make its first segment."""
    daemon = place.start(prepare=small_files)
    client = forest.session(daemon).client
    refusal = client.refused("identity.register", {"name": "shop-a", "role": "x"})
    assert refusal.code == "DISK_FULL"
    assert client.rows() == {}
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    wait_until("there is room", lambda: "registry log" not in str(client.call("status")["degraded"]))
    assert client.register("shop-a")["epoch"] == 1
    assert daemon.stop() == 0


@pytest.mark.parametrize(
    "fault",
    [
        "pwrite:3",
        "pwrite:3:ENOSPC",
        "short_write:3",
        "sync_data:3",
        "sync_data:3:ENOSPC",
        "sync_data:3:EDQUOT",
        "rename:1",
        "sync_dir:1",
    ],
)
def test_a_failed_write_ends_the_daemon_and_a_restart_tells_the_truth(place: Place, forest: Forest, fault: str) -> None:
    place.start(FAULTY, MBX_SEGMENT=SEGMENT).stop()
    daemon = place.start(FAULTY, MBX_SEGMENT=SEGMENT, MBX_FAULT=fault)
    speaker = forest.session(daemon)
    acknowledged, asked = drive_until_it_ends(speaker)
    assert daemon.process.wait(30) == 1
    lines = [line for line in daemon.log().splitlines() if "level=critical" in line]
    assert len(lines) == 1, daemon.log()
    assert "the registry log failed" in lines[0]
    check_after(place, speaker, acknowledged, asked)


def drive_until_it_ends(speaker: Speaker) -> tuple[int, str]:
    """Claim and release until the connection ends: (last acknowledged epoch, id of the request in doubt)."""
    epoch = 0
    for number in range(500):
        request_id = f"r{number}"
        try:
            if number % 2:
                speaker.client.release(request_id=request_id)
            elif number:
                epoch = speaker.client.claim("shop-a", request_id=request_id)["epoch"]
            else:
                epoch = speaker.client.register("shop-a", request_id=request_id)["epoch"]
        except OSError:
            return epoch, request_id
    raise AssertionError("the disk never failed")


def check_after(place: Place, speaker: Speaker, acknowledged: int, asked: str) -> None:
    daemon = place.start(FAULTY, MBX_SEGMENT=SEGMENT)
    client = speaker.reconnect(daemon)
    number = int(asked[1:])
    if number == 0:
        assert client.register("shop-a", request_id=asked)["epoch"] == 1
    elif number % 2:
        assert client.release(request_id=asked)["released"] == "shop-a"
        assert client.call("identity.show", {"name": "shop-a"})["epoch"] == acknowledged
    else:
        assert client.claim("shop-a", request_id=asked)["epoch"] == acknowledged + 1
    entries = client.call("admin.log", {"name": "shop-a", "limit": 1000})["entries"]
    claims = [entry["epoch"] for entry in entries if entry["what"] == "claimed"]
    assert claims == sorted(set(claims), reverse=True), "no epoch was given twice"


def test_damage_stops_the_start_and_touches_nothing(place: Place, forest: Forest) -> None:
    daemon = place.start()
    client = forest.session(daemon).client
    client.register("shop-a")
    for _ in range(5):
        client.release()
        client.claim("shop-a")
    daemon.stop()
    (segment,) = (place.state / "registry").glob("*.wal")
    flip(segment, 200)
    before = segment.read_bytes()
    broken = place.start(wait=False)
    assert broken.wait_ready(must=False).startswith("error: ")
    assert broken.process.wait(30) == 1
    assert "mbxd log repair" in broken.log()
    assert len(broken.log().splitlines()) <= 3, broken.log()
    assert segment.read_bytes() == before


def test_a_newer_format_stops_the_start_and_touches_nothing(place: Place, forest: Forest) -> None:
    daemon = place.start()
    forest.session(daemon).client.register("shop-a")
    daemon.stop()
    (segment,) = (place.state / "registry").glob("*.wal")
    data = bytearray(segment.read_bytes())
    data[8:10] = (99).to_bytes(2, "little")
    segment.write_bytes(data)
    newer = place.start(wait=False)
    assert "99" in newer.wait_ready(must=False)
    assert newer.process.wait(30) == 1
    assert segment.read_bytes() == data


def bad_records() -> dict[str, bytes]:
    good = ev.encode(ev.Granted(1, 2, ev.SessionRef(ProcessId("b", 1, 2, 3, 4), "", "c", ()), (), 1.0))
    values = msgspec.msgpack.decode(good)
    return {
        "empty": b"",
        "cut": good[:-3],
        "wrong type": msgspec.msgpack.encode([*values[:2], "two", *values[3:]]),
        "of a later build": msgspec.msgpack.encode([99, 1, "what it means is not known here"]),
        "of nobody": ev.encode(ev.Released(77, 1, 1.0, 1.0)),
    }


@pytest.mark.parametrize(
    ("where", "what"),
    # A snapshot has no events, so that none of nobody can be in it.
    [
        (where, what)
        for where in ("log", "snapshot")
        for what in bad_records()
        if (where, what) != ("snapshot", "of nobody")
    ],
)
def test_a_record_that_means_nothing_here_stops_the_start_and_touches_nothing(
    place: Place, forest: Forest, what: str, where: str
) -> None:
    """Its checksum is right: somebody wrote it like this."""
    daemon = place.start()
    forest.session(daemon).client.register("shop-a")
    daemon.stop()
    log = Log.open(OsVfs(), str(place.state / "registry"), entropy=os.urandom).log
    if where == "log":
        log.append([bad_records()[what]])
    else:
        log.write_snapshot(log.durable_seq, [bad_records()[what]])
    log.close()
    before = image(place.state / "registry")
    broken = place.start(wait=False)
    said = broken.wait_ready(must=False)
    assert said.startswith(f"error: {'record' if where == 'log' else 'the snapshot'}"), (said, broken.log())
    assert "can't be read by mbxd" in said
    assert broken.process.wait(30) == 1
    assert len(broken.log().splitlines()) == 1, broken.log()
    assert image(place.state / "registry") == before


def test_a_torn_tail_is_set_aside_and_later_records_survive(place: Place, forest: Forest) -> None:
    daemon = place.start(FAULTY, MBX_FAULT="half_written:2")
    speaker = forest.session(daemon)
    acknowledged, asked = drive_until_it_ends(speaker)
    for _ in range(2):
        daemon = place.start()
        client = speaker.reconnect(daemon)
        if int(asked[1:]) % 2:
            client.release(request_id=asked)
        daemon.kill()
    daemon = place.start()
    assert speaker.reconnect(daemon).row("shop-a")["state"] == "vacant"
    assert list((place.state / "registry").glob("*.torn-1"))
    assert client.instance == speaker.client.instance
    assert acknowledged == 1


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def test_the_process_of_a_stopped_daemon_keeps_nothing(daemon: DaemonProcess, forest: Forest) -> None:
    """A record that was taken stays taken: SIGTERM right behind the request."""
    client = forest.session(daemon).client
    number = client.send("identity.register", {"name": "shop-a", "role": "x"})
    daemon.process.send_signal(signal.SIGTERM)
    try:
        answer = client.reply(number)
    except OSError:
        answer = None
    assert daemon.process.wait(10) == 0
    assert answer is None or answer["epoch"] == 1

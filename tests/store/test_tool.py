"""`mbxd log dump|verify|repair`: what it says, what it keeps, and that looking changes nothing."""

from __future__ import annotations

import contextlib
import json

import pytest

from mbxd.ports import VfsFile
from mbxd.store import format as fmt
from mbxd.store.errors import Damaged
from mbxd.store.lock import Held
from mbxd.store.repair import merge
from mbxd.store.segment import free_name, segment_name, snapshot_name
from mbxd.store.tool import run
from tests.store.life import DIRECTORY, fold, open_log
from tests.support.memvfs import MemVfs, PowerCut

SIZE = 60


def log_of(records: int, *, segment: int = 1024, snapshots: tuple[int, ...] = ()) -> tuple[MemVfs, list[bytes]]:
    vfs = MemVfs()
    log = open_log(vfs, segment=segment, retain=1 << 20).log
    state = [f"record {number}".encode().ljust(SIZE) for number in range(1, records + 1)]
    for number, record in enumerate(state, 1):
        log.append([record])
        if number in snapshots:
            log.write_snapshot(number, state[:number])
    log.close()
    return vfs, state


def offset(batch: int) -> int:
    return fmt.HEADER_SIZE + (batch - 1) * fmt.batch_size([bytes(SIZE)])


def spoil(vfs: MemVfs, name: str, at: int) -> None:
    data = bytearray(vfs.contents(f"{DIRECTORY}/{name}"))
    data[at] ^= 0x20
    vfs.put(f"{DIRECTORY}/{name}", bytes(data))


def segments(vfs: MemVfs) -> list[str]:
    return [name for name in vfs.names(DIRECTORY) if name.endswith(".wal")]


def call(vfs: MemVfs, *argv: str) -> int:
    return run(list(argv), directory=DIRECTORY, vfs=vfs)


def per_segment(vfs: MemVfs) -> int:
    return int(segments(vfs)[1].split(".")[0]) - 1


def test_dump_prints_every_record_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    vfs, state = log_of(20)
    before = vfs.image(DIRECTORY)
    code = run(["dump"], directory=DIRECTORY, decode=lambda record: record.decode().strip(), vfs=vfs)
    out = capsys.readouterr()
    rows = [json.loads(line) for line in out.out.splitlines()]
    assert (code, out.err) == (0, "")
    assert rows == [{"seq": seq, "record": record.decode().strip()} for seq, record in enumerate(state, 1)]
    assert vfs.image(DIRECTORY) == before


def test_dump_takes_a_range_and_shows_what_it_can_not_decode(capsys: pytest.CaptureFixture[str]) -> None:
    vfs, state = log_of(20)

    def decode(record: bytes) -> object:
        raise ValueError("newer event")

    assert run(["dump", "--from", "12", "--to", "13"], directory=DIRECTORY, decode=decode, vfs=vfs) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["seq"] for row in rows] == [12, 13]
    assert rows[0] == {"seq": 12, "error": "ValueError: newer event", "hex": state[11].hex()}


def test_dump_shows_records_before_the_damage(capsys: pytest.CaptureFixture[str]) -> None:
    vfs, _ = log_of(20)
    count = per_segment(vfs)
    spoil(vfs, segments(vfs)[1], offset(3) + 20)
    assert call(vfs, "dump") == 1
    out = capsys.readouterr()
    assert len(out.out.splitlines()) == count
    assert "damaged" in out.err


def test_verify_of_a_good_log(capsys: pytest.CaptureFixture[str]) -> None:
    vfs, _ = log_of(20, snapshots=(5, 10))
    before = vfs.image(DIRECTORY)
    assert call(vfs, "verify") == 0
    assert "good\trecords 1 to 20" in capsys.readouterr().out
    assert vfs.image(DIRECTORY) == before


def test_verify_names_file_offset_and_record_and_what_is_still_readable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    vfs, _ = log_of(30)
    count = per_segment(vfs)
    spoil(vfs, segments(vfs)[0], offset(4) + 20)
    before = vfs.image(DIRECTORY)
    assert call(vfs, "verify") == 1
    out = capsys.readouterr().out
    assert f"{segment_name(1)}\toffset {offset(4)}\trecord 4\tthe checksum of a frame is wrong" in out
    assert out.count("damaged\t") == 1
    assert "keep records up to 3; lost: records 4 to 30" in out
    assert "still readable in what is put aside: records 5 to 30" in out
    assert vfs.image(DIRECTORY) == before
    assert count > 5


def test_verify_finds_damage_in_old_segments_and_snapshots(capsys: pytest.CaptureFixture[str]) -> None:
    vfs, _ = log_of(30, snapshots=(20, 28))
    spoil(vfs, segments(vfs)[0], offset(2) + 20)
    spoil(vfs, snapshot_name(20), 100)
    assert call(vfs, "verify") == 1
    out = capsys.readouterr()
    assert segment_name(1) in out.out
    assert snapshot_name(20) in out.out
    assert "starts all the same" in out.err


def test_a_new_registry_is_good_and_empty(capsys: pytest.CaptureFixture[str]) -> None:
    vfs = MemVfs()
    open_log(vfs).log.close()
    assert [call(vfs, "verify"), call(vfs, "dump"), call(vfs, "repair", "--yes")] == [0, 0, 0]
    assert capsys.readouterr().out == "good\trecords 0 to 0\tsegments 0\tsnapshots none\n"


@pytest.mark.parametrize("argv", [[], ["verify", "now"], ["dump", "--from", "x"], ["mend"]])
def test_a_usage_error_ends_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    vfs, _ = log_of(1)
    with pytest.raises(SystemExit) as caught:
        call(vfs, *argv)
    assert caught.value.code == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert "usage: mbxd log" in out.err


def test_repair_needs_yes(capsys: pytest.CaptureFixture[str]) -> None:
    vfs, _ = log_of(20)
    spoil(vfs, segments(vfs)[0], offset(4) + 20)
    before = vfs.image(DIRECTORY)
    assert call(vfs, "repair") == 1
    assert "mbxd log repair --yes" in capsys.readouterr().err
    assert vfs.image(DIRECTORY) == before


def test_repair_of_a_good_log_does_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    vfs, _ = log_of(20)
    before = vfs.image(DIRECTORY)
    assert call(vfs, "repair", "--yes") == 0
    assert "nothing to repair" in capsys.readouterr().err
    assert vfs.image(DIRECTORY) == before


@pytest.mark.parametrize("which", [0, 1, -1])
def test_repair_keeps_what_comes_before_and_the_original_bytes(which: int, capsys: pytest.CaptureFixture[str]) -> None:
    vfs, state = log_of(32)
    name = segments(vfs)[which]
    later = segments(vfs)[segments(vfs).index(name) + 1 :]
    spoil(vfs, name, offset(3) + 20)
    originals = {kept: vfs.contents(f"{DIRECTORY}/{kept}") for kept in [name, *later]}
    assert call(vfs, "repair", "--yes") == 0
    last = int(name.split(".")[0]) + 1
    assert f"the log ends at record {last}" in capsys.readouterr().out
    for kept, data in originals.items():
        assert vfs.contents(f"{DIRECTORY}/{kept}.orig-1") == data
    recovery = open_log(vfs, segment=1024)
    assert fold(recovery) == state[:last]
    recovery.log.append([b"goes on"])
    assert fold(open_log(vfs.after_power_cut(1, "nothing"), segment=1024)) == [*state[:last], b"goes on"]


def test_repair_ends_a_sealed_segment_whose_last_batch_is_damaged(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing readable follows within it, but its successor says that it went on."""
    vfs, state = log_of(30)
    count = per_segment(vfs)
    spoil(vfs, segments(vfs)[0], offset(count) + 20)
    damaged = vfs.contents(f"{DIRECTORY}/{segment_name(1)}")
    assert call(vfs, "repair", "--yes") == 0
    assert f"keep records up to {count - 1}; lost: records {count} to 30" in capsys.readouterr().out
    assert vfs.contents(f"{DIRECTORY}/{segment_name(1)}.orig-1") == damaged
    assert not vfs.contents(f"{DIRECTORY}/{segment_name(1)}")[offset(count) :].strip(b"\0")
    assert fold(open_log(vfs, segment=1024)) == state[: count - 1]


@pytest.mark.parametrize("snapshots", [(), (3,)])
def test_repair_of_a_good_frame_out_of_place_at_the_end(
    snapshots: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    vfs, state = log_of(3, snapshots=snapshots)
    path = f"{DIRECTORY}/{segments(vfs)[0]}"
    data = vfs.contents(path)
    salt = fmt.decode_header(data, fmt.SEGMENT_MAGIC, path).salt
    stray = fmt.encode_frame(salt, 4, fmt.COMMIT, bytes(16))
    vfs.put(path, data[: offset(4)] + stray + data[offset(4) + len(stray) :])
    with pytest.raises(Damaged):
        open_log(vfs, segment=1024)
    assert call(vfs, "repair", "--yes") == 0
    assert "keep records up to 3; lost: an unknown number of records from 4 on" in capsys.readouterr().out
    assert vfs.contents(path) == data
    assert fold(open_log(vfs, segment=1024)) == state


def test_repair_leaves_segments_alone_that_are_good(capsys: pytest.CaptureFixture[str]) -> None:
    """The newest segment is missing, and only a snapshot remembers it: nothing has to be cut."""
    vfs, _ = log_of(30, snapshots=(29,))
    vfs.remove(f"{DIRECTORY}/{segments(vfs)[-1]}")
    before = {name: vfs.contents(f"{DIRECTORY}/{name}") for name in segments(vfs)}
    assert call(vfs, "repair", "--yes") == 0
    assert {name: vfs.contents(f"{DIRECTORY}/{name}") for name in segments(vfs)} == before
    assert [name for name in vfs.names(DIRECTORY) if ".orig-" in name] == [f"{snapshot_name(29)}.orig-1"]
    last = len(fold(open_log(vfs, segment=1024)))
    assert f"lost: records {last + 1} to 29" in capsys.readouterr().out


def test_repair_puts_snapshots_of_lost_records_aside() -> None:
    vfs, state = log_of(30, snapshots=(2, 29))
    vfs.remove(f"{DIRECTORY}/{segments(vfs)[-1]}")
    with pytest.raises(Damaged):
        open_log(vfs, segment=1024)
    assert call(vfs, "repair", "--yes") == 0
    recovery = open_log(vfs, segment=1024)
    assert recovery.snapshot_seq == 2
    shown = fold(recovery)
    assert shown == state[: len(shown)]
    assert len(shown) >= 20
    assert f"{snapshot_name(29)}.orig-1" in vfs.names(DIRECTORY)


def test_repair_with_a_covering_snapshot_loses_history_alone(capsys: pytest.CaptureFixture[str]) -> None:
    vfs, state = log_of(30, snapshots=(20, 28))
    vfs.remove(f"{DIRECTORY}/{segments(vfs)[1]}")
    assert call(vfs, "repair", "--yes") == 0
    assert "keep all records up to 30; only history goes" in capsys.readouterr().out
    assert fold(open_log(vfs, segment=1024)) == state


def test_repair_says_when_nothing_can_be_kept(capsys: pytest.CaptureFixture[str]) -> None:
    vfs, _ = log_of(3)
    spoil(vfs, segments(vfs)[0], 20)
    before = vfs.image(DIRECTORY)
    assert call(vfs, "repair", "--yes") == 1
    assert "no repair is possible" in capsys.readouterr().err
    assert vfs.image(DIRECTORY) == before


def test_repair_can_be_interrupted_anywhere() -> None:
    for at in range(1, 60):
        vfs, state = log_of(30, snapshots=(2, 29))
        spoil(vfs, segments(vfs)[1], offset(3) + 20)
        vfs.put(f"{DIRECTORY}/{snapshot_name(29)}", b"bad as well")
        last = int(segments(vfs)[1].split(".")[0]) + 1
        vfs.crash_at(at)
        try:
            assert call(vfs, "repair", "--yes") == 0
        except PowerCut:
            after = vfs.after_power_cut(at)
            call(after, "repair", "--yes")
            assert fold(open_log(after, segment=1024)) == state[:last]
            continue
        break
    else:
        pytest.fail("the repair never ended")


def test_repair_refuses_while_a_daemon_runs(capsys: pytest.CaptureFixture[str]) -> None:
    vfs, _ = log_of(20)
    spoil(vfs, segments(vfs)[0], offset(4) + 20)
    before = vfs.image(DIRECTORY)

    def lock() -> contextlib.AbstractContextManager[None]:
        raise Held("/state/mbxd.lock", 42, 0, [])

    assert run(["repair", "--yes"], directory=DIRECTORY, lock=lock, vfs=vfs) == 4
    assert "process 42" in capsys.readouterr().err
    assert vfs.image(DIRECTORY) == before


def test_a_missing_registry_is_said_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("dump", "verify", "repair"):
        assert run([command], directory="/state/none", vfs=MemVfs()) == 1
        assert "there is no registry at /state/none" in capsys.readouterr().err


def test_newer_data_is_read_when_its_writer_allows_it(capsys: pytest.CaptureFixture[str]) -> None:
    for min_reader, code in ((1, 0), (2, 1)):
        vfs, _ = log_of(3)
        path = f"{DIRECTORY}/{segments(vfs)[0]}"
        data = vfs.contents(path)
        header = fmt.decode_header(data, fmt.SEGMENT_MAGIC, path)._replace(version=2, min_reader=min_reader)
        vfs.put(path, fmt.encode_header(fmt.SEGMENT_MAGIC, header) + data[fmt.HEADER_SIZE :])
        for command in ("dump", "verify"):
            assert call(vfs, command) == code
            assert ("version 2" in capsys.readouterr().err) == bool(code)
        before = vfs.image(DIRECTORY)
        assert call(vfs, "repair", "--yes") == 1
        assert vfs.image(DIRECTORY) == before
        capsys.readouterr()


@pytest.mark.parametrize(("min_reader", "code"), [(1, 0), (2, 1)])
def test_a_newer_snapshot_is_verified_when_its_writer_allows_it(
    min_reader: int, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    vfs, _ = log_of(3, snapshots=(2,))
    path = f"{DIRECTORY}/{snapshot_name(2)}"
    data = vfs.contents(path)
    header = fmt.decode_header(data, fmt.SNAPSHOT_MAGIC, path)._replace(version=2, min_reader=min_reader)
    vfs.put(path, fmt.encode_header(fmt.SNAPSHOT_MAGIC, header) + data[fmt.HEADER_SIZE :])
    assert call(vfs, "verify") == code
    out = capsys.readouterr()
    assert ("good\trecords 1 to 3" in out.out) == (code == 0)
    assert ("version 2" in out.err) == bool(code)
    spoil(vfs, snapshot_name(2), len(data) - 1)
    assert call(vfs, "verify") == 1
    assert (snapshot_name(2) in capsys.readouterr().out) == (code == 0)


@pytest.mark.parametrize("command", ["dump", "verify", "repair"])
def test_looking_opens_nothing_for_writing(command: str) -> None:
    vfs, _ = log_of(30, snapshots=(20, 28))
    original = vfs.open

    def looking(path: str, *, create: bool = False, read_only: bool = False) -> VfsFile:
        assert read_only is True
        assert not create
        return original(path, read_only=True)

    vfs.open = looking  # type: ignore[method-assign, assignment]
    assert call(vfs, command) == 0
    vfs.put(f"{DIRECTORY}/{snapshot_name(20)}", b"damaged")
    spoil(vfs, segments(vfs)[1], offset(2) + 20)
    call(vfs, command)


def test_what_is_put_aside_never_replaces_what_was_put_aside_before() -> None:
    vfs, _ = log_of(1)
    for number in (1, 2, 3, 5):
        vfs.put(f"{DIRECTORY}/x.orig-{number}", b"")
    assert free_name(vfs, DIRECTORY, "x.orig") == "x.orig-4"
    assert free_name(vfs, DIRECTORY, "x.bad") == "x.bad-1"


def test_ranges_are_merged() -> None:
    assert merge([(5, 6), (1, 2), (3, 3), (6, 9), (12, 12)]) == [(1, 3), (5, 9), (12, 12)]

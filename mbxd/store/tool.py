"""`mbxd log`: dump, verify and repair of a registry log, offline.

Owns the command line of it. `dump` and `verify` write nothing; `repair` writes only with --yes and with the
daemon's lock. stdout is data, stderr is talk. Never decodes a record itself: that function is handed in.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import msgspec

from mbxd.ports import Vfs
from mbxd.store.errors import Damaged, NewerFormat
from mbxd.store.format import scan
from mbxd.store.lock import Held
from mbxd.store.recovery import Segment, link, read_headers, read_sealed, survey
from mbxd.store.repair import Plan, carry_out, plan
from mbxd.store.segment import Listing, read_whole, segment_name, snapshot_name
from mbxd.store.snapshot import read_snapshot
from mbxd.store.vfs import OsVfs

OK = 0
FAILED = 1
CONFLICT = 4

Decode = Callable[[bytes], object]
TakeLock = Callable[[], AbstractContextManager[object]]


def run(
    argv: list[str],
    *,
    directory: str,
    decode: Decode | None = None,
    lock: TakeLock | None = None,
    vfs: Vfs | None = None,
) -> int:
    """Run `mbxd log ARGV` on a registry directory (absolute); returns the exit code: 0, 1, or 4 while a daemon runs.

    decode: a record for people, as anything msgspec can write as JSON (hex without it). lock: context that holds
    the daemon's lock, or raises Held. A usage error raises SystemExit(2), as argparse does.
    """
    arguments = _parser().parse_args(argv)
    files: Vfs = vfs or OsVfs()
    try:
        if arguments.command == "dump":
            return _dump(files, directory, arguments.first, arguments.last, decode)
        if arguments.command == "verify":
            return _verify(files, directory)
        with lock() if lock and arguments.yes else contextlib.nullcontext():
            return _repair(files, directory, yes=arguments.yes)
    except Held as error:
        _say(f"{error}. Stop the daemon first: mbxctl stop")
        return CONFLICT
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe went away; say nothing more
        return FAILED
    except FileNotFoundError:
        _say(f"there is no registry at {directory}")
        return FAILED
    except (Damaged, NewerFormat, OSError) as error:
        _say(str(error))
        return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mbxd log", description="Look into or repair the registry log.")
    commands = parser.add_subparsers(dest="command", required=True)
    dump = commands.add_parser("dump", help="print the kept records, one JSON object a line; writes nothing")
    dump.add_argument("--from", dest="first", type=int, default=1, metavar="SEQ", help="first record")
    dump.add_argument("--to", dest="last", type=int, default=None, metavar="SEQ", help="last record")
    commands.add_parser("verify", help="read everything and list what is wrong; writes nothing")
    repair = commands.add_parser("repair", help="keep what comes before the damage, put the rest aside")
    repair.add_argument("--yes", action="store_true", help="do it; without this only the plan is printed")
    return parser


def _say(line: str) -> None:
    print(f"mbxd log: {line}", file=sys.stderr)


# -- dump ----------------------------------------------------------------------------------------------------


def _dump(vfs: Vfs, directory: str, first: int, last: int | None, decode: Decode | None) -> int:
    for seq, record in _records(vfs, directory, first):
        if last is not None and seq > last:
            break
        if seq >= first:
            print(msgspec.json.encode(_row(seq, record, decode)).decode())
    return OK


def _row(seq: int, record: bytes, decode: Decode | None) -> dict[str, object]:
    if decode is None:
        return {"seq": seq, "hex": record.hex()}
    try:
        return {"seq": seq, "record": msgspec.to_builtins(decode(record))}
    except Exception as error:  # a record that this version can't decode is shown, not hidden
        return {"seq": seq, "error": f"{type(error).__name__}: {error}", "hex": record.hex()}


def _records(vfs: Vfs, directory: str, start: int) -> Iterator[tuple[int, bytes]]:
    """(seq, record) of all segments that reach `start`, oldest first."""
    segments = _chain(vfs, directory)
    for segment in segments[:-1]:
        if segment.last >= start:
            yield from enumerate(read_sealed(vfs, directory, segment), segment.first)
    for segment in segments[-1:]:
        yield from enumerate(_newest(vfs, directory, segment), segment.first)


def _chain(vfs: Vfs, directory: str) -> list[Segment]:
    segments = read_headers(vfs, directory, Listing(vfs.list_dir(directory)), reading_only=True)
    return link(directory, segments) if segments else []


def _newest(vfs: Vfs, directory: str, segment: Segment) -> list[bytes]:
    data = read_whole(vfs, f"{directory}/{segment_name(segment.first)}")
    return scan(data, segment.header.salt, segment.first).records


# -- verify --------------------------------------------------------------------------------------------------


def _verify(vfs: Vfs, directory: str) -> int:
    wrong: list[str] = []
    listing = Listing(vfs.list_dir(directory))
    try:
        found = survey(vfs, directory, listing, reading_only=True)
    except Damaged as error:
        wrong.append(_where(error))
    else:
        for note in found.notes:
            _say(f"note: {note}")
    wrong += [line for line in _contents(vfs, directory, listing) if line not in wrong]
    for line in wrong:
        print(f"damaged\t{line}")
    if not wrong:
        _print_good(listing, found.last_seq)
        return OK
    steps = plan(vfs, directory)
    if steps is None:
        _say("the daemon starts all the same: a snapshot covers what is damaged; only history is lost")
    else:
        _print_plan(steps)
        _say("nothing was changed")
    return FAILED


def _contents(vfs: Vfs, directory: str, listing: Listing) -> Iterator[str]:
    """One line for each file that can't be read, also of those that a start does not look into."""
    for seq in listing.snapshots:
        try:
            read_snapshot(vfs, directory, seq, reading_only=True)
        except Damaged as error:
            yield _where(error)
    try:
        segments = _chain(vfs, directory)
    except Damaged as error:
        yield _where(error)
        return
    for segment in segments[:-1]:
        try:
            read_sealed(vfs, directory, segment)
        except Damaged as error:
            yield _where(error)


def _where(error: Damaged) -> str:
    return f"{error.file}\toffset {error.offset}\trecord {error.seq or 'unknown'}\t{error.why}"


def _print_good(listing: Listing, last: int) -> None:
    first = listing.segments[0] if listing.segments else 0
    snapshots = ", ".join(snapshot_name(seq) for seq in listing.snapshots) or "none"
    print(f"good\trecords {first} to {last}\tsegments {len(listing.segments)}\tsnapshots {snapshots}")


# -- repair --------------------------------------------------------------------------------------------------


def _repair(vfs: Vfs, directory: str, *, yes: bool) -> int:
    steps = plan(vfs, directory)
    if steps is None:
        _say("the log opens as it is; there is nothing to repair")
        return OK
    print(f"damaged\t{_where(steps.damage)}")
    _print_plan(steps)
    if steps.impossible:
        return FAILED
    if not yes:
        _say("nothing was changed; to do this: mbxd log repair --yes")
        return FAILED
    for name in carry_out(vfs, directory, steps):
        print(f"kept\t{directory}/{name}")
    found = survey(vfs, directory)
    print(f"repaired\tthe log ends at record {found.last_seq}")
    return OK


def _print_plan(steps: Plan) -> None:
    if steps.impossible:
        _say(
            f"no repair is possible: {steps.impossible}. Restore the directory from a backup; to start with an "
            "empty registry, move it away yourself"
        )
        return
    if steps.lost is None:
        print(f"plan\tkeep all records up to {steps.keep_to}; only history goes: {', '.join(steps.aside)}")
        return
    first, last = steps.lost
    lost = f"records {first} to {last}" if last else f"an unknown number of records from {first} on"
    print(f"plan\tkeep records up to {steps.keep_to}; lost: {lost}")
    for one, two in steps.readable:
        print(f"plan\tstill readable in what is put aside: records {one} to {two}")

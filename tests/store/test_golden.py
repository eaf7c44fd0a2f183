"""Logs of every format version replay for ever. Records here are opaque; the events inside are tested elsewhere.

After a change of the format, make a new folder beside the old ones and keep those:
    python -m tests.store.test_golden tests/golden/v2/log
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.store.life import fold, on_disk

GOLDEN = Path(__file__).parents[1] / "golden"
VERSIONS = sorted(path.name for path in GOLDEN.iterdir() if (path / "log").is_dir())
STATE = [f"record {number} \u2028 {'x' * (number % 7)}".encode() for number in range(1, 31)]


def write(directory: Path) -> None:
    """Two segments, batches of one to four records, two snapshots, in fixed bytes."""
    log = on_disk(directory).log
    at = 0
    for size in (1, 4, 2, 3, 1, 1, 4, 4, 2, 3, 1, 4):
        log.append(STATE[at : at + size])
        at += size
    assert at == len(STATE)
    log.write_snapshot(9, STATE[:9])
    log.write_snapshot(20, STATE[:20])
    log.close()
    (directory / "next.spare").unlink(missing_ok=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_format_version_opens_and_goes_on(version: str, tmp_path: Path) -> None:
    directory = tmp_path / "registry"
    shutil.copytree(GOLDEN / version / "log", directory)
    recovery = on_disk(directory)
    assert (recovery.snapshot_seq, recovery.notes) == (20, [])
    assert fold(recovery) == STATE
    assert [record for _, record in recovery.log.history()] == STATE[::-1]
    recovery.log.append([b"appended"])
    recovery.log.close()
    assert fold(on_disk(directory)) == [*STATE, b"appended"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_format_version_replays_without_snapshots(version: str, tmp_path: Path) -> None:
    directory = tmp_path / "registry"
    shutil.copytree(GOLDEN / version / "log", directory, ignore=shutil.ignore_patterns("*.snap"))
    assert fold(on_disk(directory)) == STATE


def test_the_present_format_is_written_byte_for_byte(tmp_path: Path) -> None:
    write(tmp_path / "registry")
    golden = {path.name: path.read_bytes() for path in (GOLDEN / VERSIONS[-1] / "log").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "registry").iterdir()} == golden


if __name__ == "__main__":
    write(Path(sys.argv[1]).resolve())

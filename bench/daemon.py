"""The daemon as `mbxd` runs it, on a file system whose sync can be switched off or slowed.

Owns the bench-only switch: MBXD_BENCH_SYNC is `real`, `none`, or `+5` (milliseconds before each real sync).
Never ships: with `none` an acknowledged change is not durable.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial

from mbxd.store import vfs
from mbxd.store.vfs import OsFile, OsVfs


class NoSync(OsFile):
    """Says that it synced."""

    def sync_data(self) -> None:
        pass


class SlowSync(OsFile):
    """A disk that is 5 ms slower."""

    def sync_data(self) -> None:
        time.sleep(0.005)
        super().sync_data()


KINDS: dict[str, type[OsFile]] = {"real": OsFile, "none": NoSync, "+5": SlowSync}


class BenchVfs(OsVfs):
    """The real file system with another kind of file."""

    def __init__(self, kind: type[OsFile]) -> None:
        self._kind = kind

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> OsFile:
        return self._kind(super().open(path, create=create, read_only=read_only)._fd)


def main() -> int:
    """As `mbxd` without arguments. The composition is mbxd's own: only the class of the file system is exchanged."""
    from mbxd.__main__ import run

    kind = KINDS[os.environ.get("MBXD_BENCH_SYNC", "real")]
    vfs.OsVfs = partial(BenchVfs, kind)  # type: ignore[misc, assignment]
    return run()


if __name__ == "__main__":
    sys.exit(main())

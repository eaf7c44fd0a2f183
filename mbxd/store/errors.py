"""What can go wrong in the store, each with what to do next.

Owns the exception types alone. A failing disk is an OSError while nothing was promised, `LogFailed` after.
"""

from __future__ import annotations


class Damaged(Exception):
    """Bytes that were once acknowledged can't be read. Nothing was changed on the disk.

    file: path; offset: bytes from its start; seq: first record in doubt, 0 when that is not known.
    """

    def __init__(self, file: str, offset: int, seq: int, why: str) -> None:
        self.file = file
        self.offset = offset
        self.seq = seq
        self.why = why
        doubt = f", record {seq}" if seq else ""
        super().__init__(
            f"the registry log is damaged: {file}, offset {offset}{doubt}: {why}. Nothing was changed. "
            "`mbxd log verify` lists what is wrong and what is still readable; `mbxd log repair` keeps what "
            "comes before the damage; or restore the directory from a backup."
        )


class NewerFormat(Exception):
    """A file was written by a newer mbxd. Nothing was changed on the disk."""

    def __init__(self, file: str, found: int, known: int) -> None:
        super().__init__(
            f"{file} has format version {found}, this mbxd knows up to {known}. Nothing was changed. "
            "Start the newer mbxd, or restore the copy made before the upgrade."
        )


class Unreadable(Exception):
    """A record is whole, but this build can't make sense of it. Nothing was changed."""

    def __init__(self, place: str, version: str, why: str) -> None:
        super().__init__(
            f"{place} of the registry log can't be read by mbxd {version}: {why}. Nothing was changed. Start the mbxd "
            "that wrote it, most likely a newer one; `mbxd log dump` shows the records."
        )


class LogFailed(Exception):
    """A write or sync failed, or the log is closed: nothing can be appended until a restart reads the disk again."""


class LogFull(Exception):
    """No room for this batch and none could be allocated; nothing was written, the log is still good."""

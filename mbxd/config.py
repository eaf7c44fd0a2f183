"""The configuration file: what it may say, and how a bad one is told.

Owns the schema. A file that does not fit changes nothing: the values before it stay, and `status` says so.
"""

from __future__ import annotations

import os
import stat
import tomllib
from typing import Annotated, Literal

import msgspec

from mbxd.core.liveness import Policy

Seconds = Annotated[float, msgspec.Meta(ge=1, le=86_400)]


class Liveness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[liveness]`: times in seconds, 1 to 86400."""

    detach_grace_s: Seconds = 60.0
    idle_after_s: Seconds = 1800.0


class Sweep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[sweep]`: off unless `older_than_h` is given; then vacant, read, idle identities are retired every hour."""

    older_than_h: Annotated[float, msgspec.Meta(ge=1)] | None = None


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file; every part may be left out."""

    naming: Literal["open", "strict"] = "open"
    liveness: Liveness = Liveness()
    sweep: Sweep = Sweep()

    def policy(self) -> Policy:
        """The times as the core wants them."""
        return Policy(self.liveness.detach_grace_s, self.liveness.idle_after_s, self.naming == "strict")


class BadConfig(Exception):
    """The file can't be used; the text says where and why."""


def load(path: str) -> Config:
    """Read the file; a missing one is the default. Raises BadConfig."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadConfig(f"{path} is not a file: move it away")
            data = file.read(1024 * 1024)
    except FileNotFoundError:
        return Config()
    except OSError as error:
        raise BadConfig(f"{path}: {error.strerror}") from None
    try:
        return msgspec.convert(tomllib.loads(data.decode()), Config)
    except (ValueError, RecursionError) as error:  # bad TOML, bad UTF-8, a value that does not fit, too many digits
        raise BadConfig(f"{path}: {error}") from None


def _without_waiting(path: str, flags: int) -> int:
    """It may well be a link. A pipe or a device must not hold up the daemon: O_NONBLOCK is nothing to a file."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)

"""The daemon's program whose installation can be taken away while it serves, for tests.

Once the file $MBX_SEAL exists, no module that is not loaded can be imported any more; each that is wanted is noted
in `$MBX_SEAL.late`. `$MBX_SEAL.warm` appears when the daemon has loaded what it loads after its start. Everything
else is the real daemon.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

SEAL = Path(os.environ["MBX_SEAL"])


class Sealed:
    """A finder that comes first, and finds nothing once the seal is there."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Note the name and refuse."""
        if SEAL.exists():
            with SEAL.with_suffix(".late").open("a") as file:
                file.write(f"{name}\n")
            raise ModuleNotFoundError(f"{name} is wanted while the daemon serves", name=name)
        return None


def main() -> int:
    from mbxd import __main__ as program
    from mbxd.server import tools

    warm = tools.warm

    def warm_and_tell() -> None:
        warm()
        SEAL.with_suffix(".warm").touch()

    tools.warm = warm_and_tell
    sys.meta_path.insert(0, Sealed())
    return program.run()


if __name__ == "__main__":
    sys.exit(main())

"""What a start changes beside the log itself, once recovery has judged everything good.

Owns leftovers of crashes: temporary files, bad snapshots, torn bytes. Never touches a segment. Every step may be
interrupted and is done again by the next start.
"""

from __future__ import annotations

from mbxd.ports import Vfs
from mbxd.store.recovery import Found
from mbxd.store.segment import free_name, publish, read_whole, segment_name, snapshot_name, write_all


def tidy(vfs: Vfs, directory: str, found: Found) -> None:
    """Remove what is half made, set bad snapshots and torn bytes aside, and make the names durable."""
    for name in found.listing.temporary:
        vfs.remove(f"{directory}/{name}")
    for seq in found.bad_snapshots:
        name = snapshot_name(seq)
        aside = free_name(vfs, directory, f"{name}.bad")
        vfs.rename(f"{directory}/{name}", f"{directory}/{aside}")
    vfs.sync_dir(directory)
    if found.torn:
        _keep_torn(vfs, directory, found)


def _keep_torn(vfs: Vfs, directory: str, found: Found) -> None:
    """A copy for people. The bytes also stay where they are, so a full disk does not stop the start."""
    name = segment_name(found.segments[-1].first) + ".torn"
    copies = [entry for entry in found.listing.aside if entry.startswith(name)]
    try:
        if any(read_whole(vfs, f"{directory}/{entry}") == found.torn for entry in copies):
            return
        aside = free_name(vfs, directory, name)
        publish(vfs, directory, aside, lambda file: write_all(file, found.torn, 0)).close()
        found.notes.append(f"the unfinished bytes were copied to {aside}")
    except OSError as error:
        found.notes.append(f"the unfinished bytes could not be copied: {error}")

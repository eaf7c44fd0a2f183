"""Git objects made here: blobs, trees and commits, and the pack that carries them.

Owns their bytes; see gitformat-pack(5) and git-mktree(1). `git fast-import` would do the same, but its time grows
with the square of a directory's entries (docs/archive.md has the figures). Git checks every object that comes from here
before it takes it. Never runs Git.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator
from typing import IO

from mbxd.ports import NewCommit, RepoFailed

COMMITTER = "mbxd"
COMMITTER_EMAIL = "mbxd@localhost"
CHUNK = 256 * 1024
STORED_MAX = 64
"""Up to this size an object is not compressed: it is mostly a directory of one file, and half of that a hash."""
_COMMIT, _TREE, _BLOB = 1, 2, 3
_NAMES = {_COMMIT: b"commit", _TREE: b"tree", _BLOB: b"blob"}
_DIRECTORY, _FILE = b"40000", b"100644"
_LATEST = 4_102_444_800.0
"""2100: Git's date arithmetic is not to be tried with a broken clock."""


def blob_id(contents: bytes) -> bytes:
    """The 20 bytes by which Git names these contents."""
    return _name(_BLOB, contents)


def _name(kind: int, data: bytes) -> bytes:
    return hashlib.sha1(b"%s %d\0%s" % (_NAMES[kind], len(data), data), usedforsecurity=False).digest()


class Objects:
    """New objects on their way into one pack, and the trees they hang on."""

    def __init__(self, file: IO[bytes], read: Callable[[str], bytes]) -> None:
        """`file`: empty, for the pack's body. read(name): contents of an object that the repository has."""
        self._file = file
        self._read = read
        self._count = 0
        self._seen: set[bytes] = set()
        self.roots: dict[str, Tree] = {}

    def add(self, kind: int, data: bytes, name: bytes | None = None) -> bytes:
        """Put an object in, once; its name, unless it is known already."""
        if name is None:
            name = _name(kind, data)
        if name not in self._seen:
            self._seen.add(name)
            self._count += 1
            self._file.write(_entry_head(kind, len(data)) + _deflated(data))
        return name

    def root(self, commit: str | None) -> Tree:
        """The tree of a commit; of one made here too."""
        if commit is None:
            return Tree(self, None)
        made = self.roots.pop(commit, None)
        return made or Tree(self, self._read(f"{commit}^{{tree}}"))

    def tree(self, name: bytes) -> Tree:
        """A tree of the repository."""
        return Tree(self, self._read(name.hex()))

    def finish(self) -> Iterator[bytes]:
        """The whole pack, piece by piece."""
        digest = hashlib.sha1(usedforsecurity=False)
        head = b"PACK" + (2).to_bytes(4, "big") + self._count.to_bytes(4, "big")
        digest.update(head)
        yield head
        self._file.seek(0)
        while piece := self._file.read(CHUNK):
            digest.update(piece)
            yield piece
        yield digest.digest()


class Tree:
    """A directory, read when it is needed and written when it changed."""

    __slots__ = ("_children", "_entries", "_objects", "changed", "name")

    def __init__(self, objects: Objects, data: bytes | None) -> None:
        """`data`: as Git has it; None: a new one."""
        self._objects = objects
        self._entries = {} if data is None else _parse(data)
        self.name = None if data is None else _name(_TREE, data)
        self._children: dict[bytes, Tree] = {}
        self.changed = False

    def put(self, path: list[bytes], contents: bytes) -> bool:
        """Write a file; whether that changed anything. A file in a directory's place gives way."""
        way = [self]
        parent = self
        for directory in path[:-1]:
            parent = parent._child(directory) or parent._made(directory)
            way.append(parent)
        if not parent.enter(path[-1], contents):
            return False
        for tree in way:
            tree.changed = True
        return True

    def enter(self, name: bytes, contents: bytes) -> bool:
        """Write a file of this directory; whether that changed anything."""
        entry = (_FILE, blob_id(contents))
        if self._entries.get(name) == entry:
            return False
        self._objects.add(_BLOB, contents, entry[1])
        self._children.pop(name, None)
        self._entries[name] = entry
        return True

    def drop(self, path: list[bytes]) -> bool:
        """Remove a file; whether it was there. Directories that get empty go with it."""
        if len(path) == 1:
            found = self._entries.get(path[0])
            if found is None or found[0] == _DIRECTORY:
                return False
            del self._entries[path[0]]
        else:
            child = self._child(path[0])
            if child is None or not child.drop(path[1:]):
                return False
        self.changed = True
        return True

    def _child(self, name: bytes) -> Tree | None:
        child = self._children.get(name)
        if child is None:
            entry = self._entries.get(name)
            if entry is not None and entry[0] == _DIRECTORY:
                child = self._children[name] = self._objects.tree(entry[1])
        return child

    def _made(self, name: bytes) -> Tree:
        child = self._children[name] = Tree(self._objects, None)
        return child

    def save(self) -> bytes | None:
        """Put it and what changed below into the pack; its name, None when it is empty."""
        for name, child in self._children.items():
            if child.changed:
                saved = child.save()
                if saved is None:
                    self._entries.pop(name, None)
                else:
                    self._entries[name] = (_DIRECTORY, saved)
        self.changed = False
        if not self._entries:
            self.name = None
            return None
        # Git orders a directory as if its name ended in a slash.
        ordered = list(self._entries.items())
        if len(ordered) > 1:
            ordered.sort(key=lambda item: item[0] + (b"/" if item[1][0] == _DIRECTORY else b""))
        data = b"".join([b"%s %s\0%s" % (mode, name, sha) for name, (mode, sha) in ordered])
        self.name = self._objects.add(_TREE, data)
        return self.name


def write_commit(objects: Objects, parent: str | None, commit: NewCommit) -> str | None:
    """Put a commit and all that is new in it into the pack; its name, None when it would change nothing."""
    root = objects.root(parent)
    before = root.name
    changed = False
    # What goes goes first: the new name of a renamed file may differ by case alone.
    for path in commit.gone:
        changed |= root.drop(path.encode("utf-8", "surrogateescape").split(b"/"))
    for path, contents in commit.files:
        changed |= root.put(path.encode("utf-8", "surrogateescape").split(b"/"), contents)
    tree = (root.save() or objects.add(_TREE, b"")) if changed else before
    if tree is None or tree == before:
        if parent is not None:
            objects.roots[parent] = root
        return None
    who = f"{COMMITTER} <{COMMITTER_EMAIL}> {int(min(max(commit.at, 0.0), _LATEST))} +0000"
    head = f"tree {tree.hex()}\n" + (f"parent {parent}\n" if parent else "")
    text = f"{head}author {who}\ncommitter {who}\n\n{commit.message.rstrip()}\n"
    name = objects.add(_COMMIT, text.encode("utf-8", "replace")).hex()
    objects.roots[name] = root
    return name


def _parse(data: bytes) -> dict[bytes, tuple[bytes, bytes]]:
    entries = {}
    at = 0
    while at < len(data):
        space = data.find(b" ", at)
        end = data.find(b"\0", space)
        if space < 0 or end < 0 or end + 21 > len(data):
            raise RepoFailed("a directory in the archive is damaged: mbxctl archive rebuild remakes it")
        entries[data[space + 1 : end]] = (data[at:space], data[end + 1 : end + 21])
        at = end + 21
    return entries


def _deflated(data: bytes) -> bytes:
    """As a zlib stream, see RFC 1950; a small one as the one stored block of RFC 1951, for a compressor costs more."""
    size = len(data)
    if size > STORED_MAX:
        return zlib.compress(data, 1)
    lengths = size.to_bytes(2, "little") + (size ^ 0xFFFF).to_bytes(2, "little")
    return b"\x78\x01\x01" + lengths + data + zlib.adler32(data).to_bytes(4, "big")


def _entry_head(kind: int, size: int) -> bytes:
    """Kind and size in front of an entry of a pack: 4 bits of the size, then 7 at a time, lowest first."""
    byte = kind << 4 | size & 15
    size >>= 4
    out = bytearray()
    while size:
        out.append(byte | 128)
        byte = size & 127
        size >>= 7
    out.append(byte)
    return bytes(out)

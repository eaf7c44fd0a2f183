"""Which project a directory belongs to. The client computes it: a daemon can't see into a container.

Owns the project's key (unique on the host) and the slug it would like to be called. Reads `.mbx.toml` and
the files by which git finds its common directory, gitrepository-layout(5); never runs git, never writes.
Standard library only.
"""

from __future__ import annotations

import os
import stat

from mbx_client.paths import without_waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG_NAME = ".mbx.toml"
SLUG_MAX = 32
_SLUG_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_SMALL = 65536


class Project:
    """A project: `key` is a slug out of `.mbx.toml` or an absolute path; `slug` is a short name for it."""

    __slots__ = ("key", "slug")

    def __init__(self, key: str, slug: str) -> None:
        self.key = key
        self.slug = slug


class BadProjectFile(ValueError):
    """A `.mbx.toml` can't be used; the text names the file and the line, and says what it must hold."""


def of_directory(directory: str, homes: frozenset[str]) -> Project | None:
    """The project of a directory, or None for a home directory, `/` and a directory that is gone.

    `homes`: home directories (real paths), which are no projects. Raises BadProjectFile.
    """
    try:
        real = os.path.realpath(directory, strict=True)
    except OSError:
        return None
    for parent in _upwards(real):
        path = f"{parent.rstrip('/')}/{CONFIG_NAME}"
        slug = None if _planted(path, parent) else _configured(path)
        if slug is not None:
            return Project(slug, slug)
    none = homes | {"/"}
    root = repository(real)
    if root is None or root in none:
        root = real
    return None if root in none else Project(printable(root), slugify(os.path.basename(root)))


def home_directories(home: str | None, account_home: str) -> frozenset[str]:
    """Real paths of the home directories that are known: $HOME and the account's."""
    return frozenset(os.path.realpath(path) for path in (home, account_home) if path)


def repository(real: str) -> str | None:
    """The canonical path of the git repository around a real path, or None. Worktrees share their repository's."""
    for parent in _upwards(real):
        dot_git = f"{parent.rstrip('/')}/.git"
        if _planted(dot_git, parent):
            continue
        if os.path.isdir(dot_git):
            if os.path.lexists(f"{dot_git}/HEAD"):
                return _root_of(_common(os.path.realpath(dot_git)))
        elif os.path.isfile(dot_git):
            git_dir = _pointed(dot_git, parent)
            if git_dir is None or not os.path.isdir(git_dir):
                return parent  # a worktree whose repository moved away is still a place of its own
            return _root_of(_common(os.path.realpath(git_dir)))
    return None


def slugify(name: str) -> str:
    """A short name of a-z, 0-9 and single dashes; "project" when nothing is left."""
    name = name.lower().removesuffix(".git")
    dashed = "".join(letter if letter in _SLUG_LETTERS else "-" for letter in name)
    return "-".join(word for word in dashed.split("-") if word)[:SLUG_MAX].rstrip("-") or "project"


def printable(path: str) -> str:
    """A path as text that every JSON parser takes: bytes that are no UTF-8 become backslash escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _upwards(path: str) -> Iterator[str]:
    while True:
        yield path
        parent = os.path.dirname(path)
        if parent == path:
            return
        path = parent


def _planted(path: str, parent: str) -> bool:
    """Whether it is another user's in a directory that all may write: what lies in /tmp names nobody's project."""
    try:
        owner = os.lstat(path).st_uid
        return owner not in {0, os.geteuid()} and bool(os.stat(parent).st_mode & 0o002)
    except OSError:
        return False


def _configured(path: str) -> str | None:
    text = _small(path)
    if text is None:
        return None
    plain = _plain(text)
    if plain is not None:
        return plain
    import tomllib

    try:
        slug = tomllib.loads(text.decode()).get("project")
    except UnicodeDecodeError as bad:
        line = text.count(b"\n", 0, bad.start) + 1
        raise BadProjectFile(f"{printable(path)} is no TOML: it is not UTF-8 (at line {line})") from None
    except (ValueError, RecursionError) as bad:  # the words of a ValueError name the line
        raise BadProjectFile(f"{printable(path)} is no TOML: {bad}") from None
    if slug is None:
        return None
    if not isinstance(slug, str) or not slug or slugify(slug) != slug:
        must = f'project must be 1 to {SLUG_MAX} of a-z, 0-9 and single dashes, like project = "shop"'
        raise BadProjectFile(f"{printable(path)}{_where(text)}: {must}")
    return slug


def _where(text: bytes) -> str:
    """Where a file sets `project`, as `, line 2`; nothing where that is spelled in an odd way."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip(b" \t[\"'").startswith(b"project"):
            return f", line {number}"
    return ""


def _plain(text: bytes) -> str | None:
    """The slug in the file as everybody writes it: that one line, blank lines and comments. None: let TOML decide.

    tomllib costs more than everything else that a shim or a hook imports, so the usual file is read without it.
    """
    try:
        lines = text.decode("ascii").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError:
        return None
    said = [line for line in lines if line and not (line[0] == "#" and line.isprintable())]
    if len(said) != 1:
        return None
    name, equals, value = said[0].partition("=")
    value = value.strip(" ")
    slug = value[1:-1]
    quoted = value[:1] == value[-1:] == '"' and slug and slugify(slug) == slug
    return slug if equals and quoted and name.strip(" ") == "project" else None


def _pointed(dot_git: str, parent: str) -> str | None:
    """Target of a `.git` file: `gitdir: <path>`, relative to the directory that holds the file."""
    text = _read(dot_git)
    if text is None or not text.startswith("gitdir:"):
        return None
    return os.path.join(parent, text.removeprefix("gitdir:").strip())


def _common(git_dir: str) -> str:
    """The common directory: a worktree's git directory names it in `commondir`; others are their own."""
    text = _read(f"{git_dir}/commondir")
    return os.path.realpath(os.path.join(git_dir, text.strip())) if text else git_dir


def _root_of(common: str) -> str:
    """The main work tree of a common directory; for a bare or separate one the directory itself."""
    if os.path.basename(common) == ".git":
        return os.path.dirname(common)
    # A submodule's common directory lies in its superproject and names the work tree in its config.
    for line in (_read(f"{common}/config") or "").splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip().lower() == "worktree":
            return os.path.realpath(os.path.join(common, value.strip().strip('"')))
    return common


def _read(path: str) -> str | None:
    data = _small(path)
    text = None if data is None else os.fsdecode(data)
    return None if text is None or "\0" in text else text  # no path holds a NUL


def _small(path: str) -> bytes | None:
    """The beginning of a file, None when it can't be read. What is no file, a pipe above all, is not waited for."""
    try:
        with open(path, "rb", opener=without_waiting) as file:
            return file.read(_SMALL) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except OSError:
        return None

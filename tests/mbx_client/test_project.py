"""Which project a directory is in, with real repositories made by git."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbx_client import project

NO_HOMES: frozenset[str] = frozenset()


def git(directory: Path, *arguments: str) -> None:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    command = ["git", "-C", str(directory), "-c", "protocol.file.allow=always", *arguments]
    subprocess.run(command, env=env, check=True, capture_output=True, timeout=20)


def repository(path: Path) -> Path:
    path.mkdir(parents=True)
    git(path, "init", "-q", "-b", "main")
    git(path, "commit", "-q", "--allow-empty", "-m", "first")
    return path


def key(path: Path, homes: frozenset[str] = NO_HOMES) -> str | None:
    found = project.of_directory(str(path), homes)
    return None if found is None else found.key


def test_every_worktree_is_the_repository(tmp_path: Path) -> None:
    main = repository(tmp_path / "shop")
    git(main, "worktree", "add", "-q", str(tmp_path / "feature"))
    (main / "src" / "deep").mkdir(parents=True)
    assert key(main) == key(main / "src" / "deep") == key(tmp_path / "feature") == str(main)
    found = project.of_directory(str(tmp_path / "feature"), NO_HOMES)
    assert found is not None
    assert found.slug == "shop"


def test_worktree_of_a_bare_repository(tmp_path: Path) -> None:
    main = repository(tmp_path / "main")
    git(tmp_path, "clone", "-q", "--bare", str(main), str(tmp_path / "shop.git"))
    git(tmp_path / "shop.git", "worktree", "add", "-q", str(tmp_path / "one"), "main")
    git(tmp_path / "shop.git", "worktree", "add", "-q", "-b", "two", str(tmp_path / "two"))
    assert key(tmp_path / "one") == key(tmp_path / "two") == str(tmp_path / "shop.git")
    found = project.of_directory(str(tmp_path / "one"), NO_HOMES)
    assert found is not None
    assert found.slug == "shop"


def test_a_submodule_is_its_own_project_and_so_are_its_worktrees(tmp_path: Path) -> None:
    library = repository(tmp_path / "library")
    main = repository(tmp_path / "shop")
    git(main, "submodule", "add", "-q", str(library), "vendor/lib")
    inside = main / "vendor" / "lib"
    git(inside, "worktree", "add", "-q", str(tmp_path / "elsewhere"))
    assert key(inside) == str(inside)
    assert key(tmp_path / "elsewhere") == str(inside)
    assert key(main) == str(main)


def test_separate_git_directory(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--separate-git-dir", str(tmp_path / "data"), str(tmp_path / "work"))
    git(tmp_path / "work", "commit", "-q", "--allow-empty", "-m", "first")
    git(tmp_path / "work", "worktree", "add", "-q", str(tmp_path / "other"))
    assert key(tmp_path / "work") == key(tmp_path / "other")


def test_a_directory_without_a_repository_is_itself(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert key(tmp_path / "link") == str(tmp_path / "real")


def test_home_and_root_are_no_projects(tmp_path: Path) -> None:
    homes = frozenset({str(tmp_path)})
    assert key(tmp_path, homes) is None
    assert key(Path("/"), homes) is None
    assert key(tmp_path / "gone", homes) is None
    repository(tmp_path / "x")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").touch()
    (tmp_path / "notes").mkdir()
    assert key(tmp_path, homes) is None
    assert key(tmp_path / "notes", homes) == str(tmp_path / "notes")
    assert key(tmp_path / "x", homes) == str(tmp_path / "x")


def test_a_broken_pointer_is_a_place_of_its_own(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: /nowhere/at/all\n")
    assert key(tmp_path) == str(tmp_path)
    for text in ("nonsense", "", "gitdir:", "gitdir: a\0b"):
        (tmp_path / ".git").write_text(text)
        assert key(tmp_path) == str(tmp_path)


def test_project_file_names_the_project(tmp_path: Path) -> None:
    main = repository(tmp_path / "shop")
    (tmp_path / ".mbx.toml").write_text('project = "mono"\n')
    assert key(main) == "mono"
    (main / ".mbx.toml").write_text("other = 1\n")
    assert key(main) == "mono"
    (main / ".mbx.toml").write_text('project = "shop-two"\n')
    assert key(main) == "shop-two"


@pytest.mark.parametrize("text", ["project = ", 'project = "Shop"', 'project = ""', "project = 5", 'project = "a/b"'])
def test_bad_project_files_say_what_they_must_hold(tmp_path: Path, text: str) -> None:
    (tmp_path / ".mbx.toml").write_text(text)
    with pytest.raises(project.BadProjectFile, match=r"\.mbx\.toml"):
        project.of_directory(str(tmp_path), NO_HOMES)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b'# ours\nproject = "Shop"\n', ", line 2: project must be "),
        (b'other = 1\n\n"project" = 5\n', ", line 3: project must be "),
        (b"a = 1\n[project]\nb = 2\n", ", line 2: project must be "),
        (b'"\\u0070roject" = 5\n', ".mbx.toml: project must be "),
        (b'project = "shop"\nother =\n', "(at line 2, column 8)"),
        (b'a = 1\nb = 2\nproject = "caf\xe9"\n', "it is not UTF-8 (at line 3)"),
    ],
)
def test_bad_project_files_say_where(tmp_path: Path, text: bytes, line: str) -> None:
    (tmp_path / ".mbx.toml").write_bytes(text)
    with pytest.raises(project.BadProjectFile) as caught:
        project.of_directory(str(tmp_path), NO_HOMES)
    assert str(caught.value).startswith(str(tmp_path))
    assert line in str(caught.value)


def test_bytes_that_are_no_utf8_become_text(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(path)
    found = project.of_directory(os.fsdecode(path), NO_HOMES)
    assert found is not None
    assert found.key.endswith("caf\\xe9")
    assert found.slug == "caf"


@given(st.text())
def test_slugs_are_short_plain_and_stable(name: str) -> None:
    slug = project.slugify(name)
    assert 1 <= len(slug) <= project.SLUG_MAX
    assert set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert slug[0] != "-"
    assert slug[-1] != "-"
    assert project.slugify(slug) == slug


@given(
    st.lists(
        st.sampled_from(
            [
                "project",
                "=",
                " ",
                '"',
                "shop",
                "-",
                "two",
                "\n",
                "\r\n",
                "#",
                "é",
                "'",
                "[a]",
                ".",
                "\\",
                "\t",
                "\x00",
                "\r",
            ]
        ),
        max_size=12,
    ).map("".join)
    | st.sampled_from(['project = "shop"\n', '# mine\n\nproject="shop"\r\n', 'project = "shop" # mine\n'])
)
def test_the_short_way_says_what_toml_says(text: str) -> None:
    found = project._plain(text.encode())
    if found is not None:
        assert tomllib.loads(text) == {"project": found}


def test_the_usual_file_takes_the_short_way() -> None:
    assert project._plain(b'# ours\n\nproject = "shop-two"\n') == "shop-two"
    assert project._plain(b'project = "Shop"\n') is None
    assert project._plain(b'project = ""\n') is None
    assert project._plain(b"") is None

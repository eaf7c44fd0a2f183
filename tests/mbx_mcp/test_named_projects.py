"""The shim looks up the directories that a call names, since the daemon may not see them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mbx_client.project import BadProjectFile
from mbx_mcp.introduction import named_projects

GIT = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"]}


def git(*arguments: str, cwd: Path) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=cwd, env=GIT, check=True, capture_output=True, timeout=30)


def test_two_worktrees_of_one_repository_are_one_project(tmp_path: Path) -> None:
    main = tmp_path / "shop"
    main.mkdir()
    git("init", "-q", cwd=main)
    git("commit", "-q", "--allow-empty", "-m", "first", cwd=main)
    git("worktree", "add", "-q", str(tmp_path / "feature"), cwd=main)
    below = tmp_path / "feature" / "src"
    below.mkdir()
    for path in (main, tmp_path / "feature", below):
        assert named_projects({"project_key": str(path)}) == {str(path): {"key": str(main), "slug": "shop"}}


def test_a_path_that_does_not_exist_is_left_to_the_daemon(tmp_path: Path) -> None:
    assert named_projects({"project_key": str(tmp_path / "none")}) == {}
    assert named_projects({"project_key": "shop", "human_key": 5}) == {}
    assert named_projects({"project_key": "/a\x00b"}) == {}
    assert named_projects({"project_key": "/a\ud800b"}) == {}
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    assert named_projects({"project_key": str(tmp_path / "dangling")}) == {}, "it is no home"


def test_a_bad_project_file_of_a_named_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / ".mbx.toml").write_text("project = 3\n")
    with pytest.raises(BadProjectFile, match="line 1"):
        named_projects({"project_key": str(tmp_path)})


def test_home_and_root_are_no_projects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert named_projects({"human_key": str(tmp_path)}) == {str(tmp_path): None}
    assert named_projects({"human_key": "/"}) == {"/": None}

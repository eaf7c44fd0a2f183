"""The port `Repo`: one suite for the real adapter and the fake, and what only the real one can meet."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from mbxd.ports import NewCommit, Repo, RepoFailed, RepoMoved
from mbxd.runtime import gitpack
from mbxd.runtime.repo import GitRepo
from tests.support.fakerepo import FakeRepo

A, B, C = (f"projects/shop/agents/{name}/profile.json" for name in "ABC")


def text(name: str, *more: str) -> bytes:
    lines = [f'  "name": "{name}",', *(f'  "field{i}": "value {i}",' for i in range(12)), *more]
    return ("{\n" + "\n".join(lines) + "\n}\n").encode()


def commit(seq: int, files: dict[str, bytes], gone: tuple[str, ...] = (), *, more: str = "") -> NewCommit:
    return NewCommit(f"change {seq}\n\nMbx-Seq: {seq}{more}", 1_700_000_000.5 + seq, files.items(), gone)


@pytest.fixture
def git(tmp_path: Path) -> GitRepo:
    made = GitRepo(str(tmp_path / "archive"), os.defpath)
    made.prepare()
    return made


@pytest.fixture(params=["git", "fake"])
def repo(request: pytest.FixtureRequest) -> Repo:
    if request.param == "git":
        found: Repo = request.getfixturevalue("git")
        return found
    return FakeRepo()


def run(repo: GitRepo, *arguments: str) -> str:
    who = {"GIT_AUTHOR_NAME": "p", "GIT_AUTHOR_EMAIL": "p@x", "GIT_COMMITTER_NAME": "p", "GIT_COMMITTER_EMAIL": "p@x"}
    done = subprocess.run(
        ["git", "-C", repo._directory, *arguments],
        env={"PATH": os.defpath, "HOME": "/nonexistent", "LC_ALL": "C", **who},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


# -- both -----------------------------------------------------------------------------------------------------


def test_an_empty_repository(repo: Repo) -> None:
    repo.prepare()
    assert repo.tip() is None
    assert repo.log((), None) == []
    assert repo.write(None, []) is None


def test_commits_are_read_back(repo: Repo) -> None:
    first = repo.write(None, [commit(3, {A: text("A")})])
    tip = repo.tip()
    assert tip is not None
    assert (tip.hexsha, tip.seq) == (first, 3)
    assert repo.files(tip.hexsha) == {A: repo.blob_id(text("A"))}
    second = repo.write(first, [commit(5, {B: text("B")}), commit(7, {A: text("A2")}, more="\nMbx-Compared: why")])
    assert second is not None
    past = repo.log((), None)
    assert [(c.seq, c.compared, c.summary) for c in past] == [
        (7, True, "change 7"),
        (5, False, "change 5"),
        (3, False, "change 3"),
    ]
    assert past[0].hexsha == second
    assert past[2].at == 1_700_000_003
    assert repo.files(second) == {A: repo.blob_id(text("A2")), B: repo.blob_id(text("B"))}
    assert len(repo.log((), 2)) == 2
    repo.checkout()
    repo.tidy()
    assert repo.check() == []


def test_no_empty_commit(repo: Repo) -> None:
    tip = repo.write(None, [commit(1, {A: text("A")})])
    assert repo.write(tip, [commit(2, {A: text("A")})]) is None
    assert repo.write(tip, [commit(2, {A: text("A")}, (A,))]) is None
    assert repo.write(tip, [commit(2, {}, (B,))]) is None
    assert len(repo.log((), None)) == 1


def test_the_commits_of_a_file_and_of_the_names_it_had(repo: Repo) -> None:
    tip = repo.write(None, [commit(1, {A: text("A"), C: text("C")})])
    tip = repo.write(tip, [commit(2, {C: text("C", "  x")})])
    tip = repo.write(tip, [commit(3, {B: text("B")}, (A,))])
    tip = repo.write(tip, [commit(4, {B: text("B", "  x")})])
    assert [c.seq for c in repo.log((B, A), None)] == [4, 3, 1]
    assert [c.seq for c in repo.log((B, A), 2)] == [4, 3]
    assert [c.seq for c in repo.log((B,), None)] == [4, 3]
    assert [c.seq for c in repo.log((A,), None)] == [3, 1]
    assert [c.seq for c in repo.log(("projects/shop/agents/never/profile.json",), None)] == []
    assert set(repo.files(str(tip))) == {B, C}


def test_a_file_that_is_like_another_has_a_history_of_its_own(repo: Repo) -> None:
    tip = repo.write(None, [commit(1, {A: text("A")})])
    tip = repo.write(tip, [commit(2, {A: text("A", "  x"), B: text("A")})])
    repo.write(tip, [commit(3, {B: text("B"), C: text("A", "  x")}, (A,))])
    assert [c.seq for c in repo.log((B,), None)] == [3, 2]
    assert [c.seq for c in repo.log((C,), None)] == [3]


def test_a_branch_that_is_elsewhere_is_not_overwritten(repo: Repo) -> None:
    first = repo.write(None, [commit(1, {A: text("A")})])
    second = repo.write(first, [commit(2, {A: text("A2")})])
    for parent in (first, None):
        with pytest.raises(RepoMoved):
            repo.write(parent, [commit(3, {B: text("B")})])
    tip = repo.tip()
    assert tip is not None
    assert tip.hexsha == second


def test_starting_over(repo: Repo) -> None:
    repo.write(None, [commit(1, {A: text("A")})])
    repo.start_over()
    assert repo.tip() is None
    repo.write(None, [commit(1, {A: text("A")})])
    repo.start_over()
    assert repo.log((), None) == []


def test_after_an_abort_everything_fails(repo: Repo) -> None:
    repo.abort()
    with pytest.raises(RepoFailed, match="stopping"):
        repo.tip()


# -- git alone ------------------------------------------------------------------------------------------------


def test_real_git_tools_read_it(git: GitRepo) -> None:
    tip = git.write(None, [commit(1, {f"projects/shop/agents/N{i}/profile.json": text(f"N{i}") for i in range(300)})])
    tip = git.write(tip, [commit(2, {B: text("N7", "  b")}, ("projects/shop/agents/N7/profile.json",))])
    git.checkout()
    assert run(git, "status", "--porcelain") == ""
    assert run(git, "fsck", "--strict", "--no-dangling") == ""
    paths = ("projects/shop/agents/N7", "projects/shop/agents/B")
    assert run(git, "log", "main", "--format=%s", "--", *paths).split("\n")[:2] == ["change 2", "change 1"]
    assert run(git, "log", "-1", "--format=%an %ae %at") == "mbxd mbxd@localhost 1700000002\n"
    assert run(git, "log", "-1", "--format=%(trailers:key=Mbx-Seq,valueonly)").strip() == "2"
    assert (Path(git._directory) / B).read_bytes() == text("N7", "  b")
    assert "packs: 2" in run(git, "count-objects", "-v")


def test_many_packs_are_put_together(git: GitRepo) -> None:
    tip = None
    for seq in range(1, 40):
        tip = git.write(tip, [commit(seq, {A: text(f"A{seq}")})])
    git.tidy()
    assert int(run(git, "count-objects", "-v").split("packs: ")[1].split()[0]) < 10
    assert len(git.log((), None)) == 39
    assert git.check() == []


def test_other_peoples_files_and_commits_stay(git: GitRepo) -> None:
    git.write(None, [commit(1, {A: text("A")})])
    git.checkout()
    for name in ("README", "projects/shop/agents/A/notes"):
        (Path(git._directory) / name).write_text("mine")
    run(git, "add", ".")
    run(git, "commit", "-qm", "by hand\n\nMbx-Seq: 99")
    tip = git.tip()
    assert tip is not None
    assert tip.seq is None, "whatever it says, the daemon did not make it"
    new = git.write(tip.hexsha, [commit(2, {A: text("A2")})])
    assert set(git.files(str(new))) == {A, "README", "projects/shop/agents/A/notes"}


@pytest.mark.parametrize("name", ["HEAD", "objects", "refs"])
def test_a_broken_repository_says_so(git: GitRepo, name: str) -> None:
    tip = git.write(None, [commit(1, {A: text("A")})])
    where = Path(git._directory) / ".git"
    if name == "HEAD":
        (where / "HEAD").write_text("nonsense")
    elif name == "objects":
        for pack in (where / "objects/pack").iterdir():
            pack.chmod(0o600)
            pack.write_bytes(b"x" * 20)
    else:
        (where / "refs/heads/main").write_text("nonsense")
    with pytest.raises(RepoFailed):
        git.prepare()
        git.tip()
        git.write(tip, [commit(2, {A: text("A2")})])
    git.start_over()
    assert git.tip() is None
    assert git.write(None, [commit(2, {A: text("A2")})])


def test_a_missing_object_is_noticed(git: GitRepo) -> None:
    tip = git.write(None, [commit(1, {A: text("A")})])
    shutil.rmtree(Path(git._directory) / ".git/objects/pack")
    with pytest.raises(RepoFailed):
        git.write(tip, [commit(2, {A: text("A2")})])
    with pytest.raises(RepoFailed):
        git.tip()


@pytest.mark.parametrize("lock", ["refs/heads/main.lock", "index.lock"])
def test_locks(git: GitRepo, lock: str) -> None:
    tip = git.write(None, [commit(1, {A: text("A")})])
    path = Path(git._directory) / ".git" / lock
    path.touch()
    with pytest.raises(RepoFailed, match=r"locked .*\.lock"):
        if git.write(tip, [commit(2, {A: text("A2")})]):
            git.checkout()
    git.prepare()
    assert path.exists(), "somebody may hold it"
    os.utime(path, (0, 0))
    git.prepare()
    assert not path.exists(), "nobody holds one for so long"


def test_another_branch_in_the_working_tree(git: GitRepo) -> None:
    tip = git.write(None, [commit(1, {A: text("A")})])
    git.checkout()
    run(git, "checkout", "-q", "-b", "mine")
    assert git.write(tip, [commit(2, {A: text("A2")})])
    with pytest.raises(RepoFailed, match="HEAD is not on main"):
        git.checkout()
    assert (Path(git._directory) / A).read_bytes() == text("A")


def test_without_git(tmp_path: Path) -> None:
    repo = GitRepo(str(tmp_path / "archive"), str(tmp_path))
    with pytest.raises(RepoFailed, match="git was not found"):
        repo.prepare()
    program = shutil.which("git")
    assert program is not None
    (tmp_path / "git").symlink_to(program)
    repo.prepare()
    assert repo.tip() is None, "found once it is there"


def test_something_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "archive").write_text("x")
    with pytest.raises(RepoFailed, match="is not a directory: move it away"):
        GitRepo(str(tmp_path / "archive"), os.defpath).prepare()


def test_a_deleted_directory_is_made_again(git: GitRepo) -> None:
    git.write(None, [commit(1, {A: text("A")})])
    shutil.rmtree(git._directory)
    with pytest.raises(RepoFailed):
        git.write(None, [commit(1, {A: text("A")})])
    git.prepare()
    assert git.tip() is None


FULL = """
import resource, sys
from mbxd.ports import NewCommit, RepoFailed
from mbxd.runtime.repo import GitRepo
git = GitRepo(sys.argv[1], "/usr/bin:/bin")
tip = git.tip()
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
import os
files = [(f"f{i}", os.urandom(2000).hex().encode()) for i in range(100)]
try:
    git.write(tip.hexsha, [NewCommit("m\\n\\nMbx-Seq: 2", 0.0, files)])
except RepoFailed as problem:
    print(problem)
"""


def test_a_full_disk(git: GitRepo) -> None:
    tip = git.write(None, [commit(1, {A: text("A")})])
    said = subprocess.run(
        [sys.executable, "-c", FULL, git._directory],
        env={"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "File too large" in said.stdout or "no room" in said.stdout
    found = git.tip()
    assert found is not None
    assert found.hexsha == tip
    assert not list((Path(git._directory) / ".git/objects/pack").glob("tmp_*"))
    assert git.check() == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_no_configuration_of_a_person_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    (tmp_path / ".gitconfig").write_text("[core]\n\thooksPath = /nowhere\n[init]\n\tdefaultBranch = x\n[bad")
    git = GitRepo(str(tmp_path / "archive"), os.defpath)
    git.prepare()
    assert git.write(None, [commit(1, {A: text("A")})])
    assert git.check() == []


def test_objects_of_every_small_size_are_zlib_streams() -> None:
    for size in range(2 * gitpack.STORED_MAX):
        data = os.urandom(size)
        assert zlib.decompress(gitpack._deflated(data)) == data

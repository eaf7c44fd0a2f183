"""Names, contents and messages of the archive, as pure functions."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbx_wire.admin import RenameParams
from mbx_wire.agent import RegisterAgentParams
from mbxd.core import events as ev
from mbxd.core import profiles
from mbxd.core.context import PERSON, Caller
from mbxd.core.evolve import evolve
from mbxd.core.profiles import Entry, directory_name
from mbxd.core.state import State
from mbxd.ports import NewCommit
from mbxd.runtime import replaying
from mbxd.runtime.repo import GitRepo
from tests.core.model import World, process, project

AGENT = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True)
ODD = st.sampled_from(
    [
        "CON",
        "con.txt",
        "Aux",
        "NUL",
        "com1",
        "LPT9.x",
        "a.",
        "git~1",
        ".git",
        ".GIT",
        "-x",
        "_none",
        "x" * 128,
        "ab..",
        "",
    ]
)
NAMES = st.one_of(AGENT, ODD, st.text(max_size=140))


@given(st.lists(NAMES, unique_by=lambda name: name.lower(), max_size=12))
def test_directories_never_collide(names: list[str]) -> None:
    made = [directory_name(name, at + 1) for at, name in enumerate(names)]
    assert len({name.lower() for name in made}) == len(names)
    for name in made:
        assert name.isascii()
        assert 0 < len(name) <= 110
        assert name[0] not in ".-" or "+" in name
        assert not name.endswith((".", " "))
        assert not set(name) & set('/\\:*?"<>|~\0')
        assert name.lower().partition(".")[0] not in {"con", "prn", "aux", "nul", "com1", "lpt9"}
        assert not name.lower().startswith(".git")


@given(NAMES, st.integers(1, 10**9))
def test_a_clash_is_told_apart_by_the_number(name: str, number: int) -> None:
    one, other = directory_name(name, number, clash=True), directory_name(name, number + 1, clash=True)
    assert one.lower() != other.lower()
    assert one.lower() != directory_name(name, number + 2).lower() or not name


@pytest.mark.parametrize("name", ["GreenCastle", "shop-backend", "worker-7", "api.tests", "a", "X" * 100])
def test_plain_names_stay(name: str) -> None:
    assert directory_name(name, 7) == name


@settings(max_examples=5)
@given(st.lists(NAMES, unique_by=lambda name: name.lower(), min_size=20, max_size=40))
def test_git_takes_every_directory(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    git = GitRepo(str(tmp_path_factory.mktemp("r") / "archive"), os.defpath)
    git.prepare()
    files = [(profiles.profile_path(name, at + 1, None), b"%d" % at) for at, name in enumerate(names)]
    tip = git.write(None, [NewCommit("m", 0.0, files)])
    assert tip is not None
    assert git.files(tip) == {path: git.blob_id(contents) for path, contents in files}
    git.checkout()
    assert all((Path(git._directory) / path).read_bytes() == contents for path, contents in files)
    assert git.check() == []
    assert all(profiles.is_ours(path) for path, _ in files)


def world(*events: ev.Event) -> tuple[State, list[Entry]]:
    state, entries = State(), []
    for seq, event in enumerate(events, 1):
        evolve(state, event)
        if profiles.is_change(event):
            entries.append(Entry(seq, event))
    return state, entries


def registered(number: int, name: str, address: str, project: int = 1) -> ev.IdentityRegistered:
    return ev.IdentityRegistered(number, name, address, "x", None, project, 5.0, "prog", "m", "task", "auto")


SHOP = ev.ProjectCreated(1, "/tmp/shop", "shop", 1.0)


def test_files_of_a_picture() -> None:
    state, entries = world(SHOP, registered(1, "GreenCastle", "greencastle"), registered(2, "lone", "lone", 0))
    files = dict(profiles.files(profiles.part(state, entries, 3)))
    assert set(files) == {
        "projects/shop/project.json",
        "projects/shop/agents/GreenCastle/profile.json",
        "projects/_none/agents/lone/profile.json",
    }
    contents = files["projects/shop/agents/GreenCastle/profile.json"]
    profile = json.loads(contents)
    assert contents == (json.dumps(profile, indent=2) + "\n").encode()
    assert list(profile) == [
        "id",
        "name",
        "address",
        "role",
        "description",
        "project",
        "program",
        "model",
        "task_description",
        "attachments_policy",
        "retired",
        "aliases",
        "created_at",
    ]
    assert profile["project"] == {"id": 1, "slug": "shop", "key": "/tmp/shop"}
    everything = profiles.everything(list(state.identities.values()), dict(state.projects), 3)
    assert dict(profiles.files(everything)) == files


def test_names_that_differ_by_case_alone() -> None:
    # An older address that comes back as a name.
    state, entries = world(
        SHOP,
        registered(1, "greencastle", "greencastle"),
        registered(2, "GreenCastle", "shop-greencastle"),
        registered(3, "GreenCastle", "greencastle-2", 0),
    )
    paths = [path for path, _ in profiles.files(profiles.part(state, entries, 4))]
    assert paths == [
        "projects/shop/project.json",
        "projects/shop/agents/greencastle/profile.json",
        "projects/shop/agents/GreenCastle+2/profile.json",
        "projects/_none/agents/GreenCastle/profile.json",
    ]
    whole = profiles.everything(list(state.identities.values()), dict(state.projects), 4)
    assert [path for path, _ in profiles.files(whole)] == paths
    assert profiles.path_of(state, state.identities[2]) == paths[2]


def test_paths_of_all_names() -> None:
    state, _ = world(
        SHOP,
        registered(1, "GreenCastle", "greencastle"),
        registered(2, "shop-a", "shop-a"),
        registered(3, "con", "con"),
        ev.Renamed(1, "shop-b", "shop-b", 7.0),
        ev.Renamed(1, "shop-c", "shop-c", 8.0),
        ev.Renamed(2, "shop-d", "shop-d", 9.0),
        ev.Renamed(2, "shop-a", "shop-a", 9.0),
        ev.Renamed(3, "shop-e", "shop-e", 9.0),
    )

    def names(number: int) -> list[str]:
        paths = profiles.paths_of(state, state.identities[number])
        assert paths[0] == profiles.path_of(state, state.identities[number])
        return [path.removeprefix("projects/shop/agents/").removesuffix("/profile.json") for path in paths]

    assert names(1) == ["shop-c", "greencastle", "shop-b", "GreenCastle"]
    assert names(2) == ["shop-a", "shop-d"]
    assert names(3) == ["shop-e", "con+3"]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["a-b", "a--b", "a-b-", "ab", "ab-"])), max_size=12))
def test_no_path_is_ever_of_two(renamings: list[tuple[int, str]]) -> None:
    """By the rules: whatever they let people and agents call themselves."""
    shop = World()
    for number, name in enumerate(("A--B", "a-b-", "ab-"), 1):
        agent = Caller("codex", process(number), "", (), project=project("shop"))
        shop.run("agent.register", RegisterAgentParams("/repos/shop", "codex", "five", name), agent)
    had: dict[str, int] = {}
    for number, to in [(1, "-"), *renamings]:
        shop.run("admin.rename", RenameParams(shop.state.identities[number].address, to), PERSON)
        for identity in shop.state.identities.values():
            assert had.setdefault(profiles.path_of(shop.state, identity), identity.id) == identity.id
    for identity in shop.state.identities.values():
        paths = set(profiles.paths_of(shop.state, identity))
        assert paths >= {path for path, owner in had.items() if owner == identity.id}
        assert paths.isdisjoint(path for path, owner in had.items() if owner != identity.id)


def test_messages() -> None:
    state, entries = world(SHOP, registered(1, "GreenCastle", "greencastle"), ev.Retired(1, "swept", 6.0))
    picture = profiles.part(state, entries, 3)
    assert profiles.message(entries[1:2], picture) == "register GreenCastle (shop)"
    assert profiles.message(entries, picture).splitlines() == [
        "3 changes: project shop, ...",
        "",
        "#1 project shop",
        "#2 register GreenCastle (shop)",
        "#3 sweep GreenCastle (shop)",
    ]
    many = [Entry(seq, ev.Retired(1, "retired", 0.0)) for seq in range(1000)]
    assert len(profiles.message(many, picture).splitlines()) == 203
    text = profiles.message([Entry(9, ev.RoleSet(1, "a\nMbx-Seq: 1", 0.0))], picture)
    assert "\n" not in text


def test_history_is_cut_so_that_each_change_can_be_followed() -> None:
    state, entries = world(
        SHOP,
        registered(1, "a", "a"),
        registered(2, "b", "b"),
        ev.Renamed(1, "c", "c", 7.0),
        ev.ProfileUpdated(1, "p", None, None, None, 8.0),
    )
    commits = list(replaying.commits(entries))
    assert [commit.message.splitlines()[0] for commit in commits] == [
        "3 changes: project shop, ...",
        "rename a to c (shop)",
        "update c (shop)",
    ]
    assert list(commits[1].gone) == ["projects/shop/agents/a/profile.json"]
    assert [path for path, _ in commits[1].files] == [
        "projects/shop/project.json",
        "projects/shop/agents/c/profile.json",
    ]
    assert state.identities[1].name == "c"

"""The decision table of docs/liveness.md, row by row, and what holds for every row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbxd.ports import ProcessId
from mbxd.runtime.evidence import ALIVE, EXITED, REBOOTED, REUSED, UNVERIFIABLE, Evidence, is_same, judge

ME = ProcessId("boot-1", 7, 400, 1000, 55)
SEEN = Evidence(boot="boot-1", ns=7, exists=True, ticks=1000, inode=55, ended=False)

ROWS = [
    ("1 pidfd readable", ME, Evidence(handle_dead=True), EXITED),
    ("2 pidfd quiet", ME, Evidence(handle_dead=False), ALIVE),
    (
        "2 pidfd quiet, for a process that can't be seen",
        ME._replace(pid=0, ticks=0),
        Evidence(handle_dead=False),
        ALIVE,
    ),
    ("1 pidfd readable, for a process that can't be seen", ME._replace(pid=0), Evidence(handle_dead=True), EXITED),
    ("3 another boot", ME, SEEN._replace(boot="boot-2"), REBOOTED),
    ("3 another boot, pid 0", ME._replace(pid=0), SEEN._replace(boot="boot-2"), REBOOTED),
    ("3 boot unreadable now", ME, SEEN._replace(boot=""), ALIVE),
    ("3 boot was unreadable", ME._replace(boot=""), SEEN, ALIVE),
    ("4 pid 0", ME._replace(pid=0), SEEN, UNVERIFIABLE),
    ("4 pid 0 is not gone", ME._replace(pid=0), SEEN._replace(exists=False), UNVERIFIABLE),
    ("4 another namespace", ME, SEEN._replace(ns=8), UNVERIFIABLE),
    ("4 another namespace is not gone", ME, SEEN._replace(ns=8, exists=False), UNVERIFIABLE),
    ("5 gone", ME, SEEN._replace(exists=False, ticks=0, inode=0, ended=None), EXITED),
    ("6 a thread's number now", ME, SEEN._replace(thread=True, inode=0), REUSED),
    ("7 nothing readable", ME, Evidence(boot="boot-1", ns=7), UNVERIFIABLE),
    ("7 neither ticks nor inode", ME, SEEN._replace(ticks=0, inode=0), UNVERIFIABLE),
    ("7 nothing recorded", ME._replace(ticks=0, inode=0), SEEN, UNVERIFIABLE),
    ("7 a number of ours is no inode", ME._replace(ticks=0, inode=-55), SEEN, UNVERIFIABLE),
    ("8 inode differs, same ticks", ME, SEEN._replace(inode=56), REUSED),
    ("9 ticks differ, no inode now", ME, SEEN._replace(ticks=1001, inode=0), REUSED),
    ("9 ticks differ, no inode then", ME._replace(inode=0), SEEN._replace(ticks=1001), REUSED),
    ("10 a zombie", ME, SEEN._replace(ended=True), EXITED),
    ("11 perhaps a zombie", ME, SEEN._replace(ended=None), UNVERIFIABLE),
    ("12 the same", ME, SEEN, ALIVE),
    ("8 inodes differ, the smallest now", ME, SEEN._replace(inode=1), REUSED),
    ("8 inodes differ, the smallest then", ME._replace(inode=1), SEEN, REUSED),
    ("9 ticks differ, the smallest now", ME, SEEN._replace(ticks=1, inode=0), REUSED),
    ("9 ticks differ, the smallest then", ME._replace(ticks=1, inode=0), SEEN, REUSED),
    ("12 pid 1, the agent of a container", ME._replace(pid=1), SEEN, ALIVE),
    ("12 the same, ticks alone", ME, SEEN._replace(inode=0), ALIVE),
    ("12 the same inode, ticks shifted by a time namespace", ME, SEEN._replace(ticks=1), ALIVE),
]


@pytest.mark.parametrize(("identity", "seen", "verdict"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_row(identity: ProcessId, seen: Evidence, verdict: object) -> None:
    assert judge(identity, seen) == verdict


small = st.integers(-1, 3)
identities = st.builds(ProcessId, st.sampled_from(["", "a", "b"]), small, small, small, small)
evidence = st.builds(
    Evidence,
    handle_dead=st.none() | st.booleans(),
    boot=st.sampled_from(["", "a", "b"]),
    ns=small,
    exists=st.none() | st.booleans(),
    thread=st.booleans(),
    ticks=small,
    inode=small,
    ended=st.none() | st.booleans(),
)


@given(identities, evidence)
def test_dead_is_always_proven(identity: ProcessId, seen: Evidence) -> None:
    if judge(identity, seen).status != "dead":
        return
    proofs = [
        seen.handle_dead is True,
        bool(identity.boot and seen.boot and identity.boot != seen.boot),
        seen.exists is False,
        seen.thread,
        is_same(identity, seen.ticks, seen.inode) is False,
        seen.ended is True,
    ]
    assert any(proofs)


@given(identities, evidence)
def test_a_quiet_pidfd_beats_everything(identity: ProcessId, seen: Evidence) -> None:
    assert judge(identity, seen._replace(handle_dead=False)) == ALIVE


@given(identities)
def test_what_can_not_be_read_is_never_dead(identity: ProcessId) -> None:
    assert judge(identity, Evidence(boot=identity.boot, ns=identity.ns)) == UNVERIFIABLE

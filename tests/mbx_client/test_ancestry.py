"""The chain of processes above a shim, with real processes."""

from __future__ import annotations

import os
import select
import subprocess
import sys

import pytest

from mbx_client import ancestry

CHAIN = "import sys\nfrom mbx_client import ancestry\nh = ancestry.find_host()\nprint(h.pid, h.label)\n"
ODD_NAME = (
    "import ctypes, sys\n"
    "ctypes.CDLL(None).prctl(15, b') S 1 (x', 0, 0, 0)\n"  # PR_SET_NAME: what field 2 of stat shows
    "print(flush=True)\n"
    "sys.stdin.read()\n"
)


def environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}


def test_own_chain_begins_here() -> None:
    links = ancestry.chain(os.getpid())
    assert links[0][0].pid == os.getpid()
    assert links[0][0].uid == os.getuid()
    assert links[1][0].pid == os.getppid()
    assert links[0][1] >= links[1][1] > 0


def test_no_such_process_has_no_chain() -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as gone:
        gone.wait(20)
    assert ancestry.chain(gone.pid) == []
    assert ancestry.find_host(gone.pid) is None


@pytest.mark.parametrize("wrapper", [[], ["env"], ["/bin/sh", "-c", 'env "$@"; true', "sh"], ["nice", "setsid", "-w"]])
def test_wrappers_are_passed_over(wrapper: list[str]) -> None:
    command = [*wrapper, sys.executable, "-c", CHAIN]
    done = subprocess.run(command, env=environment(), capture_output=True, timeout=20, check=True, text=True)
    assert int(done.stdout.split()[0]) == os.getpid()


def test_the_watch_sees_the_death() -> None:
    with subprocess.Popen([sys.executable, "-c", ODD_NAME], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        host.stdout.readline()
        (process, ticks), *_ = ancestry.chain(host.pid)
        watched = ancestry.Host(process.pid, ticks, "x", os.pidfd_open(host.pid))
        assert process.pid == host.pid
        assert watched.alive()
        assert not ancestry.Host(process.pid, ticks + 1, "x", None).alive()
        host.kill()
        assert watched.pidfd is not None
        assert select.select([watched.pidfd], [], [], 20)[0]
        assert not watched.alive()  # a zombie without threads
        os.close(watched.pidfd)
    assert not watched.alive()


def test_stat_is_cut_at_the_last_parenthesis() -> None:
    line = b"7 (a) S 1 (b)) R 42 " + b" ".join(str(n).encode() for n in range(5, 53))
    assert ancestry._parse_stat(line) == ("R", 42, 22)
    for bad in (b"", b"7", b"7 (x)", b"7 (x) R", b"7 (x) R y z"):
        assert ancestry._parse_stat(bad) is None

"""Run in a new pid namespace: listens on a socket, finds the host of the first peer, prints what it saw as JSON.

The peer lives outside of the namespace, so its pid can't be seen from here. On a line of input it looks again.
"""

from __future__ import annotations

import json
import os
import socket
import sys

from msgspec.structs import astuple

from mbxd.runtime.peer import host_of, read_peer
from mbxd.runtime.processes import LocalProcesses


def main() -> None:
    """One connection, two looks."""
    processes = LocalProcesses()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen()
    print("up", flush=True)
    connection, _ = listener.accept()
    connection.recv(3)
    peer = read_peer(connection)
    again = read_peer(connection)
    finding = host_of(processes, peer)
    second = host_of(processes, again)
    if finding is None or second is None:
        raise SystemExit("the peer was taken for gone")
    looks = [processes.probe(finding.host, finding.host_handle)]
    print("seen", flush=True)
    sys.stdin.readline()
    looks.append(processes.probe(finding.host, finding.host_handle))
    restarted = LocalProcesses().probe(finding.host, None)
    json.dump(
        {
            "me": os.getpid(),
            "pid": peer.pid,
            "host": astuple(finding.host),
            "own_host": finding.host == finding.shim,
            "stable": finding.host == second.host or finding.host.inode < 0,
            "looks": looks,
            "restarted": restarted,
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()

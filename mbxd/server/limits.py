"""The bounds of connections and requests, in one place. Each says what happens at it.

Those of mail (sizes, counts) are part of the contract: numbers in `mbx_wire.mail`, refusals in `core.mailrules`.
"""

from __future__ import annotations

IN_FLIGHT_MAX = 256
"""Requests of one connection that wait for the disk; more are answered BUSY."""
LINES_A_TURN = 32
"""Requests of one connection that are served before others get their turn."""
BACKLOG_PAUSE = 1024 * 1024
"""Bytes a peer may leave untaken before its further requests wait."""
EVENTS_BACKLOG_MAX = 256 * 1024
"""Bytes of events a subscriber may leave untaken; then it is told and its stream ends."""
CONNECTIONS_SPARE = 64
"""Descriptors kept free for files and the log; connections for which the rest is not enough are answered BUSY."""
DESCRIPTORS_EACH = 3
"""Descriptors that a connection may need: its socket, and pidfds of the peer and of the peer's host process."""
ROOM_WAIT_S = 5.0
"""How long a change waits for the log's next segment before it is refused with DISK_FULL."""
DRAIN_S = 4.0
"""How long a stopping daemon answers what it accepted. A service that displaces it waits 5 s for its end."""
HELLO_TEXT_MAX = 4096
"""Characters of any text in hello."""
UNFINISHED_MAX = 64 * 1024 * 1024
"""Bytes of lines that have not ended, of all connections; beyond it the oldest is discarded and answered BUSY."""
UNTAKEN_MAX = 256 * 1024 * 1024
"""Bytes that peers have not taken, of all connections; beyond it the one with most of them is closed."""
CONNECTIONS_MAX = 4096
"""Connections at most, also where descriptors would allow more."""
CONNECTIONS_KEPT = 64
"""Connections that a process keeps when the daemon is full; beyond it the oldest makes way for other processes."""

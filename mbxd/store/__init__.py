"""The durable store: an append-only log of opaque records with snapshots. See docs/wal-format.md.

Owns the files of the registry directory. Never knows what a record means, and never imports the core.
"""

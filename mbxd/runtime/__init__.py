"""The trio side of the daemon: the engine, the watchers and the loops around the core."""

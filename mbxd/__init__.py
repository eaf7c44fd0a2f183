"""mbxd: the per-host daemon that keeps named mailbox identities for coding agents."""

__version__ = "0.1.0"

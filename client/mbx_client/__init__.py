"""Clients of the daemon. This file stays empty of imports: the shim pays for every one of them."""

__version__ = "0.1.0"

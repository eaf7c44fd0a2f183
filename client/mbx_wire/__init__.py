"""The one schema of mbxd: data only. Everyone may import it; it imports the standard library and msgspec.

This file stays empty of imports so that the shim can use `mbx_wire.framing` and `mbx_wire.hostrule`
without paying for msgspec.
"""

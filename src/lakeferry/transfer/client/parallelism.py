"""Chooses how many objects travel at once.

Where both are on this machine, its cores do all of the work, and a few objects for each of
them are enough. Where one is far away, an object waits for the network most of the time, and
small ones for nothing else: then more of them wait together.
"""

from __future__ import annotations

import ipaddress

OF_A_CORE = 8
FEWEST, MOST_HERE = 8, 16
FAR = 32
_ON_DISK = ("file:", "memory:")


def parallel(store_uri: str, host: str, cores: int) -> int:
    """Return how many, between a store and a server's host, on a machine of so many cores."""
    if store_uri.startswith(_ON_DISK) and is_loopback(host):
        return min(max(OF_A_CORE * cores, FEWEST), MOST_HERE)
    return FAR


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine, by its name or address; nobody is asked."""
    bare = host.strip("[]").rstrip(".").lower()
    if bare == "localhost" or bare.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False

"""Chooses how many objects travel at once.

If both ends are on this machine, its cores do all the work, and a few objects per core are
enough. If one is far away, an object waits for the network most of the time, and a small one does
little else: then more of them are transferred at the same time.
"""

from __future__ import annotations

import ipaddress

OF_A_CORE = 8
FEWEST, MOST_HERE = 8, 16
FAR = 32
_ON_DISK = ("file:", "memory:")


def parallel(store_uri: str, host: str, cores: int) -> int:
    """Return the number of objects, for a store, a server's host, and this number of cores."""
    if store_uri.startswith(_ON_DISK) and is_loopback(host):
        return min(max(OF_A_CORE * cores, FEWEST), MOST_HERE)
    return FAR


def is_loopback(host: str) -> bool:
    """Return True if a host is this machine, by its name or address; without a DNS lookup."""
    bare = host.strip("[]").rstrip(".").lower()
    if bare == "localhost" or bare.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False

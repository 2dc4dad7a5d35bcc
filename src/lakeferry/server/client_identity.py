"""Says which client a request comes from: its token, or its network if it has none."""

from __future__ import annotations

import ipaddress


def holder_of(token: str | None, address: str | None) -> str:
    """Return a client's identity: its token's public part, or its network."""
    if token is not None:
        return f"token {token.split('_')[1] if token.count('_') > 1 else ''}"
    return f"address {network_of(address)}"


def network_of(address: str | None) -> str:
    """Return the network of an address: the /64 of IPv6, because one machine has all of it."""
    try:
        found = ipaddress.ip_address(address or "")
    except ValueError:
        return address or ""
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), 64), strict=False))

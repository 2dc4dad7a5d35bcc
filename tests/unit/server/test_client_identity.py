"""Which client a request comes from."""

from __future__ import annotations

import pytest

from lakeferry.server.client_identity import holder_of, network_of


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("a socket", "a socket"),
        (None, ""),
    ],
)
def test_all_addresses_of_one_ipv6_network_are_one_client(
    address: str | None, network: str
) -> None:
    assert network_of(address) == network
    assert holder_of(None, address) == f"address {network}"


def test_who_a_client_is() -> None:
    assert holder_of("lf_abc_secret", "1.2.3.4") == "token abc"
    assert holder_of("nonsense", "1.2.3.4") == "token "
    assert holder_of(None, "1.2.3.4") == "address 1.2.3.4"

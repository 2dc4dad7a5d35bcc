"""How many objects travel at once where nobody says."""

from __future__ import annotations

import pytest

from lakeferry.transfer.client.parallelism import is_loopback, parallel

HERE, FAR = "file:///data/orders", "s3://lake/orders"


@pytest.mark.parametrize(
    ("store", "host", "cores", "expected"),
    [
        (HERE, "127.0.0.1", 1, 8),
        (HERE, "127.0.0.1", 2, 16),
        (HERE, "localhost", 64, 16),
        ("memory://m/t", "::1", 2, 16),
        (HERE, "data.example.com", 1, 32),
        (HERE, "10.0.0.7", 64, 32),
        (FAR, "127.0.0.1", 2, 32),
        (FAR, "data.example.com", 2, 32),
    ],
)
def test_what_is_far_away_is_waited_for_together(
    store: str, host: str, cores: int, expected: int
) -> None:
    assert parallel(store, host, cores) == expected


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "a.localhost", "127.8.0.1", "[::1]"])
def test_this_machine_is_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "localhost.example.com", "0.0.0.0", "128.0.0.1", "::2"])
def test_others_are_not_this_machine(host: str) -> None:
    assert not is_loopback(host)

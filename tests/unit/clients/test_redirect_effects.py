"""Which clients lose a table that gets more features."""

from __future__ import annotations

from lakeferry.clients.redirect_effects import lost_access


def test_nobody_loses_a_table_that_gets_no_feature() -> None:
    assert lost_access([]) == ()


def test_clients_that_support_the_features_are_not_named() -> None:
    (others,) = lost_access(["changeDataFeed"])
    assert (others.reads, others.writes) == ((), ("changeDataFeed",))


def test_a_client_that_cannot_read_cannot_write() -> None:
    rust, polars, others = lost_access(["inCommitTimestamp", "deletionVectors"])
    assert str(rust) == "delta-rs can't read or write it any more"
    assert str(polars) == "Polars can't write it any more"
    assert (others.reads, others.writes) == (
        ("deletionVectors",),
        ("deletionVectors", "inCommitTimestamp"),
    )

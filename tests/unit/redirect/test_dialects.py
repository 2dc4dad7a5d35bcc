"""What we write in a dialect, byte for byte, and what a table keeps beside it."""

from __future__ import annotations

import json

from lakeferry.log.actions import Metadata, Protocol
from lakeferry.redirect import dialects
from lakeferry.redirect.entry import Dialect, Journal, Mode, Redirect, RedirectTarget, TargetKind
from lakeferry.redirect.no_redirect_rules import Rule
from lakeferry.redirect.redirect_commits import Bare, bare
from lakeferry.redirect.states import RedirectState

SOURCE = "s3://old/t"
PLACE = RedirectTarget(TargetKind.OBJECT_STORE, "s3://new/t")


def table(**configuration: str) -> Metadata:
    return Metadata("id", "{}", configuration={"mine": "kept", **configuration})


def test_delta_spark_gets_what_its_parser_knows_and_nothing_else() -> None:
    redirect = Redirect(
        Mode.WRITER_ONLY,
        RedirectState.READY,
        target=RedirectTarget(TargetKind.OBJECT_STORE, "s3://new/a%20b"),
        dialects=(Dialect.DELTA_SPARK,),
        source="s3://old/c%20d",
        rules=(Rule(None, ("WRITE",)),),
    )
    value = json.loads(dialects.properties(redirect)["delta.redirectWriterOnly-preview"])
    assert value == {
        "type": "PathBasedRedirect",
        "state": "REDIRECT-READY",
        "spec": '{"sourcePath":"/c d","destPath":"s3a://new/a b"}',
        "noRedirectRules": [{"appName": None, "allowedOperations": ["WRITE"]}],
    }


def test_a_table_comes_back_to_the_protocol_it_had() -> None:
    for before in (Protocol(1, 2), Protocol(2, 5), Protocol(1, 7, None, ("appendOnly",))):
        for mode in Mode:
            journal = Journal(
                protocol=(before.min_reader_version, before.min_writer_version), move_id="m"
            )
            redirect = Redirect(
                mode, RedirectState.READY, target=PLACE, source=SOURCE, journal=journal
            )
            carrying = Bare(before, table()).carrying(redirect)
            assert set(redirect.features) <= carrying.protocol.features
            assert (carrying.protocol.min_reader_version == 3) == (mode is Mode.READER_WRITER)
            again = bare(carrying.protocol, carrying.metadata, journal)
            assert again.protocol.unordered == before.unordered
            assert dict(again.metadata.configuration) == {"mine": "kept"}

"""Which option beats which: by what they are about, and credentials as a whole."""

from __future__ import annotations

import pytest

from lakeferry.storage.option_spellings import override, subject


@pytest.mark.parametrize(
    ("granted", "given"),
    [
        (
            {"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_session_token": "c"},
            {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"},
        ),
        ({"azure_storage_sas_token": "a"}, {"account_key": "x"}),
        ({"google_bearer_token": "a"}, {"google_service_account": "x"}),
    ],
)
def test_credentials_of_two_sources_are_never_mixed(
    granted: dict[str, str], given: dict[str, str]
) -> None:
    assert override(granted, given) == given
    assert override(granted, {"timeout": "1s"}) == {**granted, "timeout": "1s"}


def test_an_option_is_about_the_same_however_it_is_spelled() -> None:
    assert {subject(name) for name in ("region", "AWS_REGION", "aws_default_region")} == {"region"}
    # A key of lakeFS is none of the cloud's.
    assert subject("LAKECTL_CREDENTIALS_ACCESS_KEY_ID") != subject("aws_access_key_id")

from __future__ import annotations

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError, UnauthenticatedError

from lakeferry.errors import (
    Forbidden,
    InvalidInput,
    LakeferryError,
    ObjectNotFound,
    StorageUnavailable,
    Unauthorized,
)
from lakeferry.storage.cloud_errors import as_ours


def answer(status: int, code: str = "") -> str:
    body = f"<Error><Code>{code}</Code><Message>why</Message></Error>" if code else ""
    return (
        f"Error performing GET http://h/b - Server returned non-2xx status code: {status} X: {body}"
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError(answer(404, "NoSuchKey")), ObjectNotFound),
        (GenericError(answer(404, "NoSuchBucket")), ObjectNotFound),
        (FileNotFoundError(answer(404, "XAdminUserNotFound")), Unauthorized),
        (PermissionDeniedError(answer(403, "AccessDenied")), Forbidden),
        (GenericError(answer(403, "AccessDenied")), Forbidden),
        (PermissionDeniedError(answer(403, "SignatureDoesNotMatch")), Unauthorized),
        (UnauthenticatedError(answer(401)), Unauthorized),
        (GenericError("Error performing PUT http://169.254.169.254/latest/api"), Unauthorized),
        (ValueError("Could not parse path"), InvalidInput),
        (GenericError(answer(503)), StorageUnavailable),
        (GenericError("HTTP error: error sending request"), StorageUnavailable),
    ],
)
def test_every_answer_has_a_class(error: Exception, kind: type[LakeferryError]) -> None:
    assert type(as_ours(error, "x", "s3://b")) is kind


def test_a_missing_bucket_is_told_apart() -> None:
    missing = as_ours(GenericError(answer(404, "NoSuchBucket")), "x", "s3://b")
    assert missing.fields["bucket_missing"] is True
    assert as_ours(FileNotFoundError("x"), "x", "s3://b").fields["bucket_missing"] is False


@pytest.mark.parametrize(
    ("text", "changes", "unknown"),
    [
        (answer(503), True, True),
        ("error sending request", True, True),
        (answer(400, "BadDigest"), True, False),
        (answer(503), False, False),
    ],
)
def test_only_a_change_without_an_answer_is_in_doubt(
    text: str, changes: bool, unknown: bool
) -> None:
    ours = as_ours(GenericError(text), "x", "s3://b", changes=changes)
    assert ours.fields["outcome_unknown"] is unknown


def test_the_cause_is_one_line() -> None:
    ours = as_ours(GenericError(answer(400, "Bad") + "\n\nDebug source:\nsecret"), "x", "s3://b")
    assert ours.cause == "400 Bad: why"

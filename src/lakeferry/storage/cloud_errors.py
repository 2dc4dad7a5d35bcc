"""Converts obstore's exceptions to Lakeferry's errors.

obstore has classes for the common answers and one, ``GenericError``, for the
rest: whatever goes wrong with a listing is one, and so is a silent server. The HTTP status and the
store's own code are only in its text, and only this module reads them there.
"""

from __future__ import annotations

import re

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from lakeferry.errors import (
    Forbidden,
    InvalidInput,
    LakeferryError,
    ObjectNotFound,
    StorageUnavailable,
    Unauthorized,
)

RAISED = (BaseError, OSError, ValueError)
"""All that a call to obstore may raise, except for defects of Lakeferry."""

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
# The addresses from which machines in a cloud get credentials: used only if no credentials were
# found anywhere else.
_METADATA_SERVICE = re.compile(r"https?://(169\.254\.169\.254|169\.254\.170\.2|metadata\.google)")

_CREDENTIALS = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "gs": ("GOOGLE_SERVICE_ACCOUNT",),
    "az": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
}
"""The variables with a store's credentials; as options they are written in lower case."""
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound"})
# Several stores answer 403, and versitygw 404, to unknown credentials.
_UNKNOWN_USER = frozenset(
    {
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
        "XAdminUserNotFound",
    }
)


def http_status(error: Exception) -> int | None:
    """Return the status that the server answered with last, if it answered."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match else None


def as_ours(error: Exception, path: str, uri: str, *, changes: bool = False) -> LakeferryError:
    """Return Lakeferry's error for an exception of obstore about ``path`` below ``uri``.

    ``changes``: the request would have changed something, so its outcome is unknown after a failure
    without a clear answer.
    """
    text = str(error).partition("\n\nDebug source")[0]
    status, found = http_status(error), _CODE.search(text)
    code = found[1] if found else None
    fields = {"path": path, "uri": uri}
    where = f"{path!r} in {uri}" if path else uri
    if _METADATA_SERVICE.search(text):
        return Unauthorized(
            f"no credentials for {uri}",
            cause="no credentials were given, and this machine has no role in the cloud",
            remedy=credentials_for(uri),
            uri=uri,
        )
    if isinstance(error, UnauthenticatedError) or status == 401 or code in _UNKNOWN_USER:
        return Unauthorized(
            f"the store doesn't accept the credentials for {uri}",
            cause=_cause(text, status),
            remedy="check the access key, its secret, the region and this machine's clock",
            uri=uri,
        )
    if isinstance(error, PermissionDeniedError) or status == 403:
        return Forbidden(f"access to {where} is denied", cause=_cause(text, status), **fields)
    if isinstance(error, FileNotFoundError) or status == 404:
        # A listing can't miss an object; obstore calls its 404 generic.
        if code in _NO_BUCKET or not isinstance(error, FileNotFoundError):
            return ObjectNotFound(f"there is no bucket for {uri}", bucket_missing=True, **fields)
        return ObjectNotFound(f"no object at {where}", bucket_missing=False, **fields)
    if isinstance(error, ValueError):
        return InvalidInput(f"the store can't hold an object named {path!r}", cause=text, **fields)
    answered = status is not None and status < 500
    return StorageUnavailable(
        f"can't use {where}",
        cause=_cause(text, status),
        remedy="check that the store is running and that its endpoint is right, then try again",
        outcome_unknown=changes and not answered,
        status=status,
        **fields,
    )


def credentials_for(uri: str) -> str:
    """Say which variables, or which options, give credentials for a store."""
    scheme = uri.partition("://")[0]
    keys = _CREDENTIALS.get(scheme)
    if keys is None:
        return "set the store's environment variables, or give --storage-option"
    options = " ".join(f"--storage-option {key.lower()}=…" for key in keys)
    return f"set {' and '.join(keys)} in the environment, or give {options}"


def _cause(text: str, status: int | None) -> str:
    """Return the store's message in one line, without markup and request ids."""
    code, message = _CODE.search(text), _MESSAGE.search(text)
    if code:
        return f"{status} {code[1]}: {message[1]}" if message else f"{status} {code[1]}"
    return " ".join(text.split())

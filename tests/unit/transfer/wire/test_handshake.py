"""Who is let in, in which dialect, and what the others are told: in the reference's order."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from lakeferry.errors import (
    Forbidden,
    IncompatibleVersion,
    InvalidInput,
    LakeferryError,
    ObjectNotFound,
    StorageUnavailable,
    Unauthorized,
)
from lakeferry.transfer.wire.handshake import (
    SUBPROTOCOL,
    Agreement,
    ClientRights,
    HandshakeRefusal,
    Operation,
    TokenState,
    bearer_token,
    check_agreed,
    client_headers,
    handshake_error,
    negotiate,
)
from lakeferry.transfer.wire.messages import MessageDialect

PULL, PUSH = Operation.PULL, Operation.PUSH
WEBSOCKET = {
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
GOOD = {**WEBSOCKET, "x-odf-smtp-version": "1", "Authorization": "Bearer abc"}
ALL = ClientRights(TokenState.VALID, dataset_exists=True, may_read=True, may_write=True)
ANONYMOUS = replace(ALL, token=TokenState.ABSENT, may_write=False)


def answer(
    operation: Operation, headers: dict[str, str], access: ClientRights = ALL
) -> Agreement | HandshakeRefusal:
    return negotiate(operation, headers.items(), access)


def status(operation: Operation, headers: dict[str, str], access: ClientRights = ALL) -> int:
    found = answer(operation, headers, access)
    return found.status if isinstance(found, HandshakeRefusal) else 101


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in GOOD.items() if key.lower() != name}


@pytest.mark.parametrize("operation", list(Operation))
def test_without_a_subprotocol_it_is_the_reference_dialect_and_none_is_sent_back(
    operation: Operation,
) -> None:
    assert answer(operation, GOOD) == Agreement(MessageDialect.REFERENCE, None)
    extended = Agreement(MessageDialect.REFERENCE, None, extended=True)
    assert answer(operation, {**GOOD, "X-Lakeferry-Extended": "1"}) == extended
    assert answer(operation, {**GOOD, "X-Lakeferry-Extended": "2"}) != extended
    assert answer(operation, {**GOOD, "Sec-WebSocket-Protocol": "chat"}) == Agreement(
        MessageDialect.REFERENCE, None
    )


@pytest.mark.parametrize("offered", [SUBPROTOCOL, f"chat, {SUBPROTOCOL}", f"{SUBPROTOCOL},x"])
def test_the_published_dialect_is_chosen_by_its_name_with_slashes(offered: str) -> None:
    headers = {**GOOD, "SEC-WEBSOCKET-PROTOCOL": offered}
    assert answer(PULL, headers) == Agreement(MessageDialect.PUBLISHED, SUBPROTOCOL)


def test_an_unknown_version_is_told_so_by_header_or_by_subprotocol() -> None:
    for headers in (
        {**GOOD, "x-odf-smtp-version": "2"},
        {**GOOD, "Sec-WebSocket-Protocol": "odf/smart-transfer-protocol/v2"},
    ):
        found = answer(PULL, headers)
        assert isinstance(found, HandshakeRefusal)
        assert found.status == 400
        assert json.loads(found.body) == {"message": "Incompatible client version"}
        assert found.content_type == "application/json"


@pytest.mark.parametrize("version", [None, "", "one", "1.0", "9" * 50, "1, 2"])
def test_a_version_that_is_missing_or_no_number_is_refused(version: str | None) -> None:
    headers = without("x-odf-smtp-version")
    if version is not None:
        headers["x-odf-smtp-version"] = version
    assert status(PULL, headers) == 400


def test_a_request_that_is_no_websocket_s_is_refused() -> None:
    assert status(PULL, without("upgrade")) == 426
    assert status(PULL, without("connection")) == 426
    assert status(PULL, {**GOOD, "Sec-WebSocket-Version": "8"}) == 426
    assert status(PULL, without("sec-websocket-key")) == 400
    assert status(PULL, {**GOOD, "Sec-WebSocket-Key": "short"}) == 400


@pytest.mark.parametrize("value", ["", "Bearer", "Basic abc", "Bearer a b", "Bearer ä", "abc"])
def test_a_malformed_authorization_is_the_first_thing_to_be_refused(value: str) -> None:
    nothing = ClientRights(TokenState.ABSENT, False, False, False, anonymous_allowed=False)
    found = answer(PULL, {"Authorization": value}, nothing)
    assert found == HandshakeRefusal(400, "Invalid Bearer token header")


def test_tokens_are_found_whatever_the_case_and_only_once() -> None:
    assert bearer_token([("AUTHORIZATION", "bearer  x.y-z")]) == "x.y-z"
    assert bearer_token([("authorization", "Bearer a:b")]) == "a:b"
    assert bearer_token([]) is None
    assert isinstance(bearer_token([("authorization", "Bearer a")] * 2), HandshakeRefusal)


def test_the_order_of_the_refusals_is_the_reference_s() -> None:
    """Each step takes away the reason that came first, and the next one shows."""
    access = ClientRights(TokenState.ABSENT, False, False, False, anonymous_allowed=False)
    assert answer(PULL, {}, access) == HandshakeRefusal(401, "Anonymous account is restricted")
    access = replace(access, token=TokenState.EXPIRED)
    assert answer(PULL, {}, access) == HandshakeRefusal(404)
    expired = HandshakeRefusal(401, "Authentication token expired")
    assert answer(PUSH, {}, access) == expired
    access = replace(access, dataset_exists=True)
    assert answer(PULL, {}, access) == expired
    access = replace(access, token=TokenState.INVALID)
    assert answer(PULL, {}, access) == HandshakeRefusal(401, "Authentication token invalid")
    access = replace(access, token=TokenState.VALID)
    assert answer(PULL, {}, access) == HandshakeRefusal(404)
    access = replace(access, may_read=True)
    assert answer(PUSH, {}, access) == HandshakeRefusal(403)
    assert status(PULL, {}, access) == 426
    assert status(PULL, WEBSOCKET, access) == 400
    assert status(PULL, {**WEBSOCKET, "x-odf-smtp-version": "1"}, access) == 101


def test_an_anonymous_push_is_told_so_only_after_its_version_was_read() -> None:
    assert status(PUSH, WEBSOCKET, ANONYMOUS) == 400
    found = answer(PUSH, {**WEBSOCKET, "x-odf-smtp-version": "2"}, ANONYMOUS)
    assert isinstance(found, HandshakeRefusal)
    assert found.status == 401
    assert "message" in json.loads(found.body)
    assert status(PULL, {**WEBSOCKET, "x-odf-smtp-version": "1"}, ANONYMOUS) == 101


def test_a_push_may_create_a_dataset_only_where_its_account_may() -> None:
    new = replace(ALL, dataset_exists=False)
    assert status(PUSH, GOOD, new) == 101
    assert status(PULL, GOOD, new) == 404
    assert status(PUSH, GOOD, replace(new, may_create=False)) == 403
    assert status(PUSH, GOOD, replace(new, may_write=False)) == 403
    assert status(PUSH, {**GOOD, "x-odf-smtp-version": "2"}, replace(new, may_create=False)) == 400


def test_a_name_that_the_token_doesn_t_cover_looks_the_same_with_and_without_a_dataset() -> None:
    answers = {
        (operation, answer(operation, GOOD, replace(ALL, may_read=False, dataset_exists=there)))
        for operation, there in itertools.product(Operation, (True, False))
    }
    assert answers == {(PULL, HandshakeRefusal(404)), (PUSH, HandshakeRefusal(404))}


@pytest.mark.parametrize("dialect", list(MessageDialect))
@pytest.mark.parametrize("token", [None, "abc"])
def test_what_the_client_sends_is_what_the_server_wants(
    dialect: MessageDialect, token: str | None
) -> None:
    headers = [*WEBSOCKET.items(), *client_headers(dialect, token)]
    access = ALL if token else ANONYMOUS
    found = negotiate(PULL, headers, access)
    assert isinstance(found, Agreement)
    assert found.dialect is dialect
    sent_back = [] if found.subprotocol is None else [("Sec-WebSocket-Protocol", SUBPROTOCOL)]
    check_agreed(dialect, sent_back)


def test_a_server_that_answers_in_another_dialect_is_left() -> None:
    with pytest.raises(IncompatibleVersion):
        check_agreed(MessageDialect.PUBLISHED, [])
    with pytest.raises(IncompatibleVersion):
        check_agreed(MessageDialect.REFERENCE, [("sec-websocket-protocol", SUBPROTOCOL)])


def test_a_token_can_t_break_out_of_its_header() -> None:
    for token in ("a\r\nb", "", "a b"):
        with pytest.raises(InvalidInput):
            client_headers(MessageDialect.REFERENCE, token)


@pytest.mark.parametrize(
    ("code", "body", "kind"),
    [
        (400, '{"message":"Incompatible client version"}', IncompatibleVersion),
        (400, "x-odf-smtp-version is missing", InvalidInput),
        (401, "Authentication token expired", Unauthorized),
        (403, "", Forbidden),
        (404, "", ObjectNotFound),
        (500, "[" * 100_000, StorageUnavailable),
        (200, '{"message":7}', StorageUnavailable),
    ],
    ids=itertools.count(),
)
def test_every_refusal_is_an_error_of_its_own(
    code: int, body: str, kind: type[LakeferryError]
) -> None:
    error = handshake_error(code, body, "https://host/a/b")
    assert type(error) is kind
    assert error.remedy
    assert len(str(error)) < 400

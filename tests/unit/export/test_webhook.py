"""Events of lakeFS: who may send one, what it says, and when it is the same."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeferry.errors import InvalidInput, Unauthorized
from lakeferry.export.webhook import (
    LARGEST_BODY_BYTES,
    SECRET_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    WINDOW_MS,
    authenticate,
    parse_event,
    sign,
)

SECRET = "correct horse battery staple"
COMMIT = "c0ffee" * 10 + "abcd"
NOW_MS = 1_763_200_000_000
COMMITTED: dict[str, Any] = {
    "event_type": "post-commit",
    "event_time": "2025-11-15T09:46:40Z",
    "action_name": "Lakeferry export",
    "hook_id": "lakeferry_export",
    "repository_id": "sales",
    "branch_id": "main",
    "source_ref": COMMIT,
    "commit_id": COMMIT,
    "commit_message": "rows",
    "committer": "somebody",
    "commit_metadata": {"a": "b"},
}
TAGGED = {
    key: value
    for key, value in COMMITTED.items()
    if key not in ("branch_id", "commit_message", "committer", "commit_metadata")
} | {"event_type": "post-create-tag", "tag_id": "v1.0"}


def body(**changes: object) -> bytes:
    said = {**COMMITTED, **changes}
    return json.dumps({key: value for key, value in said.items() if value is not None}).encode()


# --- Who may send one ---------------------------------------------------------------


def test_whoever_sends_the_secret_is_let_in() -> None:
    authenticate(SECRET, {SECRET_HEADER: SECRET}, b"x", NOW_MS)
    authenticate(f"{SECRET}\n", {SECRET_HEADER: f" {SECRET} "}, b"x", NOW_MS)
    # A header is bytes, which servers show as Latin-1.
    authenticate("schlüssel", {SECRET_HEADER: "schlüssel".encode().decode("latin-1")}, b"", NOW_MS)


@pytest.mark.parametrize("headers", [{}, {SECRET_HEADER: ""}, {SECRET_HEADER: "wrong"}])
def test_nobody_else_is(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthorized) as refused:
        authenticate(SECRET, headers, b"x", NOW_MS)
    assert SECRET not in str(refused.value.as_document())


@pytest.mark.parametrize("secret", [None, "", "  "])
@pytest.mark.parametrize("sent", [None, "", "  ", "anything"])
def test_without_a_secret_of_ours_nobody_is_let_in(secret: str | None, sent: str | None) -> None:
    headers = {} if sent is None else {SECRET_HEADER: sent}
    with pytest.raises(Unauthorized, match="isn't configured"):
        authenticate(secret, headers, b"x", NOW_MS)
    signed = {SIGNATURE_HEADER: sign("", NOW_MS // 1000, b"x")}
    with pytest.raises(Unauthorized, match="isn't configured"):
        authenticate(secret, {**signed, TIMESTAMP_HEADER: str(NOW_MS // 1000)}, b"x", NOW_MS)


def signed(at_s: int, data: bytes = b"x", secret: str = SECRET) -> dict[str, str]:
    return {TIMESTAMP_HEADER: str(at_s), SIGNATURE_HEADER: sign(secret, at_s, data)}


@pytest.mark.parametrize("off_s", [0, -WINDOW_MS // 1000, WINDOW_MS // 1000])
def test_a_signature_of_about_now_is_as_good_as_the_secret(off_s: int) -> None:
    authenticate(SECRET, signed(NOW_MS // 1000 + off_s), b"x", NOW_MS)


def test_a_signature_is_for_one_body_one_time_and_one_secret() -> None:
    now_s = NOW_MS // 1000
    right = signed(now_s)
    wrong: list[tuple[dict[str, str], bytes]] = [
        (right, b"y"),
        (signed(now_s, secret="other"), b"x"),
        ({**right, TIMESTAMP_HEADER: str(now_s + 1)}, b"x"),
        ({**right, TIMESTAMP_HEADER: ""}, b"x"),
        ({**right, TIMESTAMP_HEADER: "now"}, b"x"),
        ({SIGNATURE_HEADER: right[SIGNATURE_HEADER]}, b"x"),
        ({**right, SIGNATURE_HEADER: right[SIGNATURE_HEADER].removeprefix("sha256=")}, b"x"),
        ({**right, SIGNATURE_HEADER: ""}, b"x"),
        (signed(now_s - WINDOW_MS // 1000 - 1), b"x"),
        (signed(now_s + WINDOW_MS // 1000 + 1), b"x"),
    ]
    for headers, data in wrong:
        with pytest.raises(Unauthorized):
            authenticate(SECRET, headers, data, NOW_MS)


def test_a_wrong_signature_is_not_made_good_by_the_secret() -> None:
    headers = {**signed(NOW_MS // 1000, b"other"), SECRET_HEADER: SECRET}
    with pytest.raises(Unauthorized, match="signature"):
        authenticate(SECRET, headers, b"x", NOW_MS)


# --- What it says -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["post-commit", "post-merge", "post-revert", "post-cherry-pick"])
def test_a_commit_is_known_by_its_branch(kind: str) -> None:
    event = parse_event(body(event_type=kind, merge_source="dev"))
    assert (event.repository, event.ref, event.commit) == ("sales", "main", COMMIT)
    assert (event.kind, event.time_ms, event.is_tag) == (kind, NOW_MS, False)


@pytest.mark.parametrize("tag", ["v1.0", "release-2026~rc", "ü"])
def test_a_tag_is_known_by_its_name(tag: str) -> None:
    event = parse_event(json.dumps({**TAGGED, "tag_id": tag}).encode())
    assert (event.repository, event.ref, event.commit, event.is_tag) == ("sales", tag, COMMIT, True)


def test_an_event_is_the_same_however_often_and_however_it_is_written() -> None:
    event = parse_event(body())
    assert parse_event(json.dumps(dict(reversed(COMMITTED.items())), indent=2).encode()) == event
    others = [
        {"event_time": "2025-11-15T09:46:41Z"},
        {"commit_id": "d" * 64},
        {"branch_id": "dev"},
        {"repository_id": "other"},
        {"event_type": "post-merge"},
        {"hook_id": "another"},
    ]
    identities = {parse_event(body(**changes)).identity for changes in others}
    assert len(identities | {event.identity}) == len(others) + 1


@pytest.mark.parametrize(
    "changes",
    [
        {"event_type": "pre-commit"},
        {"event_type": "post-delete-tag"},
        {"event_type": None},
        {"event_time": "yesterday"},
        {"event_time": None},
        {"event_time": 5},
        {"repository_id": "../x"},
        {"repository_id": "Sales"},
        {"repository_id": None},
        {"branch_id": None},
        {"branch_id": "a/b"},
        {"branch_id": "x" * 2000},
        {"commit_id": None},
        {"commit_id": "main"},
        {"commit_id": "c0ffee\n"},
        {"event_type": "post-create-tag"},
        {"event_type": "post-create-tag", "tag_id": "../../x"},
        {"event_type": "post-create-tag", "tag_id": "a b"},
        {"event_type": "post-create-tag", "tag_id": "a/b"},
        {"event_type": "post-create-tag", "tag_id": "."},
    ],
)
def test_what_leads_to_no_export_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="isn't an event of lakeFS"):
        parse_event(body(**changes))


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[]", b"null", b"{", b"\xff"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b" " * (LARGEST_BODY_BYTES + 1), id="large"),
    ],
)
def test_what_is_no_event_at_all_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="isn't an event of lakeFS"):
        parse_event(data)


@given(st.dictionaries(st.sampled_from(sorted(COMMITTED)), st.none() | st.text() | st.integers()))
def test_whatever_is_sent_is_an_event_or_refused(changes: dict[str, object]) -> None:
    with suppress(InvalidInput):
        assert len(parse_event(body(**changes)).identity) == 64


def test_an_event_is_current_within_the_window_on_either_side() -> None:
    event = parse_event(body())
    for off_ms in (0, WINDOW_MS, -WINDOW_MS):
        assert event.is_current(NOW_MS + off_ms)
    for off_ms in (WINDOW_MS + 1, -WINDOW_MS - 1):
        assert not event.is_current(NOW_MS + off_ms)

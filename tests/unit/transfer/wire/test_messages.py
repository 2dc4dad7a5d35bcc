"""Both dialects' texts: the reference's own samples, what is refused, and what is bounded."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from lakeferry.errors import (
    CommitConflict,
    Diverged,
    HashMismatch,
    InvalidInput,
    LakeferryError,
    LimitExceeded,
    ObjectNotFound,
    StorageUnavailable,
)
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.wire import failure_messages as f
from lakeferry.transfer.wire import messages as m
from lakeferry.transfer.wire.codec import (
    CLOSE_REASON_BYTES,
    MessageLimits,
    close_reason,
    decode_message,
    encode_failure,
    encode_message,
    failure_in_close,
)
from lakeferry.transfer.wire.messages import MessageDialect
from tests.support.transfer_sessions import DATASET_ID

A = Multihash.sha3_256(b"a")
B = Multihash.sha3_256(b"b")
PLAN = m.TransferPlan(3, 2, 100, 1234, 5678)
SLICE = m.ObjectFile(m.WireObjectKind.DATA_SLICE, A, 5)
CHECKPOINT = m.ObjectFile(m.WireObjectKind.CHECKPOINT, B, 7)
SIGNED = m.TransferUrl("https://s3/x?sig=1", (("a", "b"),), 1_700_000_000_000)
PLAIN = m.TransferUrl("http://host/data/x")
BATCH = m.BlocksBatch(2, bytes([31, 139, 0, 255]))

JSON_PLAN = (
    '{"num_blocks":3,"num_objects":2,"num_records":100,'
    '"bytes_in_raw_blocks":1234,"bytes_in_raw_objects":5678}'
)
JSON_SLICE = f'{{"object_type":"DataSlice","physical_hash":"{A}","size":5}}'
JSON_CHECKPOINT = f'{{"object_type":"Checkpoint","physical_hash":"{B}","size":7}}'
JSON_SIGNED = (
    '{"url":"https://s3/x?sig=1","headers":[{"name":"a","value":"b"}],'
    '"expires_at":"2023-11-14T22:13:20Z"}'
)
JSON_PLAIN = '{"url":"http://host/data/x","headers":[],"expires_at":null}'
JSON_BATCH = (
    '{"num_blocks":2,"media_type":"application/tar+gzip","encoding":"raw","payload":[31,139,0,255]}'
)
REFERENCE: list[tuple[m.Message, str]] = [
    (
        m.PullRequest(),
        '{"begin_after":null,"stop_at":null,"force_update_if_diverged":false}',
    ),
    (
        m.PullRequest(A, B, True),
        f'{{"begin_after":"{A}","stop_at":"{B}","force_update_if_diverged":true}}',
    ),
    (m.PullPlan(PLAN), f'{{"Ok":{{"transfer_plan":{JSON_PLAN}}}}}'),
    (m.PullMetadataRequest(), "{}"),
    (m.PullMetadata(BATCH), f'{{"blocks":{JSON_BATCH}}}'),
    (
        m.PullObjectsRequest((SLICE, CHECKPOINT)),
        f'{{"object_files":[{JSON_SLICE},{JSON_CHECKPOINT}]}}',
    ),
    (
        m.PullObjects((m.ObjectDownload(SLICE, SIGNED), m.ObjectDownload(CHECKPOINT, PLAIN))),
        (
            f'{{"object_transfer_strategies":[{{"object_file":{JSON_SLICE},'
            f'"pull_strategy":"HttpDownload","download_from":{JSON_SIGNED}}},'
            f'{{"object_file":{JSON_CHECKPOINT},"pull_strategy":"HttpDownload",'
            f'"download_from":{JSON_PLAIN}}}]}}'
        ),
    ),
    (
        m.PushRequest(None, PLAN),
        (
            f'{{"current_head":null,"transfer_plan":{JSON_PLAN},'
            '"force_update_if_diverged":false,"visibility_for_created_dataset":"Private"}'
        ),
    ),
    (
        m.PushRequest(A, PLAN, True, m.PushVisibility.PUBLIC),
        (
            f'{{"current_head":"{A}","transfer_plan":{JSON_PLAN},'
            '"force_update_if_diverged":true,"visibility_for_created_dataset":"Public"}'
        ),
    ),
    (m.PushAccepted(), '{"Ok":{}}'),
    (m.PushMetadata(BATCH), f'{{"new_blocks":{JSON_BATCH}}}'),
    (m.PushMetadataAccepted(), '{"Ok":{}}'),
    (
        m.PushObjectsRequest((SLICE,), False),
        f'{{"object_files":[{JSON_SLICE}],"is_truncated":false}}',
    ),
    (m.PushObjectsRequest((), True), '{"object_files":[],"is_truncated":true}'),
    (
        m.PushObjects((m.ObjectUpload(SLICE, None), m.ObjectUpload(CHECKPOINT, SIGNED))),
        (
            f'{{"Ok":{{"object_transfer_strategies":[{{"object_file":{JSON_SLICE},'
            f'"push_strategy":"SkipUpload","upload_to":null}},{{"object_file":{JSON_CHECKPOINT},'
            f'"push_strategy":"HttpUpload","upload_to":{JSON_SIGNED}}}]}}}}'
        ),
    ),
    (m.ProgressRequest(), "{}"),
    (m.UploadProgress(17), '{"details":{"Running":{"uploaded_objects_count":17}}}'),
    (m.UploadProgress(None), '{"details":"Complete"}'),
    (m.PushComplete(), "{}"),
    (m.PushConfirmed(), "{}"),
]
PUBLISHED: list[tuple[m.Message, dict[str, Any]]] = [
    (m.PullRequest(dataset_id=DATASET_ID), {"datasetId": DATASET_ID}),
    (
        m.PullRequest(A, B, dataset_id=DATASET_ID),
        {"datasetId": DATASET_ID, "beginAfter": A.text, "stopAt": B.text},
    ),
    (
        m.PullPlan(m.TransferPlan(3, 2, 0, 4, 5)),
        {
            "sizeEstimation": {
                "numBlocks": 3,
                "numObjects": 2,
                "bytesInRawBlocks": 4,
                "bytesInRawObjects": 5,
                "numRecords": 0,
            }
        },
    ),
    (m.PullMetadataRequest(), {}),
    (
        m.PullMetadata(m.BlocksBatch(2, b"tar", m.TAR)),
        {
            "blocks": {
                "objectsCount": 2,
                "objectType": "MetadataBlock",
                "mediaType": "application/tar",
                "encoding": "base64",
                "payload": "dGFy",
            }
        },
    ),
    (
        m.PullObjectsRequest((m.ObjectFile(m.WireObjectKind.DATA_SLICE, A),)),
        {"objectFiles": [{"objectType": "DataSlice", "physicalHash": A.text}]},
    ),
    (
        m.PullObjects((m.ObjectDownload(SLICE, PLAIN),)),
        {
            "objectTransferStrategies": [
                {
                    "objectFile": {
                        "objectType": "DataSlice",
                        "physicalHash": A.text,
                        "size": 5,
                    },
                    "pullStrategy": "HttpDownload",
                    "downloadFrom": {"url": "http://host/data/x"},
                }
            ]
        },
    ),
    (m.PushAccepted(), {}),
    (m.PushMetadataAccepted(), {}),
    (m.PushComplete(), {}),
    (m.PushConfirmed(), {}),
]


@pytest.mark.parametrize(("message", "text"), REFERENCE, ids=itertools.count())
def test_the_reference_dialect_is_the_reference_byte_for_byte(
    message: m.Message, text: str
) -> None:
    assert encode_message(MessageDialect.REFERENCE, message) == text
    assert decode_message(MessageDialect.REFERENCE, (type(message),), text) == message


@pytest.mark.parametrize(("message", "document"), PUBLISHED, ids=itertools.count())
def test_the_published_dialect_is_what_the_document_says(
    message: m.Message, document: dict[str, Any]
) -> None:
    assert json.loads(encode_message(MessageDialect.PUBLISHED, message)) == document
    assert (
        decode_message(MessageDialect.PUBLISHED, (type(message),), json.dumps(document)) == message
    )


@pytest.mark.parametrize(
    "message",
    [
        m.PushRequest(None, PLAN, True, m.PushVisibility.PUBLIC, DATASET_ID),
        m.PushRequest(A, PLAN, dataset_id=DATASET_ID),
        m.PushMetadata(BATCH),
        m.PushObjectsRequest((SLICE, CHECKPOINT), True),
        m.PushObjects((m.ObjectUpload(SLICE, None), m.ObjectUpload(CHECKPOINT, SIGNED))),
        m.PullRequest(A, None, True, DATASET_ID),
    ],
    ids=itertools.count(),
)
def test_what_the_published_dialect_has_no_member_for_survives_between_ours(
    message: m.Message,
) -> None:
    text = encode_message(MessageDialect.PUBLISHED, message)
    assert decode_message(MessageDialect.PUBLISHED, (type(message),), text) == message


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (
            f.InvalidInterval(A, B),
            f'{{"Err":{{"InvalidInterval":{{"head":"{A}","tail":"{B}"}}}}}}',
        ),
        (
            f.InvalidHead(claimed=A, actual=B),
            f'{{"Err":{{"InvalidHead":{{"actual_head":"{A}","expected_head":"{B}"}}}}}}',
        ),
        (
            f.InvalidHead(claimed=A, actual=None),
            f'{{"Err":{{"InvalidHead":{{"actual_head":"{A}","expected_head":null}}}}}}',
        ),
        (f.SeedOverwrite(), '{"Err":{"SeedBlockOverwriteRestricted":{}}}'),
        (
            f.RefCollision(DATASET_ID),
            f'{{"Err":{{"RefCollision":{{"dataset_id":"{DATASET_ID}"}}}}}}',
        ),
        (
            f.NameCollision("acc/name"),
            '{"Err":{"NameCollision":{"dataset_alias":"acc/name"}}}',
        ),
        (
            f.NameCollision("acc/name", 97, by_same_client=True),
            '{"Err":{"NameCollision":{"dataset_alias":"acc/name","held_s":97,"same":true}}}',
        ),
        (
            f.Internal(f.Phase.PULL_METADATA),
            (
                '{"Err":{"Internal":{"phase":{"Pull":"MetadataRequest"},'
                '"error_message":"Internal error"}}}'
            ),
        ),
        (
            f.Internal(f.Phase.PUSH_COMPLETE),
            (
                '{"Err":{"Internal":{"phase":{"Push":"CompleteRequest"},'
                '"error_message":"Internal error"}}}'
            ),
        ),
    ],
    ids=itertools.count(),
)
def test_refusals_are_the_reference_s_byte_for_byte(failure: f.TransferFailure, text: str) -> None:
    assert encode_failure(MessageDialect.REFERENCE, failure) == text
    assert decode_message(MessageDialect.REFERENCE, (m.PullPlan,), text) == failure
    assert decode_message(MessageDialect.REFERENCE, (m.PushConfirmed,), text) == failure
    assert failure_in_close(text) == failure
    published = encode_failure(MessageDialect.PUBLISHED, failure)
    assert decode_message(MessageDialect.PUBLISHED, (m.PushConfirmed,), published) == failure


def test_a_published_refusal_is_a_dataset_error() -> None:
    said = json.loads(encode_failure(MessageDialect.PUBLISHED, f.InvalidInterval(A, B)))
    assert said == {
        "errorDetails": {
            "errorCode": "InvalidInterval",
            "description": "the two ends have different histories",
            "extras": {"head": A.text, "tail": B.text},
        }
    }
    foreign = '{"errorDetails":{"errorCode":"E42","description":"no"}}'
    assert decode_message(MessageDialect.PUBLISHED, (m.PullPlan,), foreign) == f.Internal(
        None, "no"
    )


@pytest.mark.parametrize("phase", list(f.Phase))
@pytest.mark.parametrize(
    "failure",
    [
        f.InvalidInterval(A, B),
        f.InvalidHead(A, B),
        f.SeedOverwrite(),
        f.RefCollision(DATASET_ID),
        f.NameCollision("account/" + "n" * 100),
        f.NameCollision("ü" * 60),
        f.Internal(f.Phase.PUSH_PROGRESS, 'long "quoted" \n' * 30, "incompatible_version"),
        f.Internal(None, "🦆" * 100, "c" * 200),
    ],
    ids=itertools.count(),
)
def test_every_refusal_fits_into_a_close_frame_as_whole_json(
    failure: f.TransferFailure, phase: f.Phase
) -> None:
    reason = close_reason(MessageDialect.REFERENCE, failure, phase)
    assert len(reason.encode()) <= CLOSE_REASON_BYTES
    found = failure_in_close(reason)
    assert found == failure or isinstance(found, f.Internal)
    if isinstance(found, f.Internal) and not isinstance(failure, f.Internal):
        assert found.phase is phase
        assert type(f.error_of(found)) is type(f.error_of(failure))
    assert (
        len(close_reason(MessageDialect.PUBLISHED, failure, phase).encode()) <= CLOSE_REASON_BYTES
    )


def test_the_collisions_of_real_names_fit_whole() -> None:
    for failure in (f.RefCollision(DATASET_ID), f.NameCollision("account/" + "n" * 60)):
        reason = close_reason(MessageDialect.REFERENCE, failure, f.Phase.PUSH_ENSURING)
        assert failure_in_close(reason) == failure


@pytest.mark.parametrize("reason", ["", "bye", "{}", "[1", '{"Ok":{}}', "[" * 123, '"Err"'])
def test_a_close_without_a_refusal_has_none(reason: str) -> None:
    assert failure_in_close(reason) is None


def test_unknown_members_are_ignored_and_so_a_member_of_the_other_dialect() -> None:
    text = f'{{"beginAfter":"{A}","x":[[{{}}]],"force_update_if_diverged":false}}'
    assert decode_message(MessageDialect.REFERENCE, (m.PullRequest,), text) == m.PullRequest()


@pytest.mark.parametrize("spelling", ["F", "z", "u"])
def test_hashes_are_read_in_every_base(spelling: str) -> None:
    text = f'{{"begin_after":"{A.spelled(spelling)}","force_update_if_diverged":true}}'
    assert decode_message(MessageDialect.REFERENCE, (m.PullRequest,), text) == m.PullRequest(
        A, force=True
    )


def test_times_have_any_fraction_and_zone() -> None:
    for time, expected_ms in [
        ("2023-11-14T22:13:20.123456789Z", 1_700_000_000_123),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
    ]:
        text = REFERENCE[6][1].replace("2023-11-14T22:13:20Z", time)
        found = decode_message(MessageDialect.REFERENCE, (m.PullObjects,), text)
        assert isinstance(found, m.PullObjects)
        assert found.downloads[0].url.expires_at_ms == expected_ms


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (m.PullRequest, "{}"),
        (m.PullRequest, '{"begin_after":"nonsense","force_update_if_diverged":true}'),
        (m.PullRequest, "[]"),
        (m.PullRequest, ""),
        (m.PullRequest, "{"),
        (m.PullRequest, "\ud800"),
        (m.PullPlan, '{"Ok":{"transfer_plan":{"num_blocks":1}}}'),
        (m.PullPlan, f'{{"Ok":{{"transfer_plan":{JSON_PLAN.replace("3", "-3")}}}}}'),
        (m.PullPlan, f'{{"Ok":{{"transfer_plan":{JSON_PLAN.replace("3", "4294967296")}}}}}'),
        (m.PullPlan, f'{{"transfer_plan":{JSON_PLAN}}}'),
        (m.PullMetadata, f'{{"blocks":{JSON_BATCH.replace("[31,139,0,255]", "null")}}}'),
        (m.PullMetadata, f'{{"blocks":{JSON_BATCH.replace("[31,139,0,255]", "H4sA")}}}'),
        (m.PullMetadata, f'{{"blocks":{JSON_BATCH.replace("255", "256")}}}'),
        (m.PullMetadata, f'{{"blocks":{JSON_BATCH.replace("255", "-1")}}}'),
        (m.PullMetadata, f'{{"blocks":{JSON_BATCH.replace("255", "[255]")}}}'),
        (m.PullMetadata, f'{{"blocks":{JSON_BATCH.replace("255", "1.5")}}}'),
        (m.PullMetadata, f'{{"blocks":{JSON_BATCH.replace("raw", "base64")}}}'),
        (m.PullMetadata, f'{{"blocks":{JSON_BATCH.replace("tar+gzip", "zip")}}}'),
        (m.PullObjectsRequest, f'{{"object_files":[{JSON_SLICE.replace("5}", "-1}")}]}}'),
        (m.PullObjectsRequest, '{"object_files":null}'),
        (m.PullObjectsRequest, JSON_SLICE),
        (m.PushObjectsRequest, '{"object_files":[]}'),
        (m.PushObjects, REFERENCE[14][1].replace(JSON_SIGNED, "null")),
        (m.UploadProgress, '{"details":"Done"}'),
        (m.UploadProgress, '{"details":{"Running":{"uploaded_objects_count":3000000000}}}'),
        (m.PushComplete, '{"details":"Complete"}'),
        (m.PushComplete, '{"object_files":[],"is_truncated":false}'),
        (m.PushConfirmed, '{"Ok":{}}'),
        (m.PushConfirmed, "null"),
        (m.PushConfirmed, "[]"),
    ],
    ids=itertools.count(),
)
def test_what_makes_no_sense_is_a_clear_error(kind: type, text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        decode_message(MessageDialect.REFERENCE, (kind,), text)
    assert str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://x/y",
        "//x/y",
        "http://",
        "http://x/\\r\\nHost: y",
        "http://x/ y",
        "http://x/" + "y" * 20_000,
    ],
    ids=itertools.count(),
)
def test_only_http_urls_are_taken(url: str) -> None:
    text = REFERENCE[6][1].replace("http://host/data/x", url)
    with pytest.raises(InvalidInput):
        decode_message(MessageDialect.REFERENCE, (m.PullObjects,), text)


@pytest.mark.parametrize(("name", "value"), [("", "x"), ("a b", "x"), ("a", "x\r\ny"), ("a:", "")])
def test_a_header_can_t_break_out_of_its_request(name: str, value: str) -> None:
    with pytest.raises(InvalidInput):
        m.TransferUrl("http://x/y", ((name, value),))
    with pytest.raises(InvalidInput):
        m.TransferUrl("http://x/y", (("a", "b"),) * 65)


@pytest.mark.parametrize("dialect", MessageDialect)
def test_how_to_send_parts_is_told_to_those_who_can(dialect: MessageDialect) -> None:
    parts = m.UploadParts(
        "https://s3/x?a=1", 16 << 20, ((1, "p=1&s=x"), (3, "p=3&s=y")), is_all=False
    )
    said = m.PushObjects((m.ObjectUpload(SLICE, replace(SIGNED, parts=parts)),))
    text = encode_message(dialect, said)
    assert decode_message(dialect, (m.PushObjects,), text) == said
    assert parts.url_of("p=3&s=y") == "https://s3/x?a=1&p=3&s=y"
    assert "arts" not in encode_message(dialect, m.PushObjects((m.ObjectUpload(SLICE, SIGNED),)))


@pytest.mark.parametrize(
    ("url", "part_bytes", "query"),
    [
        ("file:///x", 1, "p=1"),
        ("http://x/y", 0, "p=1"),
        ("http://x/y", (64 << 20) + 1, "p=1"),
        ("http://x/y", 1, "p=1\r\nHost: z"),
        ("http://x/y", 1, ""),
        ("http://x/y", 1, "p" * 20_000),
    ],
)
def test_parts_can_t_break_out_of_their_request_nor_fill_the_memory(
    url: str, part_bytes: int, query: str
) -> None:
    with pytest.raises(InvalidInput):
        m.UploadParts(url, part_bytes, ((1, query),))


def test_a_message_is_refused_by_its_size_before_it_is_read() -> None:
    limits = MessageLimits(
        500, objects_message_bytes=300, urls_message_bytes=400, message_bytes=100
    )
    kinds: dict[type, int] = {
        **dict.fromkeys((m.PullMetadata, m.PushMetadata), 500),
        **dict.fromkeys((m.PullObjectsRequest, m.PushObjectsRequest), 300),
        **dict.fromkeys((m.PullObjects, m.PushObjects), 400),
        m.PullRequest: 100,
    }
    for kind, most in kinds.items():
        with pytest.raises(LimitExceeded):
            decode_message(MessageDialect.REFERENCE, (kind,), "?" * (most + 1), limits)
        with pytest.raises(InvalidInput):
            decode_message(MessageDialect.REFERENCE, (kind,), "?" * most, limits)
    with pytest.raises(LimitExceeded):
        encode_message(
            MessageDialect.REFERENCE, m.PullMetadata(m.BlocksBatch(1, bytes(500))), limits
        )


def test_the_number_of_objects_is_bounded() -> None:
    text = encode_message(MessageDialect.REFERENCE, m.PullObjectsRequest((SLICE,) * 4))
    with pytest.raises(LimitExceeded):
        decode_message(
            MessageDialect.REFERENCE, (m.PullObjectsRequest,), text, MessageLimits(objects=3)
        )


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_json_ends_in_an_error(opening: str) -> None:
    limits = MessageLimits(message_bytes=10 << 20)
    for text in (opening * 500_000, '{"x":' + opening * 500_000):
        with pytest.raises(LakeferryError):
            decode_message(MessageDialect.REFERENCE, (m.PullRequest,), text, limits)


@pytest.mark.parametrize("size", [0, 1, (1 << 18) - 1, 1 << 18, (1 << 19) + 3])
def test_payloads_of_any_size_come_back(size: int) -> None:
    payload = (bytes(range(256)) * (size // 256 + 1))[:size]
    for dialect in MessageDialect:
        message = m.PullMetadata(m.BlocksBatch(1, payload))
        assert (
            decode_message(dialect, (m.PullMetadata,), encode_message(dialect, message)) == message
        )


def test_members_tell_apart_what_may_come_at_the_same_place() -> None:
    page = '{"objectFiles":[]}'
    expected = (m.PushObjectsRequest, m.PushComplete)
    assert decode_message(MessageDialect.PUBLISHED, expected, page) == m.PushObjectsRequest(
        (), True
    )
    assert decode_message(MessageDialect.PUBLISHED, expected, "{}") == m.PushComplete()
    answers = (m.PushObjects, m.ProgressRequest)
    assert decode_message(MessageDialect.REFERENCE, answers, "{}") == m.ProgressRequest()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (m.PullMetadata, '{"blocks":null}'),
        (m.PushMetadata, '{"newBlocks":null}'),
        (m.PullPlan, '{"transferPlan":null}'),
        (m.PullObjects, '{"objectTransferStrategies":[{"objectFile":null}]}'),
    ],
)
def test_the_published_dialect_knows_no_null_for_what_a_message_is_about(
    kind: type, text: str
) -> None:
    with pytest.raises(InvalidInput):
        decode_message(MessageDialect.PUBLISHED, (kind,), text)


def test_the_published_dialect_has_no_progress_and_needs_an_id() -> None:
    for message in (
        m.UploadProgress(1),
        m.ProgressRequest(),
        m.PullRequest(),
        m.PushRequest(None, PLAN),
    ):
        with pytest.raises(InvalidInput):
            encode_message(MessageDialect.PUBLISHED, message)


def test_a_url_is_stale_shortly_before_its_time_unless_it_came_so() -> None:
    url = m.TransferUrl("http://x/y", (), 1000)
    assert not url.is_stale(received_ms=0, now_ms=800, margin_ms=100)
    assert url.is_stale(received_ms=0, now_ms=900, margin_ms=100)
    assert not url.is_stale(received_ms=1000, now_ms=5000, margin_ms=100)
    assert not PLAIN.is_stale(received_ms=0, now_ms=10**15, margin_ms=100)


def test_the_peer_learns_the_code_of_an_error_and_nothing_of_our_inside() -> None:
    secret = HashMismatch("s3://secret/path", cause="s3://secret/path")
    told = f.failure_of(secret, f.Phase.PUSH_COMPLETE)
    assert "secret" not in encode_failure(MessageDialect.REFERENCE, told)
    reason = close_reason(MessageDialect.REFERENCE, told, f.Phase.PUSH_COMPLETE)
    found = failure_in_close(reason)
    assert found is not None
    assert isinstance(f.error_of(found), HashMismatch)
    other = f.failure_of(ObjectNotFound("s3://secret/path"), f.Phase.PULL_OBJECTS)
    assert other == f.Internal(f.Phase.PULL_OBJECTS)


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (f.InvalidInterval(A, B), Diverged),
        (f.InvalidHead(None, B), CommitConflict),
        (f.SeedOverwrite(), Diverged),
        (f.RefCollision(DATASET_ID), CommitConflict),
        (f.NameCollision("a/b"), CommitConflict),
        (f.NameCollision("a/b", 97), CommitConflict),
        (f.Internal(None), StorageUnavailable),
        (f.Internal(f.Phase.PUSH_COMPLETE, "", "conflict"), CommitConflict),
        (f.Internal(f.Phase.PUSH_COMPLETE, "", "no such code"), StorageUnavailable),
    ],
)
def test_every_refusal_is_an_error_with_a_remedy(
    failure: f.TransferFailure, kind: type[LakeferryError]
) -> None:
    error = f.error_of(failure)
    assert type(error) is kind
    assert error.remedy


def test_unknown_refusals_are_refusals() -> None:
    for text in ('{"Err":{"New":{"x":1}}}', '{"Err":"New"}', '{"Err":{"InvalidHead":7}}'):
        found = decode_message(MessageDialect.REFERENCE, (m.PushAccepted,), text)
        assert isinstance(found, f.Internal)

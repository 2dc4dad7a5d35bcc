"""Our own signatures for S3: the same as obstore's where it has one, and AWS's own example."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

import pytest

from lakeferry.storage import open_store
from lakeferry.storage.cloud_clients import Clients
from lakeferry.storage.sigv4 import key_of, signed_anew
from lakeferry.storage.store import StoreConfig

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
KEYS = {"access_key_id": "AKIAIOSFODNN7EXAMPLE", "secret_access_key": SECRET}
AWKWARD = "a b/ü~*'()&=+,;#x%2F"


def query_of(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query, keep_blank_values=True, strict_parsing=True))


def test_the_example_of_awss_documentation_comes_out() -> None:
    url = (
        "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256"
        "&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
        "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
    )
    signature = "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    assert signed_anew(url, SECRET, "GET") == f"{url}&X-Amz-Signature={signature}"


@pytest.mark.parametrize("method", ["GET", "PUT"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"session_token": "T/+= x"},
        {"region": "eu-west-3", "endpoint": "http://127.0.0.1:9000"},
        {"virtual_hosted_style_request": "true", "endpoint": "https://bucket.h.example"},
    ],
    ids=["aws", "session", "endpoint", "virtual-host"],
)
def test_without_headers_it_is_obstores_signature(method: str, more: dict[str, str]) -> None:
    url = open_store("s3://bucket/pre fix", {**KEYS, **more}).sign(method, AWKWARD, 60)
    assert key_of(url) == KEYS["access_key_id"]
    again = signed_anew(url, SECRET, method)
    assert query_of(again) == query_of(url)
    assert urlsplit(again)[:3] == urlsplit(url)[:3]


def test_headers_and_parameters_change_the_signature_and_are_named() -> None:
    url = open_store("s3://bucket/t", KEYS).sign("PUT", "x", 60)
    bound = signed_anew(
        url, SECRET, "PUT", headers={"If-None-Match": " * "}, query={"partNumber": "3"}
    )
    said = query_of(bound)
    assert said["X-Amz-SignedHeaders"] == "host;if-none-match"
    assert said["partNumber"] == "3"
    assert bound == signed_anew(
        url, SECRET, "PUT", headers={"if-none-match": "*"}, query={"partNumber": "3"}
    )
    signatures = {
        query_of(one)["X-Amz-Signature"]
        for one in (
            url,
            bound,
            signed_anew(url, SECRET, "PUT", headers={"if-none-match": "*"}),
            signed_anew(url, SECRET, "PUT", query={"partNumber": "3"}),
            signed_anew(url, SECRET, "POST"),
            signed_anew(url, SECRET[:-1], "PUT"),
        )
    }
    assert len(signatures) == 6


def test_a_put_is_for_a_size_and_an_absent_name() -> None:
    put = open_store("s3://bucket/t", KEYS).sign_put("x", 7, 60)
    assert put.headers == (("if-none-match", "*"),)
    assert query_of(put.url)["X-Amz-SignedHeaders"] == "content-length;host;if-none-match"


def test_the_secret_is_the_environments_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "env")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "e")
    assert Clients(StoreConfig("s3://bucket/t")).secret_of("env") == "e"
    given = Clients(StoreConfig("s3://bucket/t", KEYS))
    assert given.secret_of(KEYS["access_key_id"]) == SECRET
    assert given.secret_of("env") is None
    assert open_store("s3://bucket/t").sign_put("x", 7, 60).headers


def test_a_key_whose_secret_isnt_known_signs_as_obstore_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Clients, "secret_of", lambda *_: None)
    put = open_store("s3://bucket/t", KEYS).sign_put("x", 7, 60)
    assert put.headers == ()
    assert query_of(put.url)["X-Amz-SignedHeaders"] == "host"


def test_urls_of_other_stores_name_no_key() -> None:
    assert key_of("https://storage.googleapis.com/b/x?X-Goog-Algorithm=GOOG4-RSA-SHA256") is None
    assert key_of("https://a.blob.core.windows.net/c/x?sig=1") is None

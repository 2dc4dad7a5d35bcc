"""Who we are to Unity Catalog: with authorization, without it, and on servers without users."""

from __future__ import annotations

import pytest

from lakeferry.catalogs.unity_users import principal
from lakeferry.errors import CatalogUnavailable, Unauthorized
from tests.support.obedient_server import Reply
from tests.support.unity_server import OurServer


def test_the_user_of_a_token_is_named() -> None:
    with OurServer() as server:
        assert principal(server.url, server.token) == "ann@example.com"
        assert principal(server.url, None) is None


def test_a_server_that_checks_no_tokens_has_no_users() -> None:
    with OurServer() as server:
        server.user = None
        assert principal(server.url, "any") is None


@pytest.mark.parametrize("reply", [(404, b"Not Found"), (406, b""), (501, {})])
def test_a_server_without_the_call_has_no_users(reply: Reply) -> None:
    with OurServer() as server:
        server.next_replies.append(reply)
        assert principal(server.url, server.token) is None


def test_an_answer_without_a_name_is_no_answer() -> None:
    with OurServer() as server:
        server.next_replies.append((200, {"userName": None}))
        with pytest.raises(CatalogUnavailable, match="unexpected"):
            principal(server.url, server.token)
        server.next_replies.append((401, {"error_code": "UNAUTHENTICATED"}))
        with pytest.raises(Unauthorized):
            principal(server.url, server.token)

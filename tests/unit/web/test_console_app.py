"""Who gets which answer from the console: sessions, tokens, hosts, origins, headers, names."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient

from lakeferry.transfer.repository.access_tokens import Scope
from lakeferry.web.local_console import local_console
from lakeferry.web.request_rules import CONTENT_POLICY
from tests.unit.web.console_for_tests import (
    PORT,
    UI,
    ConsoleServer,
    local_visitor,
    record,
    settings,
)

ACTIONS = (
    "/fleet/scan",
    "/fleet/plan",
    "/fleet/run",
    "/fleet/pause",
    "/fleet/withdraw",
    "/fleet/demo",
    "/jobs/1/resume",
    "/jobs/1/cancel",
)


@pytest.fixture
def server(tmp_path: Path) -> ConsoleServer:
    return ConsoleServer(tmp_path)


class TestLocal:
    def test_the_url_is_exchanged_for_a_cookie_and_forgotten(self, tmp_path: Path) -> None:
        _, app, url = local_console(settings(tmp_path), PORT)
        client = TestClient(app, base_url=UI)
        parts = urlsplit(url)
        assert client.get("/-/fleet").status_code == 401
        answer = client.get(f"{parts.path}?{parts.query}", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/-/")
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"lakeferry_ui_{PORT}=")
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert parts.query.partition("=")[2] not in cookie
        assert client.get("/-/fleet").status_code == 200

    def test_another_token_lets_nobody_in(self, tmp_path: Path) -> None:
        _, app, _ = local_console(settings(tmp_path), PORT)
        client = TestClient(app, base_url=UI)
        for token in ("", "x", "ü" * 43, "a" * 10_000):
            answer = client.get("/-/sign-in", params={"token": token})
            assert answer.status_code == 401
            assert "set-cookie" not in answer.headers

    def test_a_link_from_elsewhere_leads_on_from_a_page_of_ours(self, tmp_path: Path) -> None:
        """With a redirect, the browser wouldn't send the new cookie: SameSite=Strict."""
        _, app, url = local_console(settings(tmp_path), PORT)
        client = TestClient(app, base_url=UI)
        link = url.removeprefix(UI)
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        answer = client.get(link, headers=headers, follow_redirects=False)
        assert answer.status_code == 200
        assert 'content="0; url=/-/?again=1"' in answer.text
        assert "set-cookie" in answer.headers

    @pytest.mark.parametrize("host", ["evil.example.com", "127.0.0.1:1", f"evil:{PORT}", ""])
    def test_another_host_is_refused(self, tmp_path: Path, host: str) -> None:
        """A name that leads to 127.0.0.1 is an attack: DNS rebinding."""
        visitor = local_visitor(tmp_path)
        assert visitor.get("/fleet", Host=host)[0] == 403
        assert visitor.get("/sign-in", Host=host)[0] == 403
        assert visitor.get("/static/console.js", Host=host)[0] == 403
        assert visitor.get("/fleet", Host=f"localhost:{PORT}")[0] == 200

    def test_two_programs_keep_their_cookies_apart(self, tmp_path: Path) -> None:
        one, two = local_visitor(tmp_path), local_visitor(tmp_path)
        stolen = dict(two.client.cookies)
        one.client.cookies.clear()
        one.client.cookies.update(stolen)
        assert one.get("/fleet")[0] == 401


class TestServer:
    def test_a_token_is_given_once_and_never_shown(self, server: ConsoleServer) -> None:
        visitor = server.visitor()
        assert visitor.get("/fleet")[0] == 401
        token = server.token()
        answer = visitor.client.post(
            "/-/sign-in",
            data={"csrf": visitor.csrf, "token": token},
            headers={"Origin": server.url},
            follow_redirects=False,
        )
        cookie = answer.headers["set-cookie"]
        assert answer.status_code == 303
        assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Secure", "Path=/-/"))
        assert token not in str(answer.headers)
        text = visitor.page("/fleet")
        assert token not in text
        assert token.split("_", 2)[2] not in text
        assert f"token {token.split('_')[1][:8]}, read only" in text

    def test_a_token_with_a_name_is_called_by_it(self, server: ConsoleServer) -> None:
        visitor = server.visitor()
        visitor.get("/sign-in")
        token = server.tokens.create(Scope.READ, name="<b>Ana")
        assert visitor.post("/sign-in", token=token)[0] == 303
        text = visitor.page("/fleet")
        assert "&lt;b&gt;Ana, read only" in text
        assert token.split("_")[1][:8] not in text

    def test_the_cookie_needs_no_https_without_it(self, tmp_path: Path) -> None:
        server = ConsoleServer(tmp_path, url="http://10.0.0.1:8470")
        visitor = server.visitor()
        assert "Secure" not in visitor.client.get("/-/sign-in").headers["set-cookie"]

    def test_signing_in_needs_a_valid_token_and_our_form(self, server: ConsoleServer) -> None:
        visitor = server.visitor()
        visitor.get("/sign-in")
        for token in ("", "lf_nonsense", "x" * 10_000, server.token() + "x"):
            assert visitor.post("/sign-in", token=token)[0] == 401
            visitor.get("/sign-in")
        visitor.csrf = "forged"
        assert visitor.post("/sign-in", token=server.token())[0] == 403
        visitor.get("/sign-in")
        evil = {"Origin": "https://evil.example.com"}
        assert visitor.post("/sign-in", evil, token=server.token())[0] == 403
        assert visitor.get("/fleet")[0] == 401

    def test_a_revoked_token_ends_the_session(
        self, server: ConsoleServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server.tokens, "_ticks", iter(range(1000)).__next__)
        visitor = server.signed_in()
        visitor.page("/fleet")
        (one,) = server.tokens.all()
        server.tokens.revoke(one.id)
        assert visitor.get("/fleet")[0] == 401
        assert visitor.get("/live")[0] == 401
        assert visitor.get("/fleet", **{"Lakeferry-Live": "1"}) == (401, "")

    def test_signing_out_ends_the_session_at_the_server(self, server: ConsoleServer) -> None:
        visitor = server.signed_in()
        visitor.page("/fleet")
        kept = dict(visitor.client.cookies)
        assert visitor.post("/sign-out")[0] == 303
        visitor.client.cookies.update(kept)
        assert visitor.get("/fleet")[0] == 401

    def test_a_token_for_one_dataset_sees_nothing_of_the_fleet(self, server: ConsoleServer) -> None:
        record(server.console, "file:///lake/secret", plans=True)
        visitor = server.signed_in(Scope.WRITE, "acme/orders")
        paths = ("/fleet", "/fleet/report", "/fleet/tables/1", "/jobs", "/jobs/1", "/live")
        for path in paths:
            status, text = visitor.get(path)
            assert status == 404
            assert "secret" not in text
        visitor.get("/")
        for path in ACTIONS:
            status, text = visitor.post(path, confirmed="yes", uri="file:///lake/secret")
            assert status == 404
            assert "secret" not in text
        assert server.console.work.newest("run") is None

    def test_a_token_to_read_sees_and_does_nothing(self, server: ConsoleServer) -> None:
        record(server.console, "file:///lake/orders", plans=True)
        visitor = server.signed_in(Scope.READ)
        text = visitor.page("/fleet")
        assert "/lake/orders" in text.replace("<wbr>", "")
        assert 'action="/-/fleet/' not in text
        for path in ACTIONS:
            assert visitor.post(path, confirmed="yes", uri="file:///lake/orders")[0] == 403
        assert server.console.records.summary().counts.keys() == {
            table.state for table in server.console.records.tables().tables
        }
        assert server.console.work.running() == []

    def test_places_have_to_be_allowed(self, tmp_path: Path) -> None:
        server = ConsoleServer(tmp_path, places=("s3://new",))
        record(server.console, "file:///lake/orders")
        visitor = server.signed_in(Scope.WRITE)
        for place in ("file:///etc", "/", "s3://newer/x", "file:///lake/../etc", "unity:main"):
            status, text = visitor.post("/fleet/scan", place=place)
            assert status in (400, 403), place
            assert visitor.post("/fleet/plan", to=place)[0] in (400, 403), place
        assert visitor.post("/fleet/plan", to="/etc/{name}")[0] == 403
        assert "--console-place" in text
        assert server.console.work.newest("scan") is None
        assert server.console.work.newest("plan") is None
        assert visitor.post("/fleet/demo", folder=str(tmp_path / "demo"))[0] == 404
        assert not (tmp_path / "demo").exists()
        assert visitor.post("/fleet/plan", to="s3://new/warehouse")[0] == 303

    def test_a_token_for_one_dataset_begins_at_the_datasets(self, server: ConsoleServer) -> None:
        page = server.signed_in(dataset="acme/orders").page("/")
        assert "Your dataset isn’t there yet" in page
        assert "/-/fleet" not in page


class TestForms:
    def test_a_form_needs_the_token_of_its_session(self, tmp_path: Path) -> None:
        visitor = local_visitor(tmp_path)
        other = local_visitor(tmp_path)
        other.page("/fleet")
        for csrf in ("", "x", other.csrf, "ü"):
            visitor.csrf = csrf or " "
            for path in ACTIONS:
                assert visitor.post(path, confirmed="yes")[0] == 403
        assert visitor.console.work.running() == []

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({"Origin": "http://evil.example.com"}, 403),
            ({"Origin": "http://127.0.0.1:1"}, 403),
            ({"Origin": "null", "Sec-Fetch-Site": "cross-site"}, 403),
            ({"Origin": "null", "Sec-Fetch-Site": "same-site"}, 403),
            ({"Origin": UI, "Sec-Fetch-Site": "cross-site"}, 403),
            ({"Origin": "null", "Sec-Fetch-Site": "same-origin"}, 303),
            ({"Origin": "null"}, 303),
            ({"Origin": UI, "Sec-Fetch-Site": "same-origin"}, 303),
        ],
    )
    def test_a_form_comes_from_our_own_pages(
        self, tmp_path: Path, headers: dict[str, str], status: int
    ) -> None:
        visitor = local_visitor(tmp_path)
        assert visitor.post("/fleet/pause", headers, confirmed="yes")[0] == status

    def test_what_is_no_form_is_refused(self, tmp_path: Path) -> None:
        visitor = local_visitor(tmp_path)
        visitor.page("/fleet")
        send = visitor.client.post
        origin = {"Origin": UI}
        assert (
            send("/-/fleet/pause", json={"csrf": visitor.csrf}, headers=origin).status_code == 400
        )
        large = {"csrf": visitor.csrf, "x": "a" * 300_000}
        assert send("/-/fleet/pause", data=large, headers=origin).status_code == 413
        many = {"csrf": visitor.csrf, **{f"f{number}": "" for number in range(200)}}
        assert send("/-/fleet/pause", data=many, headers=origin).status_code == 400

    def test_an_action_is_confirmed_with_its_consequence(self, tmp_path: Path) -> None:
        visitor = local_visitor(tmp_path)
        record(visitor.console, "file:///lake/orders", plans=True)
        status, text = visitor.post("/fleet/pause", stop_running="yes", back="/-/jobs")
        assert status == 200
        assert "lakeferry fleet pause --stop-running" in text
        assert 'name="stop_running" value="yes"' in text
        assert 'href="/-/jobs"' in text
        assert not visitor.console.records.summary().paused
        _, dialog = visitor.post("/fleet/pause", {"Lakeferry-Dialog": "1"}, stop_running="yes")
        assert "<html" not in dialog
        assert visitor.post("/fleet/pause", stop_running="yes", confirmed="yes")[0] == 303
        assert visitor.console.records.summary().paused

    @pytest.mark.parametrize("back", ["https://evil.example.com/", "//evil", "javascript:x", ""])
    def test_a_form_leads_back_to_our_pages_only(self, tmp_path: Path, back: str) -> None:
        _, text = local_visitor(tmp_path).post("/fleet/pause", back=back)
        assert f'href="{back}"' not in text


class TestAnswers:
    def test_each_has_the_headers_that_protect_it(self, server: ConsoleServer) -> None:
        visitor = server.signed_in()
        for path in ("/fleet", "/nothing", "/sign-in", "/static/console.css", "/fleet/tables/99"):
            headers = visitor.client.get(f"/-{path}").headers
            assert headers["content-security-policy"] == CONTENT_POLICY
            assert "unsafe" not in CONTENT_POLICY
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["x-content-type-options"] == "nosniff"
            if not path.startswith("/static"):
                assert headers["cache-control"] == "no-store"

    @pytest.mark.parametrize(
        ("public", "asked", "is_sent"),
        [
            ("https://lake.example.com", "https://lake.example.com", True),
            # A proxy speaks HTTPS for us.
            ("https://lake.example.com", "http://lake.example.com", True),
            ("http://lake.example.com", "http://lake.example.com", False),
            ("http://10.0.0.1:8470", "http://10.0.0.1:8470", False),
            ("http://127.0.0.1:8470", "http://127.0.0.1:8470", True),
            ("http://127.0.0.1:8470", "http://localhost:8470", True),
            ("http://[::1]:8470", "http://[::1]:8470", True),
            ("http://10.0.0.1:8470", "http://localhost.evil:8470", False),
        ],
    )
    def test_windows_are_kept_apart_where_browsers_heed_it(
        self, tmp_path: Path, public: str, asked: str, is_sent: bool
    ) -> None:
        """Elsewhere they warn about the header on the page's console."""
        server = ConsoleServer(tmp_path, url=public)
        answer = TestClient(server.app, base_url=asked).get("/-/sign-in")
        found = answer.headers.get("cross-origin-opener-policy")
        assert found == ("same-origin" if is_sent else None)

    def test_pages_have_nothing_inline(self, tmp_path: Path) -> None:
        visitor = local_visitor(tmp_path)
        record(visitor.console, "file:///lake/orders", plans=True, problems=("bad",))
        for path in ("/fleet", "/jobs", "/jobs/1", "/fleet/tables/1"):
            text = visitor.page(path)
            assert " style=" not in text
            assert "<style" not in text
            assert " onclick=" not in text
            assert text.count("<script") == text.count("<script src=") == 1

    def test_a_static_file_is_kept_while_its_link_is_the_same(self, tmp_path: Path) -> None:
        visitor = local_visitor(tmp_path)
        link = visitor.page("/fleet").partition('href="/-/static/console.css')[2].partition('"')[0]
        named = visitor.client.get(f"/-/static/console.css{link}")
        assert "immutable" in named.headers["cache-control"]
        plain = visitor.client.get("/-/static/console.css?v=old")
        assert plain.headers["cache-control"] == "no-cache"
        for name in ("nothing.css", "..%2fconsole.py", "%2e%2e/console.py"):
            assert visitor.client.get(f"/-/static/{name}").status_code == 404

    def test_names_are_never_markup(self, tmp_path: Path) -> None:
        evil = "<script>alert(1)</script>\"'&"
        visitor = local_visitor(tmp_path)
        uri = "file:///lake/%3Cscript%3Ealert(1)%3C/script%3E%22'&"
        record(visitor.console, uri, plans=True, problems=(evil,))
        for path in ("/fleet", "/jobs", "/jobs/1", "/fleet/tables/1", "/fleet?text=" + evil):
            text = visitor.page(path)
            assert "<script>" not in text
            assert "&lt;script&gt;" in text.replace("<wbr>", "")
        status, text = visitor.post("/fleet/withdraw", uri=evil, x=evil, back=evil)
        assert status == 200
        assert "<script>" not in text

    def test_an_address_that_is_not_there_is_a_page(self, tmp_path: Path) -> None:
        visitor = local_visitor(tmp_path)
        assert visitor.get("/nothing")[0] == 404
        assert visitor.get("/jobs/99999")[0] == 404
        assert visitor.get("/fleet/tables/99999999999999999999")[0] == 404
        assert visitor.client.put("/-/fleet").status_code == 405

    def test_what_a_database_says_is_for_the_user_of_the_machine_alone(
        self, server: ConsoleServer, tmp_path: Path
    ) -> None:
        (tmp_path / "catalog.sqlite").write_bytes(b"no database" * 1000)
        status, text = server.signed_in().get("/fleet")
        assert status == 503
        assert "its log has the reason" in text
        assert str(tmp_path) not in text
        status, text = local_visitor(tmp_path).get("/fleet")
        assert status == 503
        assert "catalog.sqlite" in text

    def test_an_error_shows_its_remedy(self, tmp_path: Path) -> None:
        status, text = local_visitor(tmp_path).post("/fleet/plan")
        assert status == 400
        assert "give a new place for the tables" in text

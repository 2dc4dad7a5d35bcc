"""How visitors sign in: with the address that ``ui`` prints, or with an access token of ``serve``.

``ui``: the URL has a random token, which is exchanged for a cookie; the browser goes on to a URL
without it. ``serve``: a form takes an access token; it stays at the server, and is checked again at
each request, so revoking it ends its sessions. Cookies are HttpOnly and SameSite=Strict.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from lakeferry.errors import Unauthorized
from lakeferry.transfer.repository.access_tokens import LONGEST_TOKEN, Tokens
from lakeferry.web.console_sessions import ConsoleSession, ConsoleSessions
from lakeferry.web.viewer import Viewer

TOKEN_FIELD = "token"


class SignIn(Protocol):
    """Lets visitors in. Both ways keep sessions, and name their cookie."""

    cookie: str
    is_secure: bool
    path: str
    sessions: ConsoleSessions

    def viewer(self, session: ConsoleSession) -> Viewer | None:
        """Return what a session's visitor may do now; ``None`` if it may not come in any more."""

    def admit(self, token: str) -> str:
        """Return the id of a new session for a token, or raise ``Unauthorized``."""


class UserSignIn:
    """``ui``: whoever has the URL is the user."""

    is_secure = False

    def __init__(self, port: int, base: str = "") -> None:
        """Make a token for this process. The cookie's name has the port: cookies have none."""
        self.token = secrets.token_urlsafe(32)
        self.cookie = f"lakeferry_ui_{port}"
        self.path = f"{base}/"
        self.sessions = ConsoleSessions()

    def viewer(self, session: ConsoleSession) -> Viewer | None:  # noqa: ARG002
        """Return the user."""
        return Viewer.of_user()

    def admit(self, token: str) -> str:
        """Return the id of a new session, if the token is this process's."""
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode()):
            raise Unauthorized(
                "this isn't the address that the program printed",
                remedy="open the URL that 'lakeferry ui' printed; each start has another one",
            )
        return self.sessions.begin()[0]


class TokenSignIn:
    """``serve``: whoever has a valid access token comes in, with the rights of the token."""

    def __init__(
        self, tokens: Tokens, *, is_secure: bool, base: str, places: tuple[str, ...] = ()
    ) -> None:
        """Check tokens; with ``is_secure``, browsers send the cookie by HTTPS only."""
        self._tokens = tokens
        self._places = places
        self.is_secure = is_secure
        self.cookie = "lakeferry_session"
        self.path = f"{base}/"
        self.sessions = ConsoleSessions()

    def viewer(self, session: ConsoleSession) -> Viewer | None:
        """Return what the session's token allows now, or ``None`` if it was revoked or expired."""
        if session.token is None:
            return None
        try:
            grant = self._tokens.check(session.token)
        except Unauthorized:
            return None
        return Viewer.of_token(self._tokens.label(session.token), grant, self._places)

    def admit(self, token: str) -> str:
        """Return the id of a new session, if the token is valid."""
        if len(token) > LONGEST_TOKEN:
            raise Unauthorized("Authentication token invalid")
        self._tokens.check(token)
        return self.sessions.begin(token)[0]


def console_session_of(sign_in: SignIn, cookies: Mapping[str, str]) -> ConsoleSession | None:
    """Return the session of a request's cookies."""
    return sign_in.sessions.find(cookies.get(sign_in.cookie))


def let_in(response: Response, sign_in: SignIn, session_id: str) -> None:
    """Give a browser the cookie of its session."""
    response.set_cookie(
        sign_in.cookie,
        session_id,
        path=sign_in.path,
        httponly=True,
        samesite="strict",
        secure=sign_in.is_secure,
    )


def let_out(request: Request, response: Response, sign_in: SignIn) -> None:
    """End the session of a request, and take the cookie back."""
    sign_in.sessions.end(request.cookies.get(sign_in.cookie))
    response.delete_cookie(
        sign_in.cookie,
        path=sign_in.path,
        httponly=True,
        samesite="strict",
        secure=sign_in.is_secure,
    )

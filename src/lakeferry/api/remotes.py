"""Named remotes: short names for servers, as in ``lakeferry push ./orders acme/orders``.

They are in ``remotes.json`` in the user's own configuration folder, and nowhere else. A
``lakeferry.toml`` in the working folder can't define one: whoever wrote it could send the data and
the token of somebody who uses a familiar name to another server. For the same reason a file that
others may write is refused.

The file has no token. A remote may have the name of an environment variable whose value is the
token for this server; then ``LAKEFERRY_TOKEN`` isn't sent there.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from lakeferry import config
from lakeferry.errors import CommitConflict, Forbidden, InvalidInput
from lakeferry.storage.rights import writing
from lakeferry.transfer.client.dataset_urls import parse_url

TOKEN_VARIABLE = "LAKEFERRY_TOKEN"
REMOTES_FILE = "remotes.json"
_REMOTE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_LARGEST_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class NamedRemote:
    """A server with a name."""

    name: str
    url: str
    token_from_env: str | None = None
    """The environment variable with the token for this server."""

    def as_document(self) -> dict[str, Any]:
        """Return one element of ``remotes`` in the output of ``remote list``."""
        return {"name": self.name, "url": self.url, "token_from_env": self.token_from_env}


@dataclass(frozen=True, slots=True)
class FoundRemote:
    """What a name means: a URL, and the token for it if the remote says which one."""

    url: str
    token: str | None = None


class _StoredRemote(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    url: str
    token_from_env: str | None = None


class _RemotesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    remotes: dict[str, _StoredRemote]


_REMOTES_FILE_DECODER = msgspec.json.Decoder(_RemotesFile)


def list_remotes(environment: Mapping[str, str] | None = None) -> list[NamedRemote]:
    """Return the user's remotes, in the order of their names."""
    found = _read(_path(environment))
    return [NamedRemote(name, each.url, each.token_from_env) for name, each in found.items()]


def add_remote(
    name: str,
    url: str,
    *,
    token_from_env: str | None = None,
    environment: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> bool:
    """Give a server a name; return False if it has this name already.

    A name that another server has is refused: remove it first.
    """
    if not _REMOTE_NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:100]!r} can't be the name of a remote",
            remedy="use letters, digits, '.', '_' and '-', and begin with a letter or a digit",
        )
    if token_from_env is not None and not _VARIABLE.fullmatch(token_from_env):
        # It may be the token itself, so it isn't repeated.
        raise InvalidInput(
            "--token-from-env takes the name of an environment variable",
            remedy="write for example --token-from-env ACME_TOKEN",
        )
    shown = url.rstrip("/")
    parse_url(url)
    wanted = _StoredRemote(shown, token_from_env)
    path = _path(environment)
    with _locked(path, dry_run):
        there = _read(path)
        if there.get(name) == wanted:
            return False
        if name in there:
            raise CommitConflict(
                f"there is a remote named {name}",
                cause=f"it is {there[name].url}",
                remedy=f"'lakeferry remote remove {name}' removes it; then add it again",
                name=name,
            )
        if not dry_run:
            _write(path, {**there, name: wanted})
    return True


def remove_remote(
    name: str, *, environment: Mapping[str, str] | None = None, dry_run: bool = False
) -> bool:
    """Remove a name; return False if there was none. Nothing happens to the server."""
    path = _path(environment)
    with _locked(path, dry_run):
        there = _read(path)
        if name in there and not dry_run:
            _write(path, {each: known for each, known in there.items() if each != name})
    return name in there


def is_remote(text: str, environment: Mapping[str, str] | None = None) -> bool:
    """Return True if a text, or what is before its first slash, is the name of a remote."""
    first = text.partition("/")[0]
    return bool(_REMOTE_NAME.fullmatch(first)) and first in _read(_path(environment))


def find_remote(
    text: str, environment: Mapping[str, str] | None = None, *, token: str | None = None
) -> FoundRemote:
    """Return the URL that a text means: it is one, or begins with the name of a remote.

    A ``token`` that the user gave counts instead of the remote's own.
    """
    name, _, rest = text.partition("/")
    if "://" in text or not _REMOTE_NAME.fullmatch(name):
        return FoundRemote(text)
    known = _read(_path(environment)).get(name)
    if known is None:
        raise InvalidInput(
            f"{text[:200]!r} isn't a URL, and there is no remote named {name}",
            remedy=f"write https://host/name, or name the server: lakeferry remote add {name} "
            "https://host",
        )
    url = f"{known.url}/{rest}" if rest else known.url
    return FoundRemote(url, token if token is not None else _token(known, name, environment))


def token_for(
    found: FoundRemote, token: str | None, environment: Mapping[str, str] | None = None
) -> str | None:
    """Return the token for a server: the given one, the remote's own, or ``LAKEFERRY_TOKEN``.

    An empty one means none.
    """
    if token is None:
        token = found.token
    if token is None:
        token = (os.environ if environment is None else environment).get(TOKEN_VARIABLE)
    return token or None


def _token(known: _StoredRemote, name: str, environment: Mapping[str, str] | None) -> str | None:
    variable = known.token_from_env
    if variable is None:
        return None
    token = (os.environ if environment is None else environment).get(variable)
    if not token:
        raise InvalidInput(
            f"the variable {variable} isn't set",
            cause=f"it has the token for the remote {name}",
            remedy=f"set {variable}, or give --token",
            variable=variable,
        )
    return token


def _path(environment: Mapping[str, str] | None) -> Path:
    variables = os.environ if environment is None else environment
    return config.user_file(variables).with_name(REMOTES_FILE)


def _read(path: Path) -> dict[str, _StoredRemote]:
    try:
        with path.open("rb") as file:
            _check_own(path, os.fstat(file.fileno()))
            data = file.read(_LARGEST_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise Forbidden(f"{path} can't be read", cause=error.strerror, file=str(path)) from error
    try:
        found = _REMOTES_FILE_DECODER.decode(data).remotes
    except msgspec.MsgspecError as damaged:
        raise InvalidInput(
            f"{path} can't be read",
            cause=str(damaged),
            remedy="delete the file, and add the remotes again",
            file=str(path),
        ) from damaged
    return dict(sorted(found.items()))


def _check_own(path: Path, found: os.stat_result) -> None:
    """Refuse a file that another user may have written: it says where data and tokens go."""
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if others or found.st_uid not in (os.geteuid(), 0):
        raise Forbidden(
            f"{path} isn't used",
            cause="other users may write to it, and it says where data and tokens are sent",
            remedy=f"look at the file; if it is right: chown $(id -un) {path} && chmod 600 {path}",
            file=str(path),
        )


@contextmanager
def _locked(path: Path, dry_run: bool) -> Iterator[None]:
    """Let other processes wait that change the file."""
    if dry_run:
        yield
        return
    with writing(path, "Lakeferry's configuration folder"):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _write(path: Path, remotes: Mapping[str, _StoredRemote]) -> None:
    content = msgspec.json.encode(_RemotesFile(dict(sorted(remotes.items()))))
    beside = path.with_name(f".{path.name}.new")
    with writing(path, "Lakeferry's configuration folder"):
        beside.unlink(missing_ok=True)
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "wb") as opened:
            opened.write(msgspec.json.format(content))
            opened.flush()
            os.fsync(opened.fileno())
        beside.replace(path)

"""The action file that makes lakeFS call us, and how it gets into a repository.

lakeFS runs the actions in ``_lakefs_actions/`` of the commit that an event is about, so a branch
has the action from when it was created. In a header lakeFS inserts the values of its own
environment variables, if their names begin with ``LAKEFSACTION_``; others are empty there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from lakeferry.errors import (
    CommitConflict,
    InvalidInput,
    LakeferryError,
    ObjectNotFound,
)
from lakeferry.export.webhook import BRANCH_EVENTS, SECRET_HEADER, TAG_EVENTS
from lakeferry.storage import open_store
from lakeferry.storage.lakefs_api import LakeFSAccess
from lakeferry.storage.lakefs_write import LakeFSRepository
from lakeferry.storage.uris import split

PATH = "_lakefs_actions/lakeferry.yaml"
WEBHOOK = "/.lakeferry/lakefs"
"""The path of our webhook for lakeFS, below the server's URL."""
LAKEFS_SECRET_VARIABLE = "LAKEFSACTION_LAKEFERRY_WEBHOOK_SECRET"
"""The variable with the secret, in lakeFS's own environment."""
MESSAGE = "Tell Lakeferry of commits, so that it exports the tables that changed"

_REMEDY = "write a repository's name, lakefs://repository or lakefs://repository/branch"


@dataclass(frozen=True, slots=True)
class Installed:
    """The place of the action file; ``commit`` added it, or already had it."""

    repository: str
    branch: str
    path: str
    commit: str | None
    changed: bool

    def as_document(self) -> dict[str, object]:
        """Return what the command line prints."""
        return {
            "repository": self.repository,
            "branch": self.branch,
            "path": self.path,
            "commit": self.commit,
            "changed": self.changed,
        }


def action_file(url: str) -> bytes:
    """Return the action that calls the server at ``url``."""
    events = "".join(f"  {event}:\n" for event in (*BRANCH_EVENTS, *TAG_EVENTS))
    return f"""\
# Has lakeFS tell Lakeferry of commits and tags; `lakeferry lakefs init` writes this file.
# Which tables are exported is said in _lakefs_tables/*.yaml.
name: Lakeferry export
description: Export the Delta tables that changed
on:
{events}hooks:
  - id: lakeferry_export
    type: webhook
    properties:
      url: {json.dumps(_checked(url) + WEBHOOK)}
      timeout: 30s
      headers:
        {SECRET_HEADER}: "{{{{ ENV.{LAKEFS_SECRET_VARIABLE} }}}}"
""".encode()


def named_action(text: str, branch: str | None) -> tuple[str, str | None]:
    """Return the repository and the branch in a user's text; the branch may be missing."""
    place = split(text if "://" in text else f"lakefs://{text}")
    if place.scheme != "lakefs" or place.path:
        raise InvalidInput(f"{text!r} isn't a lakeFS repository", remedy=_REMEDY)
    repository, ref = place.repository_and_ref
    if ref and branch and ref != branch:
        raise InvalidInput(
            f"{text!r} and --branch {branch} name two branches", remedy="name the branch once"
        )
    return repository, ref or branch or None


def install(
    repository: str,
    branch: str | None,
    url: str,
    options: Mapping[str, str],
    *,
    dry_run: bool = False,
) -> Installed:
    """Write the action file to a branch, by default lakeFS's own choice, and commit it.

    Nothing is written if the file exists already, or if changes are staged on the branch,
    which the commit would include (:class:`~lakeferry.errors.CommitConflict`).
    """
    wanted = action_file(url)
    there = LakeFSRepository(LakeFSAccess.find(options), repository)
    chosen = branch or there.default_branch()
    head = there.head(chosen)
    committed = open_store(f"lakefs://{repository}/{head}", options)
    with suppress(ObjectNotFound):
        if committed.get(PATH) == wanted:
            return Installed(repository, chosen, PATH, head, changed=False)
    if staged := there.staged(chosen, 1):
        raise _dirty(repository, chosen, staged[0])
    if dry_run:
        return Installed(repository, chosen, PATH, None, changed=True)
    there.upload(chosen, PATH, wanted)
    try:
        # Another client may have staged changes meanwhile.
        if others := [path for path in there.staged(chosen, 2) if path != PATH]:
            raise _dirty(repository, chosen, others[0])
        commit = there.commit(chosen, MESSAGE, {"lakeferry.url": _checked(url)})
    except LakeferryError:
        with suppress(LakeferryError):
            there.unstage(chosen, PATH)
        raise
    return Installed(repository, chosen, PATH, commit, changed=True)


def _checked(url: str) -> str:
    """Return the address of a server without a trailing slash."""
    try:
        parts = urlsplit(url.strip())
        fits = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
            and parts.username is None
            and not parts.query
            and not parts.fragment
            and url.strip().isprintable()
        )
    except ValueError:
        fits = False
    if not fits:
        # Don't show the URL: it may have a password in it.
        raise InvalidInput(
            "that isn't the address of a server",
            remedy="give --url the address that lakeferry serve prints, such as https://host:port",
        )
    return url.strip().rstrip("/")


def _dirty(repository: str, branch: str, path: str) -> CommitConflict:
    return CommitConflict(
        f"the branch {branch!r} of {repository!r} has changes that aren't committed",
        cause=f"{path!r} is staged there, and a commit would include it",
        remedy="commit or reset them first, or name another branch with --branch",
        repository=repository,
        branch=branch,
        path=path,
    )

"""Writes the checkpoint of a redirect's last commit, only into the log that has this commit.

Between the commit and its checkpoint, another program can delete the table and create
another one at the same place. Our checkpoint, its checksum file or the hint in that table's
log would be wrong data for everyone who reads it. So each file is put in this order:

1. It is put under a staged name, where no engine reads it.
2. The commit is read again, and must still be ours.
3. The store copies the staged file to its final name. Who deletes the table deletes the
   staged file too, and then there is nothing to copy.
4. When all is written, and also after a failure, the commit is read once more. Files in
   another table's log with exactly the bytes that we wrote are deleted.

What remains: no store can make a write depend on a second object. If a deletion of the whole
table has passed a name and we copy to that name before the deletion ends, the file
stays until step 4; if the process is killed in between, it stays for good. Every writer of a
Delta log has this gap, also when it writes an ordinary checkpoint.

At the source of a redirect nothing is staged, as nothing there would delete staged files after
a kill: steps 2 and 4 are all it has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from lakeferry.errors import LakeferryError, ObjectNotFound
from lakeferry.log import paths
from lakeferry.log.lines import Lines
from lakeferry.redirect import redirect_commits, steps
from lakeferry.redirect.enable import log_staging
from lakeferry.redirect.redirect_context import Setting
from lakeferry.storage import Store
from lakeferry.table import DeltaLog, load

IsOurs = Callable[[bytes, Lines], bool]
"""Whether a commit, as bytes and parsed, is the one that a log is recognized by."""


class TableReplaced(ObjectNotFound):
    """The commit that a log is recognized by isn't there any more."""


class PinnedWrites:
    """Writes log files as long as a version's commit is ours.

    ``stage`` returns the staged name of a log file; without it nothing is staged.
    """

    def __init__(
        self,
        store: Store,
        version: int,
        is_ours: IsOurs,
        stage: Callable[[str], str] | None = None,
    ) -> None:
        """Start with nothing written."""
        self._store = store
        self._version = version
        self._is_ours = is_ours
        self._stage = stage
        self._digests: dict[str, bytes] = {}

    def is_still_there(self) -> bool:
        """Return whether the log has our commit; costs one GET."""
        found = redirect_commits.read_commit(self._store, self._version)
        return found is not None and self._is_ours(*found)

    def put(self, path: str, data: bytes) -> None:
        """Write a log file, replacing an older one."""
        if self._stage is None or _is_unread(path):
            self._check()
            self._digests[path] = hashlib.sha256(data).digest()
            self._store.put(path, data)
        else:
            self._copy(self._stage(path), path, data)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write a log file unless it is there; return whether it was written.

        With a staged name this check comes before the write. Two processes that write the
        same file of the same table at that moment write the same content.
        """
        if self._stage is None or _is_unread(path):
            self._check()
            self._digests[path] = hashlib.sha256(data).digest()
            return self._store.put_if_absent(path, data)
        if self._store.exists(path):
            return False
        return self._copy(self._stage(path), path, data)

    def withdraw(self) -> bool:
        """Delete what was written if the log is another table's by now; return whether it is."""
        if not self._digests or self.is_still_there() or self._is_cleaned():
            return False
        ours = [path for path, digest in self._digests.items() if self._digest(path) == digest]
        log_staging.delete(self._store, ours)
        return True

    def _check(self) -> None:
        if not self.is_still_there():
            raise TableReplaced(
                f"another table is at {self._store.uri}",
                cause=f"{paths.commit(self._version)} isn't the redirect's",
                path=paths.commit(self._version),
            )

    def _copy(self, staged: str, path: str, data: bytes) -> bool:
        self._store.put(staged, data)
        self._check()
        self._digests[path] = hashlib.sha256(data).digest()
        try:
            self._store.copy_within(staged, path)
        except ObjectNotFound:
            # Another process that has settled the same move deletes the staged files too.
            self._check()
            return False
        return True

    def _digest(self, path: str) -> bytes | None:
        try:
            return hashlib.sha256(self._store.get(path)).digest()
        except ObjectNotFound:
            return None

    def _is_cleaned(self) -> bool:
        """Return whether log cleanup may have deleted our commit: it deletes old ones first."""
        if redirect_commits.read_commit(self._store, self._version) is not None:
            return False
        commits = load.list_log(self._store).commits
        return min(commits, default=-1) > self._version


def write_checkpoint(
    setting: Setting,
    log: DeltaLog,
    version: int,
    is_ours: IsOurs,
    stage: Callable[[str], str] | None = None,
) -> None:
    """Write a version's checkpoint and checksum file, unless the log is another table's."""
    writes = PinnedWrites(log.store, version, is_ours, stage)
    if not writes.is_still_there():
        return
    try:
        created = log.checkpoint(version, checksum=True, writer=writes).created
    except TableReplaced:
        created = False
    finally:
        replaced = writes.withdraw()
    if created and not replaced:
        setting.step(steps.checkpoint(log.store.uri, version))


def attempt(
    setting: Setting, what: str, action: Callable[[], object], command: str | None = None
) -> bool:
    """Run ``action`` after a committed transition; return whether it worked.

    The transition is valid, so a failure is only a warning. It says that ``what`` is not done,
    and that ``command`` finishes it once the remedy of the failure has been followed.
    """
    try:
        action()
    except Exception as failed:  # noqa: BLE001 - success isn't to become an error
        remedy = failed.remedy if isinstance(failed, LakeferryError) else None
        first = f"; {remedy}" if remedy else ""
        later = f"; {'then ' if remedy else ''}'lakeferry {command}' finishes it" if command else ""
        setting.warn(f"{what} couldn't be finished: {failed}{first}{later}")
        return False
    return True


def settle_version(
    log: DeltaLog, version: int, setting: Setting, command: str | None = None
) -> bool:
    """Write the checkpoint and the checksum file of a commit that a redirect made."""

    def is_ours(_: bytes, lines: Lines) -> bool:
        return redirect_commits.mark_of(lines.commit_info) is not None

    def write() -> None:
        write_checkpoint(setting, log, version, is_ours)

    what = f"the checkpoint of version {version} of {log.store.uri}"
    return attempt(setting, what, write, command)


def _is_unread(path: str) -> bool:
    """Return whether engines ignore a file unless another one names it: a sidecar."""
    return paths.parse(path) is None and path != paths.LAST_CHECKPOINT

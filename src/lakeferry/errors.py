"""Every error that Lakeferry raises on purpose, in one tree of classes.

::

    LakeferryError
    ├── InvalidInput            invalid_input
    ├── Interrupted             interrupted
    ├── LimitExceeded           limit_exceeded
    ├── PackageMissing          package_missing
    ├── TimedOut                timeout
    ├── TransferError
    │   ├── HashMismatch        hash_mismatch
    │   └── IncompatibleVersion incompatible_version
    ├── TableError
    │   ├── TableNotFound       table_not_found
    │   ├── NotATable           not_a_table
    │   ├── CorruptLog          corrupt_log
    │   ├── UnsupportedFeature  unsupported_feature
    │   │   └── CatalogManaged  catalog_managed
    │   ├── FeatureRequired     feature_required
    │   ├── VersionNotAvailable version_not_available
    │   ├── FeatureNotPresent   feature_not_present
    │   ├── FeatureNotDroppable feature_not_droppable
    │   ├── CheckpointProtected checkpoint_protected
    │   ├── HistoryRequired     history_required
    │   ├── RetentionTooShort   retention_too_short
    │   ├── MissingFile         missing_file
    │   └── NotEqual            not_equal
    ├── RedirectError
    │   ├── RedirectInProgress         redirect_in_progress
    │   ├── RedirectIllegalTransition  redirect_illegal_transition
    │   ├── RedirectRuleViolated       redirect_rule_violated
    │   ├── RedirectTargetNotEmpty     redirect_target_not_empty
    │   ├── RedirectTargetMissing      redirect_target_missing
    │   ├── RedirectTargetReplaced     redirect_target_replaced
    │   ├── RedirectNotFollowed        redirect_not_followed
    │   ├── RedirectSpecInvalid        redirect_spec_invalid
    │   ├── RedirectCycle              redirect_cycle
    │   └── Diverged                   diverged
    ├── CatalogUnavailable      catalog_unavailable
    ├── CommitError
    │   ├── CommitConflict      conflict
    │   └── CommitStateUnknown  commit_state_unknown
    └── StorageError
        ├── ObjectNotFound      not_found
        ├── Forbidden           forbidden
        ├── Unauthorized        unauthorized
        └── StorageUnavailable  storage_unavailable

An error states the problem (``message``), its reason (``cause``) and what the user can do
(``remedy``); ``fields`` have values for programs. The class decides the ``code``, which is
stable and is printed by the command line. Errors are raised and caught as classes; no decision
depends on a message.

This module imports nothing of Lakeferry.
"""

from __future__ import annotations

from typing import ClassVar


class LakeferryError(Exception):
    """Superclass of all of Lakeferry's own errors."""

    code: ClassVar[str] = "error"

    def __init__(
        self, message: str, *, cause: str | None = None, remedy: str | None = None, **fields: object
    ) -> None:
        """Store the problem, its cause, its remedy and the values involved."""
        super().__init__(message)
        self.message = message
        self.cause = cause
        self._remedy: str | None = None
        self.remedy = remedy
        self.fields = fields

    @property
    def remedy(self) -> str | None:
        """What the user can do; a traceback shows it as a note."""
        return self._remedy

    @remedy.setter
    def remedy(self, remedy: str | None) -> None:
        others = [note for note in getattr(self, "__notes__", ()) if note != self._note()]
        self._remedy = remedy
        self.__notes__ = [*others, self._note()] if remedy else others

    def _note(self) -> str:
        return f"remedy: {self._remedy}"

    def __str__(self) -> str:
        """Return problem and cause on one line."""
        return f"{self.message}: {self.cause}" if self.cause else self.message

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the error with every field, so that it survives the way from another process."""
        return (_rebuild, (type(self), self.message, self.cause, self.remedy, self.fields))

    def as_document(self) -> dict[str, object]:
        """Return the ``error`` object that the command line prints."""
        return {"code": self.code, "message": str(self), "remedy": self.remedy, **self.fields}


def _rebuild(
    kind: type[LakeferryError],
    message: str,
    cause: str | None,
    remedy: str | None,
    fields: dict[str, object],
) -> LakeferryError:
    return kind(message, cause=cause, remedy=remedy, **fields)


class InvalidInput(LakeferryError):
    """An argument, an option, a setting or a peer's message that makes no sense."""

    code = "invalid_input"


class Interrupted(LakeferryError):
    """The user stopped the work."""

    code = "interrupted"


class LimitExceeded(LakeferryError):
    """A bound that protects this process or its peer was reached."""

    code = "limit_exceeded"


class PackageMissing(LakeferryError):
    """A Python package isn't installed, or is too old; ``package`` is its name."""

    code = "package_missing"


class TimedOut(LakeferryError):
    """Something did not end within the time it was given."""

    code = "timeout"


class TransferError(LakeferryError):
    """A problem between the two ends of a push or a pull."""


class HashMismatch(TransferError):
    """Bytes don't match their hash; ``expected`` and ``actual`` are the two hashes."""

    code = "hash_mismatch"


class IncompatibleVersion(TransferError):
    """The other end uses, or has written, a version that this program doesn't know."""

    code = "incompatible_version"


class TableError(LakeferryError):
    """A problem with the table itself."""


class TableNotFound(TableError):
    """Nothing is there: no such path, an empty prefix, no such bucket."""

    code = "table_not_found"


class NotATable(TableError):
    """Something is there, and it isn't a Delta table."""

    code = "not_a_table"


class CorruptLog(TableError):
    """The log contradicts itself: a gap, no protocol, no metadata, bytes that don't parse."""

    code = "corrupt_log"


class UnsupportedFeature(TableError):
    """The table needs something that this program doesn't support; ``features`` names it."""

    code = "unsupported_feature"


class CatalogManaged(UnsupportedFeature):
    """A catalog decides which commits count, so the log isn't enough; ``name`` is its name.

    ``None`` there means that the name isn't known.
    """

    code = "catalog_managed"


class FeatureRequired(TableError):
    """The table lacks a feature that the operation needs."""

    code = "feature_required"


class VersionNotAvailable(TableError):
    """The version was never there, or can no longer be rebuilt."""

    code = "version_not_available"


class FeatureNotPresent(TableError):
    """The table doesn't have the feature."""

    code = "feature_not_present"


class FeatureNotDroppable(TableError):
    """The feature can't be dropped, or not while something uses it or depends on it."""

    code = "feature_not_droppable"


class CheckpointProtected(TableError):
    """A rule of checkpoint protection forbids the operation."""

    code = "checkpoint_protected"


class HistoryRequired(TableError):
    """History that must be deleted first is still within its retention, until ``free_at_ms``.

    ``None`` there means that the time isn't known.
    """

    code = "history_required"


class RetentionTooShort(TableError):
    """The table promises to keep its history for longer."""

    code = "retention_too_short"


class MissingFile(TableError):
    """A file that the log names isn't there."""

    code = "missing_file"


class NotEqual(TableError):
    """Two tables that should be equal are not."""

    code = "not_equal"


class RedirectError(LakeferryError):
    """A problem with a redirect from one table to another."""


class RedirectInProgress(RedirectError):
    """A redirect is being set up or withdrawn; writers must wait until that has finished."""

    code = "redirect_in_progress"


class RedirectIllegalTransition(RedirectError):
    """The redirect isn't in a state that allows the operation."""

    code = "redirect_illegal_transition"


class RedirectRuleViolated(RedirectError):
    """A no-redirect rule keeps the session at the source, but doesn't allow the operation."""

    code = "redirect_rule_violated"


class RedirectTargetNotEmpty(RedirectError):
    """The target's place isn't empty."""

    code = "redirect_target_not_empty"


class RedirectTargetMissing(RedirectError):
    """There is no table at the place or name of a redirect's target."""

    code = "redirect_target_missing"


class RedirectTargetReplaced(RedirectError):
    """The table at a redirect's target isn't the table that moved there."""

    code = "redirect_target_replaced"


class RedirectNotFollowed(RedirectError):
    """A statement would read a redirected table at its old place."""

    code = "redirect_not_followed"


class RedirectSpecInvalid(RedirectError):
    """A redirect's entry is invalid; ``value`` is its content."""

    code = "redirect_spec_invalid"


class RedirectCycle(RedirectError):
    """A redirect leads back to its source, or the chain of redirects is too long."""

    code = "redirect_cycle"


class Diverged(RedirectError):
    """Both places have changes of their own, which can't be merged."""

    code = "diverged"


class CatalogUnavailable(LakeferryError):
    """The catalog didn't answer, or its answer is invalid."""

    code = "catalog_unavailable"


class CommitError(LakeferryError):
    """A commit wasn't made, or it isn't known whether it was."""


class CommitConflict(CommitError):
    """Another commit has won, and ours can't be committed after it."""

    code = "conflict"


class CommitStateUnknown(CommitError):
    """The store didn't say whether the commit was made, and reading it back failed, too."""

    code = "commit_state_unknown"


class StorageError(LakeferryError):
    """A problem between us and the store."""


class ObjectNotFound(StorageError):
    """No object has that name; ``path`` is the name."""

    code = "not_found"


class Forbidden(StorageError):
    """The store knows us and denies access."""

    code = "forbidden"


class Unauthorized(StorageError):
    """The store doesn't know us: no credentials, or wrong ones."""

    code = "unauthorized"


class StorageUnavailable(StorageError):
    """The store didn't answer, or its answers were invalid, within bounded retries.

    ``outcome_unknown`` in ``fields`` is true if the request may have been executed.
    """

    code = "storage_unavailable"

"""Every error that Lakeferry raises on purpose, in one tree of classes.

::

    LakeferryError
    ├── InvalidInput            invalid_input
    ├── Interrupted             interrupted
    ├── LimitExceeded           limit_exceeded
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

An error says the problem (``message``), why it came to be (``cause``) and what
the user can do (``remedy``); ``fields`` carry the values that a program may
want. The class decides the ``code``, which is stable and which the command
line prints. Errors are raised as classes and caught as classes; nothing is
decided by looking at a message.

This module imports nothing of Lakeferry.
"""

from __future__ import annotations

from typing import ClassVar


class LakeferryError(Exception):
    """What all of Lakeferry's own errors have in common."""

    code: ClassVar[str] = "error"

    def __init__(
        self, message: str, *, cause: str | None = None, remedy: str | None = None, **fields: object
    ) -> None:
        """Keep the problem, its cause, its remedy and the values involved."""
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
        """Problem and cause on one line, as a person wants to read them."""
        return f"{self.message}: {self.cause}" if self.cause else self.message

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the way back from another process with every field."""
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


class TimedOut(LakeferryError):
    """Something did not end within the time it was given."""

    code = "timeout"


class TransferError(LakeferryError):
    """Something between the two ends of a push or a pull."""


class HashMismatch(TransferError):
    """Bytes are not those that their hash promises; ``expected`` and ``actual`` say which."""

    code = "hash_mismatch"


class IncompatibleVersion(TransferError):
    """The other end speaks, or wrote, a version that this program doesn't know."""

    code = "incompatible_version"


class TableError(LakeferryError):
    """Something about the table itself."""


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
    """The table needs something that this program doesn't do; ``features`` names it."""

    code = "unsupported_feature"


class CatalogManaged(UnsupportedFeature):
    """A catalog decides which commits count, so the log alone doesn't tell; ``name`` is its name.

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
    """A rule of checkpoint protection forbids it."""

    code = "checkpoint_protected"


class HistoryRequired(TableError):
    """History that has to go first is still within its retention; ``free_at_ms`` says until when.

    ``None`` there means that it isn't known.
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
    """Something about a redirect from one table to another."""


class RedirectInProgress(RedirectError):
    """A redirect is being set up or withdrawn; writers wait until that is over."""

    code = "redirect_in_progress"


class RedirectIllegalTransition(RedirectError):
    """The redirect isn't in a state from which that can be done."""

    code = "redirect_illegal_transition"


class RedirectRuleViolated(RedirectError):
    """A no-redirect rule keeps the session at the source, and doesn't allow it that operation."""

    code = "redirect_rule_violated"


class RedirectTargetNotEmpty(RedirectError):
    """Something is where the table should go."""

    code = "redirect_target_not_empty"


class RedirectTargetMissing(RedirectError):
    """A redirect leads to a place or a name where no table is."""

    code = "redirect_target_missing"


class RedirectTargetReplaced(RedirectError):
    """The table at a redirect's target isn't the table that moved there."""

    code = "redirect_target_replaced"


class RedirectNotFollowed(RedirectError):
    """A statement would read a redirected table at its old place."""

    code = "redirect_not_followed"


class RedirectSpecInvalid(RedirectError):
    """A redirect's entry makes no sense; ``value`` is what it says."""

    code = "redirect_spec_invalid"


class RedirectCycle(RedirectError):
    """A redirect leads back to where it began, or on for too long."""

    code = "redirect_cycle"


class Diverged(RedirectError):
    """Both places have changes of their own, and neither can take in the other's."""

    code = "diverged"


class CatalogUnavailable(LakeferryError):
    """The catalog didn't answer, or not in a way that makes sense."""

    code = "catalog_unavailable"


class CommitError(LakeferryError):
    """A commit that was not made, or whose fate isn't known."""


class CommitConflict(CommitError):
    """Somebody else's commit won, and ours can't be put on top of it."""

    code = "conflict"


class CommitStateUnknown(CommitError):
    """The store didn't say whether the commit was made, and couldn't be asked."""

    code = "commit_state_unknown"


class StorageError(LakeferryError):
    """Something between us and the store."""


class ObjectNotFound(StorageError):
    """No object has that name; ``path`` is the name."""

    code = "not_found"


class Forbidden(StorageError):
    """The store knows us and says no."""

    code = "forbidden"


class Unauthorized(StorageError):
    """The store doesn't know us: no credentials, or wrong ones."""

    code = "unauthorized"


class StorageUnavailable(StorageError):
    """The store didn't answer, or not in a way that makes sense, within bounded retries.

    ``outcome_unknown`` in ``fields`` is true where the request may have been carried out.
    """

    code = "storage_unavailable"

"""The methods of ``lakeferry.Table`` that move a table, freeze it, or follow its redirect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, Unpack, overload

from lakeferry.api.located_table import CopyOptions, LocatedTable, Plan, WorkOptions
from lakeferry.api.notebook_progress import progress_in_notebook
from lakeferry.api.redirects import DisableOptions, MoveOptions, Redirects
from lakeferry.catalogs import names
from lakeferry.engine import Observer, unobserved
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.recent_writers import RecentWriter
from lakeferry.redirect.resolve import Resolution
from lakeferry.redirect.status import Status


class RedirectOptions(MoveOptions, CopyOptions, total=False):
    """The options of :meth:`Table.redirect`."""


class RedirectDisableOptions(DisableOptions, CopyOptions, total=False):
    """The options of :meth:`Table.redirect_disable`."""


class RedirectCancelOptions(WorkOptions, total=False):
    """The options of :meth:`Table.redirect_cancel`."""

    leave_copies: bool


class RedirectResumeOptions(CopyOptions, total=False):
    """The options of :meth:`Table.redirect_resume`."""

    name: str | None
    verify: str | None


class RedirectMethods(LocatedTable):
    """The commands of ``lakeferry redirect``, for the table that was named."""

    @overload
    def redirect(
        self, target: str, *, dry_run: Literal[False] = False, **options: Unpack[RedirectOptions]
    ) -> Outcome: ...

    @overload
    def redirect(
        self, target: str, *, dry_run: Literal[True], **options: Unpack[RedirectOptions]
    ) -> Plan: ...

    @overload
    def redirect(
        self, target: str, *, dry_run: bool, **options: Unpack[RedirectOptions]
    ) -> Outcome | Plan: ...

    def redirect(
        self,
        target: str,
        *,
        dry_run: bool = False,
        engine: str = "auto",
        observer: Observer = unobserved,
        limit_rate: int | None = None,
        **options: Unpack[MoveOptions],
    ) -> Outcome | Plan:
        """Move the table to ``target``; ``options`` are those of :meth:`Redirects.enable`.

        ``limit_rate`` is the most bytes per second that this process, or all of Spark's executors
        together, move. What a store copies itself isn't limited. With ``verify="full"`` every file
        that is copied is read at both ends and compared, before the table is READY.
        """
        with self._redirects(engine, observer, limit_rate) as redirects:
            if dry_run:
                return redirects.plan_enable(self.uri, target, **options)
            return redirects.enable(self.uri, target, **options)

    def redirect_status(self) -> Status:
        """Return the state of this table's redirect."""
        with self._redirects() as redirects:
            return redirects.status(self.uri)

    def recent_writers(
        self, target: str, *, mode: str = "reader-writer", dialects: Iterable[str] = ()
    ) -> tuple[RecentWriter, ...] | None:
        """Return who wrote lately, and what a move does to each; :meth:`Redirects.recent_writers`.

        ``None`` if the table has a redirect already. Clients that only read aren't found.
        """
        with self._redirects() as redirects:
            return redirects.recent_writers(self.uri, target, mode=mode, dialects=dialects)

    @overload
    def redirect_resume(
        self, *, dry_run: Literal[False] = False, **options: Unpack[RedirectResumeOptions]
    ) -> Outcome: ...

    @overload
    def redirect_resume(
        self, *, dry_run: Literal[True], **options: Unpack[RedirectResumeOptions]
    ) -> Plan: ...

    @overload
    def redirect_resume(
        self, *, dry_run: bool, **options: Unpack[RedirectResumeOptions]
    ) -> Outcome | Plan: ...

    def redirect_resume(
        self,
        *,
        name: str | None = None,
        dry_run: bool = False,
        engine: str = "auto",
        observer: Observer = unobserved,
        limit_rate: int | None = None,
        verify: str | None = None,
    ) -> Outcome | Plan:
        """Continue an interrupted move, or the way back; see :meth:`Redirects.resume`."""
        with self._redirects(engine, observer, limit_rate) as redirects:
            return redirects.resume(self.uri, name=name, dry_run=dry_run, verify=verify)

    @overload
    def redirect_cancel(
        self, *, dry_run: Literal[False] = False, **options: Unpack[RedirectCancelOptions]
    ) -> Outcome: ...

    @overload
    def redirect_cancel(
        self, *, dry_run: Literal[True], **options: Unpack[RedirectCancelOptions]
    ) -> Plan: ...

    @overload
    def redirect_cancel(
        self, *, dry_run: bool, **options: Unpack[RedirectCancelOptions]
    ) -> Outcome | Plan: ...

    def redirect_cancel(
        self,
        *,
        leave_copies: bool = False,
        dry_run: bool = False,
        engine: str = "auto",
        observer: Observer = unobserved,
    ) -> Outcome | Plan:
        """Undo a move that hasn't passed the point of no return."""
        with self._redirects(engine, observer) as redirects:
            return redirects.cancel(self.uri, leave_copies=leave_copies, dry_run=dry_run)

    @overload
    def redirect_disable(
        self, *, dry_run: Literal[False] = False, **options: Unpack[RedirectDisableOptions]
    ) -> Outcome: ...

    @overload
    def redirect_disable(
        self, *, dry_run: Literal[True], **options: Unpack[RedirectDisableOptions]
    ) -> Plan: ...

    @overload
    def redirect_disable(
        self, *, dry_run: bool, **options: Unpack[RedirectDisableOptions]
    ) -> Outcome | Plan: ...

    def redirect_disable(
        self,
        *,
        bring_back: bool = False,
        remove_target: bool = False,
        data: str | None = None,
        abandon_target: bool = False,
        dry_run: bool = False,
        engine: str = "auto",
        observer: Observer = unobserved,
        limit_rate: int | None = None,
        verify: str | None = None,
    ) -> Outcome | Plan:
        """End the redirect, and bring all changes back to this table.

        With ``abandon_target`` the target isn't used because it is gone, replaced or
        unreachable: what was written there since READY isn't brought back. With ``verify="full"``
        every file that is copied back is read at both ends and compared.
        """
        with self._redirects(engine, observer, limit_rate) as redirects:
            return redirects.disable(
                self.uri,
                bring_back=bring_back,
                remove_target=remove_target,
                data=data,
                abandon_target=abandon_target,
                dry_run=dry_run,
                verify=verify,
            )

    @overload
    def freeze(self, *, dry_run: Literal[False] = False, mode: str = ...) -> Outcome: ...

    @overload
    def freeze(self, *, dry_run: Literal[True], mode: str = ...) -> Plan: ...

    @overload
    def freeze(self, *, dry_run: bool, mode: str = ...) -> Outcome | Plan: ...

    def freeze(self, *, mode: str = "writer-only", dry_run: bool = False) -> Outcome | Plan:
        """Make the table read-only."""
        with self._redirects() as redirects:
            return redirects.freeze(self.uri, mode=mode, dry_run=dry_run)

    @overload
    def thaw(self, *, dry_run: Literal[False] = False) -> Outcome: ...

    @overload
    def thaw(self, *, dry_run: Literal[True]) -> Plan: ...

    @overload
    def thaw(self, *, dry_run: bool) -> Outcome | Plan: ...

    def thaw(self, *, dry_run: bool = False) -> Outcome | Plan:
        """Make the table writable again after :meth:`freeze`."""
        with self._redirects() as redirects:
            return redirects.thaw(self.uri, dry_run=dry_run)

    def resolve(self, app_name: str | None = None, *, write: bool = False) -> Resolution:
        """Return where the table is for a session named ``app_name``, with redirects followed."""
        with self._redirects() as redirects, names.name_in_errors(self._name):
            return redirects.resolve(self.uri, app_name=app_name, write=write)

    @contextmanager
    def _redirects(
        self,
        engine: str = "auto",
        observer: Observer = unobserved,
        limit_rate: int | None = None,
    ) -> Iterator[Redirects]:
        with (
            progress_in_notebook(observer) as shown,
            Redirects(
                self._places,
                engine=engine,
                observer=shown,
                warn=self._warn,
                limit_rate=limit_rate,
            ) as redirects,
        ):
            yield redirects

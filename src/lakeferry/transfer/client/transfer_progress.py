"""What a push or a pull has moved so far, and its result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lakeferry.engine import Observer, Volume
from lakeferry.errors import LakeferryError
from lakeferry.readable import Facts, counted, size
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import ObjectRef


@dataclass(frozen=True, slots=True)
class Transferred:
    """The result of a push or a pull: the head, what was moved now, what existed already."""

    head: str
    blocks: int
    objects: int
    bytes: int
    skipped: int
    changed: bool
    unfinished: Exception | None = None
    """Why something is left for the next command to finish; the content is there."""

    def as_document(self) -> dict[str, Any]:
        """Return the document that the commands print."""
        return {
            "head": self.head,
            "blocks": self.blocks,
            "objects": self.objects,
            "bytes": self.bytes,
            "skipped": self.skipped,
            "changed": self.changed,
        }

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from lakeferry.html_tables import facts_table, notebook_view, warning_list

        facts: Facts = [
            ("head", self.head),
            ("blocks moved", self.blocks),
            ("objects moved", f"{counted(self.objects, 'object')} of {size(self.bytes)}"),
            ("objects that were already there", self.skipped),
        ]
        remarks = [] if self.changed else ["nothing had to be moved"]
        unfinished = [] if self.unfinished is None else [f"left unfinished: {self.unfinished}"]
        return notebook_view("Transfer", facts_table(facts), *remarks, warning_list(unfinished))


_TOLD_EACH_BYTES = 256 * 1024
"""How often the progress inside a large object is reported."""


class TransferProgress:
    """Counts what a transfer has moved, over all of its sessions."""

    def __init__(self, observer: Observer, what: str) -> None:
        """Report to an observer; ``what`` says what is done, such as ``pulling``."""
        self._observer = observer
        self._what = what
        self._expected: dict[Multihash | None, tuple[int, int]] = {}
        self._under_way: dict[ObjectRef, int] = {}
        """How many bytes of large objects have been moved that aren't complete yet."""
        self._by_engine = Volume(0, 0)
        """What an engine has moved and :meth:`moved` hasn't counted yet."""
        self._checked: dict[ObjectRef, tuple[int, int]] = {}
        """Of objects that were partly there: how many bytes were read again, of how many."""
        self._gone = 0
        self.objects = 0
        self.bytes = 0
        self.given_up: LakeferryError | None = None
        """An error that was retried often enough already."""

    def expect(self, refs: Iterable[ObjectRef], part: Multihash | None = None) -> None:
        """Set the objects of one part of the transfer, including those that exist already."""
        sizes = [ref.size_bytes for ref in refs]
        self._expected[part] = (len(sizes), sum(sizes))

    def moved(self, ref: ObjectRef, size_bytes: int) -> None:
        """Count an object that has arrived, and those of its bytes that were moved now."""
        self._under_way.pop(ref, None)
        counted = self._by_engine
        self._by_engine = Volume(max(0, counted - size_bytes), max(0, counted.objects - 1))
        self.objects += 1
        self.bytes += size_bytes
        self._tell()

    def within(self, ref: ObjectRef, size_bytes: int) -> None:
        """Report how many bytes of a large object have been moved, not each piece.

        An object whose request is repeated begins again with fewer bytes.
        """
        before = self._under_way.get(ref, 0)
        if size_bytes // _TOLD_EACH_BYTES != before // _TOLD_EACH_BYTES:
            self._under_way[ref] = size_bytes
            self._tell()

    def checked(self, ref: ObjectRef, size_bytes: int, is_all: bool) -> None:
        """Report how many bytes were read again of an object that was partly received before.

        It isn't known how many there are, but not more than the object has.
        """
        if not size_bytes and ref not in self._checked:
            return
        self._checked[ref] = (size_bytes, size_bytes if is_all else ref.size_bytes)
        done, total = (sum(each) for each in zip(*self._checked.values(), strict=True))
        objects = len(self._checked)
        self._observer(
            "checking received bytes",
            Volume(done, sum(each[0] == each[1] for each in self._checked.values())),
            Volume(total, objects),
        )

    def ahead(self, what: str, done: int, total: int) -> None:  # noqa: ARG002
        """Report an engine's running transfer, which is counted when all of it has arrived."""
        self._by_engine = done if isinstance(done, Volume) else Volume(done, 0)
        self._tell()

    def _tell(self) -> None:
        """Report what is done, with what is under way."""
        total = Volume(sum(size for _, size in self._expected.values()), self._all)
        size_bytes = self.bytes + sum(self._under_way.values()) + self._by_engine
        self._observer(
            self._what, Volume(size_bytes, self.objects + self._by_engine.objects), total
        )

    def gone(self, ref: ObjectRef) -> None:
        """Stop counting an object that doesn't exist anywhere any more."""
        self._under_way.pop(ref, None)
        self._gone += 1

    @property
    def _all(self) -> int:
        return sum(count for count, _ in self._expected.values())

    def result(
        self,
        head: Multihash,
        blocks: int,
        *,
        changed: bool,
        unfinished: Exception | None = None,
    ) -> Transferred:
        """Return the result for the user."""
        skipped = max(0, self._all - self.objects - self._gone)
        amounts = blocks, self.objects, self.bytes, skipped
        return Transferred(head.text, *amounts, changed, unfinished)

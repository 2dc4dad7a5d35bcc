"""Decides which objects a run of received blocks needs, and where it may be divided.

:class:`Judging` reads a peer's run. It finds the objects that the last versions need, those that
only older versions need, and those that must exist already. :class:`DeltaPartEnds` reads a run
that is sent, because each part of it is a run as well and must pass the same check.

Pure, but for one question: which objects exist. The dataset decides whether a run may follow a
head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from lakeferry.errors import HashMismatch, InvalidInput, LimitExceeded, MissingFile
from lakeferry.transfer.chain import validation
from lakeferry.transfer.chain.odf_blocks import ObjectKind, ObjectRef
from lakeferry.transfer.chain.validation import LONGEST_RUN
from lakeferry.transfer.datasets.dataset import Judged, PartEnds
from lakeferry.transfer.datasets.delta import block_checks, root_checkpoints
from lakeferry.transfer.datasets.delta.block_checks import Live
from lakeferry.transfer.datasets.delta.version_blocks import DeltaBlock

_SHOWN = 10


class Judging:
    """Checks a peer's run, block by block; it follows ``tail`` or begins a chain."""

    def __init__(self, tail: validation.ChainHead | None) -> None:
        """Start before the first block."""
        self._tail = tail
        self._live = Live()
        self._refs: dict[tuple[ObjectKind, str | None], ObjectRef] = {}
        self._gone: set[str] = set()
        self._count = 0
        self._begins = False
        self.configuration: Mapping[str, str] = {}
        """The table's properties after the last commit of the run that sets them."""

    def take(self, block: DeltaBlock) -> None:
        """Add a block, if it may follow."""
        if self._count == LONGEST_RUN:
            raise LimitExceeded(
                "too many blocks", cause=f"more than {LONGEST_RUN:,}", limit=LONGEST_RUN
            )
        if self._count == 0:
            self._begins = block.prev_hash is None
        self._tail = validation.link(self._tail, block, first_sequence_number=None)
        named = block_checks.check_version_block(block, self._live)
        if named is not None and named.configuration is not None:
            self.configuration = named.configuration
        for ref in block.objects:
            if self._refs.setdefault((ref.kind, ref.path), ref) != ref:
                raise HashMismatch(
                    "two versions give one path different bytes",
                    cause=ref.path,
                    remedy="ask the owner of the sender's dataset: its chain is damaged",
                    hash=ref.hash.text,
                )
        self._gone.update(block.gone)
        self._count += 1

    def judged(self, *, is_first: bool) -> Judged:
        """Return the result, if no object is lost; before a first run no object exists."""
        self._refuse_lost()
        required: list[ObjectRef] = []
        optional: list[ObjectRef] = []
        for ref in self._refs.values():
            needed = ref.kind is ObjectKind.CHECKPOINT or (ref.path or "") in self._live
            (required if needed else optional).append(ref)
        known = {ref.path for ref in self._refs.values()}
        assumed = tuple(sorted(path for path in self._live.assumed if path not in known))
        if assumed and is_first:
            raise InvalidInput(
                "a table's first versions keep a file that none of them adds", cause=assumed[0]
            )
        root_checkpoints.check_checkpoint_size(self._refs.values())
        return Judged(self._count, tuple(required), tuple(optional), self._begins, assumed)

    def _refuse_lost(self) -> None:
        lost = sorted(
            path
            for path in self._gone
            if path in self._live and (ObjectKind.DATA_SLICE, path) not in self._refs
        )
        if lost:
            raise MissingFile(
                f"{len(lost):,} files of the table's newest version are missing",
                cause=f"the sender doesn't have them: {', '.join(lost[:_SHOWN])}",
                remedy="restore them in the sender's table",
                missing=lost[:_SHOWN],
                missing_count=len(lost),
            )


Sizes: TypeAlias = Callable[[Sequence[ObjectRef]], Sequence[int | None]]
"""Returns the size of each object, ``None`` for one that doesn't exist."""


class DeltaPartEnds(PartEnds):
    """Follows a sent run; a part doesn't end where a version needs a file that is gone by now."""

    def __init__(self, sizes: Sizes) -> None:
        """Start before the first block."""
        self._sizes = sizes
        self._live = Live()
        self._new: dict[str, ObjectRef] = {}
        self._lost: dict[str, ObjectRef] = {}
        self._never_known: set[str] = set()

    @property
    def may_end(self) -> bool:
        """Return True if all objects that are needed now exist."""
        return not any(path in self._live for path in (*self._gone(), *self._never_known))

    @property
    def absent(self) -> set[ObjectRef]:
        """Objects that don't exist and aren't needed."""
        return {ref for path, ref in self._gone().items() if path not in self._live}

    def take(self, block: DeltaBlock) -> None:
        """Add the objects that a block names."""
        block_checks.check_version_block(block, self._live)
        self._new |= {ref.path: ref for ref in block.files if ref.path is not None}
        # The receiver treats these as lost, unless another version adds them.
        self._never_known.update(block.gone)
        self._never_known.difference_update(ref.path or "" for ref in block.files)

    def _gone(self) -> dict[str, ObjectRef]:
        """Return the objects that don't exist; each is looked up once."""
        refs = list(self._new.values())
        for ref, size in zip(refs, self._sizes(refs), strict=True):
            if size is None and ref.path is not None:
                self._lost[ref.path] = ref
        self._new = {}
        return self._lost

"""Checks that a block lists what its commit names, and keeps which objects are live."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lakeferry.errors import InvalidInput
from lakeferry.transfer.datasets.delta.named_files import Named, commit_names
from lakeferry.transfer.datasets.delta.version_blocks import DeltaBlock


def check_version_block(block: DeltaBlock, live: Live) -> Named | None:
    """Return what a block's commit names; refuse it if the block lists other objects.

    Also refuse a commit that can't be read, that names something outside of the table, or that
    enables a feature under which copying bytes doesn't copy the table. ``live`` has the files
    after the versions before; this version is added to it.
    """
    if block.root is not None:
        root_named = None
        if block.commit is not None:
            # A root's commit repeats part of the checkpoint, and readers of changes read it.
            root_named = commit_names(block.commit, block.sequence_number)
            _check_identity(block, root_named)
        live.begin(block)
        return root_named
    listed = {ref.path for ref in block.files} | set(block.gone)
    named = commit_names(block.commit or b"", block.sequence_number)
    _check_identity(block, named)
    if not listed <= named.added | named.changes:
        raise _broken(block, "it lists objects that its commit doesn't name")
    if unlisted := (named.added | named.changes) - listed - named.removed_paths:
        raise _broken(block, f"it doesn't list {sorted(unlisted)[0]!r}, which its commit adds")
    live.take(named)
    return named


def _check_identity(block: DeltaBlock, named: Named) -> None:
    if named.table_id is not None and named.table_id != block.table_id:
        raise _broken(block, f"its table is {named.table_id} instead of {block.table_id}")
    if block.sequence_number == 0 and (named.table_id is None or not named.has_protocol):
        raise _broken(block, "version 0 has a protocol and metadata")


class Live:
    """The objects that are live at the end of a run, of those that it named."""

    def __init__(self) -> None:
        """Start without files: versions before the run aren't known."""
        self.assumed: set[str] = set()
        """Files that a commit only gives another vector, and that the run didn't add."""
        self._vectors: dict[str, str | None] = {}
        self._uses: Counter[str] = Counter()

    def begin(self, block: DeltaBlock) -> None:
        """Add the files of a root."""
        assert block.root is not None
        vectors = block.root.vectors
        holds = set(vectors.values())
        for path in [*(ref.path or "" for ref in block.files), *block.gone]:
            if path not in holds:
                self._add(path, vectors.get(path))

    def take(self, named: Named) -> None:
        """Apply a commit."""
        for path in named.removed_paths:
            if path in named.adds and path not in self._vectors:
                self.assumed.add(path)
            self._remove(path)
        for path, vector in named.adds.items():
            self._remove(path)
            self._add(path, vector)

    def _add(self, path: str, vector: str | None) -> None:
        self._vectors[path] = vector
        if vector is not None:
            self._uses[vector] += 1

    def _remove(self, path: str) -> None:
        vector = self._vectors.pop(path, None)
        if vector is not None:
            self._uses[vector] -= 1

    def __contains__(self, path: str) -> bool:
        return path in self._vectors or self._uses[path] > 0

    def __iter__(self) -> Iterator[str]:
        yield from self._vectors
        yield from (path for path, uses in self._uses.items() if uses > 0)


def _broken(block: DeltaBlock, cause: str) -> InvalidInput:
    return InvalidInput(
        f"the block of version {block.sequence_number} contradicts itself",
        cause=cause,
        remedy="ask the owner of the sender's dataset: its chain is damaged",
        hash=block.hash.text,
    )

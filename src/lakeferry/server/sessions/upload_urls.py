"""Decides which objects of a push get a URL, and remembers which ones the client may have put.

An object that exists with the right size gets none. Large objects are uploaded in parts by the
clients that can do that.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakeferry.server.sessions.object_name_claims import Promises
from lakeferry.transfer.chain.odf_blocks import ObjectRef
from lakeferry.transfer.datasets.delta.delta_dataset import DeltaDataset
from lakeferry.transfer.datasets.odf import OdfDataset
from lakeferry.transfer.repository.push_records import PushRecord
from lakeferry.transfer.repository.signed_urls import (
    PART_URL_BYTES,
    PARTS_AT_ONCE,
    URL_BYTES,
    Links,
)
from lakeferry.transfer.wire.messages import ObjectFile, TransferUrl

IN_PARTS_BYTES = 64 << 20
"""Clients that can, upload larger objects in parts, so that they can resume an upload."""


class UploadUrls:
    """Makes the URLs of one push."""

    def __init__(
        self,
        links: Links,
        *,
        puts_prove: bool,
        extended: bool,
        urls_last_s: int,
        promises: Promises,
    ) -> None:
        """Start without URLs; the arguments are those of a push."""
        self._links = links
        self._puts_prove = puts_prove
        self._extended = extended
        self._urls_last_s = urls_last_s
        self._promises = promises
        self._in_parts: dict[str, ObjectRef] = {}
        self.granted: set[ObjectRef] = set()
        """Objects that were missing when URLs were made; the client may have put them since."""

    def make(
        self,
        dataset: OdfDataset | DeltaDataset,
        refs: Sequence[ObjectRef],
        record: PushRecord | None,
    ) -> tuple[TransferUrl | None, ...]:
        """Return a URL for each object that is missing; ``record`` keeps these objects."""
        sizes = dataset.sizes(refs)
        found = list(zip(refs, sizes, strict=True))
        # A PUT never replaces a file.
        wrong = [ref for ref, size in found if size is not None and size != ref.size_bytes]
        if wrong:
            dataset.make_room(wrong)
        missing = [ref for ref, size in found if size != ref.size_bytes]
        self.granted.update(missing)
        if record is not None:
            record.grant(map(dataset.place, missing))
        named: set[ObjectRef] = set()
        urls: list[TransferUrl | None] = []
        for ref, size in found:
            is_to_come = size != ref.size_bytes and self._is_its_turn(dataset, ref, named)
            urls.append(self._url(dataset, ref) if is_to_come else None)
        return tuple(urls)

    def join_parts(self) -> None:
        """Join the objects that were uploaded in parts."""
        for path, ref in self._in_parts.items():
            self._links.join_parts(path, ref.size_bytes, ref.hash)

    def release(self) -> None:
        """Let other sessions upload the objects that this one was about to send."""
        self._promises.release(self)

    def _is_its_turn(
        self, dataset: OdfDataset | DeltaDataset, ref: ObjectRef, named: set[ObjectRef]
    ) -> bool:
        """Return False if the object is being sent already and the store refuses a second PUT."""
        if self._puts_prove or self._extended:
            return True
        first = ref not in named
        named.add(ref)
        return first and self._promises.claim(self, dataset.place(ref))

    def _url(self, dataset: OdfDataset | DeltaDataset, ref: ObjectRef) -> TransferUrl | None:
        path, shown = dataset.place(ref), dataset.address(ref)
        if self._extended and ref.size_bytes > IN_PARTS_BYTES:
            self._in_parts[path] = ref
            return self._links.put_parts(
                path, ref.size_bytes, ref.hash, lasts_s=self._urls_last_s, shown=shown
            )
        return self._links.put(path, ref.size_bytes, lasts_s=self._urls_last_s, shown=shown)


def urls_bytes(objects: Sequence[ObjectFile]) -> int:
    """Return about the most bytes that the URLs of these objects take in a message."""
    in_parts = sum((one.size_bytes or 0) > IN_PARTS_BYTES for one in objects)
    return len(objects) * URL_BYTES + in_parts * PARTS_AT_ONCE * PART_URL_BYTES

"""Random damage to what a peer sends, and the verdict on what the readers make of it.

One number is one case: :func:`damaged` takes a block, an archive of blocks or a name, and
damages it; :func:`verdict` has it read. Reading must end with an error that has a code, or
with exactly what a second reader finds in the same bytes: the FlatBuffers runtime for blocks,
Python's ``tarfile`` for archives. ::

    python -m tests.support.transfer_fuzz FIRST COUNT

runs the cases and prints what failed; with ``COUNT`` of 1 it is the replay of one failure.
"""

from __future__ import annotations

import io
import random
import sys
import tarfile
import traceback
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from lakeferry.errors import LakeferryError
from lakeferry.transfer.chain import odf_blocks
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.wire import tarball
from tests.support import odf
from tests.support.odf import (
    AddData,
    Chain,
    Checkpoint,
    ExecuteTransform,
    Other,
    SeedEvent,
    SetDataSchema,
    SetInfo,
    Slice,
    hash_of,
)

MEMORY_BYTES = 2 << 20
"""All that reading one case may take: no case has more than some kilobytes."""
LIMITS = tarball.ArchiveLimits(packed_bytes=1 << 20, unpacked_bytes=1 << 20, entries=50)
KINDS = ("block", "content", "archive", "headers", "gzip", "name")

_NUMBERS = (0, 1, 2, 3, 4, 5, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFE, 0xFFFF)
_LARGE = (0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1)


@dataclass(frozen=True, slots=True)
class Case:
    """What is read: of which kind it is, and its bytes after the damage."""

    kind: str
    data: bytes


@dataclass(slots=True)
class Report:
    """What many cases came to."""

    failures: list[str] = field(default_factory=list)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often each kind of case was read, or refused with which code."""


@cache
def samples() -> tuple[bytes, ...]:
    """Return good blocks that together have every field that is read."""
    slice_ = Slice(hash_of("a"), 5, 9, 1_000, logical_hash=hash_of("b"))
    checkpoint = Checkpoint(hash_of("c"), 17)
    state = ("source", "odf/etag", "value")
    add_data = AddData(hash_of("d"), 4, slice_, checkpoint, odf.NOON_NS, state)
    inputs = [odf.DATASET_ID, odf.DATASET_ID]
    transform = ExecuteTransform(inputs, hash_of("d"), 4, slice_, checkpoint, odf.NOON_NS)
    events: list[odf.Event] = [
        *(add_data, transform, AddData(), SeedEvent(dataset_kind=1)),
        *(SetInfo("text", ["one", "two"]), SetDataSchema([("a", 1), ("b", 2)]), Other(13)),
    ]
    return tuple(
        odf.block(event, prev=hash_of("p"), sequence_number=7, version=version)
        for event in events
        for version in odf_blocks.READABLE_VERSIONS
    )


@cache
def archive() -> bytes:
    """Return a good archive, not yet gzipped."""
    chain = Chain().add(SetInfo("x")).append(checkpoint="one").append()
    return b"".join(tarball.pack_blocks(chain.blocks, gzip=False))


def damaged(seed: int) -> Case:
    """Return the case of a number."""
    chance = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    if kind == "block":
        return Case(kind, damage(chance, chance.choice(samples())))
    if kind == "content":
        # Inside of a sound manifest, so that more than its outermost table is reached.
        content = odf.content_of(chance.choice(samples()))
        return Case(kind, odf.manifest(damage(chance, content)))
    if kind == "archive":
        return Case(kind, _gzipped(damage(chance, archive())))
    if kind == "headers":
        return Case(kind, _gzipped(_damaged_headers(chance)))
    if kind == "gzip":
        return Case(kind, damage(chance, _gzipped(archive())))
    text = hash_of(str(seed)).spelled(chance.choice("fFzu"))
    return Case(kind, damage(chance, text.encode()))


def verdict(case: Case) -> tuple[str, str | None]:
    """Return what reading a case ended with, and what is wrong with that; ``None`` if nothing."""
    try:
        return "read", _READERS[case.kind](case.data)
    except LakeferryError as error:
        return error.code, None if error.code != LakeferryError.code else "it has no code"
    except Exception:  # noqa: BLE001 – any other exception is what is looked for
        return "failed", traceback.format_exc()


def run(first: int, count: int, *, measured: bool = False) -> Report:
    """Run cases; where that is measured, each within its share of memory."""
    report = Report()
    for seed in range(first, first + count):
        case = damaged(seed)
        if measured:
            tracemalloc.start()
        outcome, wrong = verdict(case)
        if measured:
            _, peak_bytes = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            if peak_bytes > MEMORY_BYTES:
                wrong = f"it took {peak_bytes:,} bytes of memory"
        report.outcomes[case.kind, outcome] += 1
        if wrong is not None:
            report.failures.append(f"case {seed} ({case.kind}): {wrong}")
    return report


def _read_block(data: bytes) -> str | None:
    found = odf_blocks.parse_odf_block(data)
    expected = odf.naive(data)
    return None if found == expected else f"read as {found}, and the runtime says {expected}"


def _read_archive(data: bytes) -> str | None:
    found = [(name.text, content) for name, content in tarball.unpack(data, limits=LIMITS)]
    expected = _second_reading(zlib.decompress(data, 31))
    # It stops at fields that nobody needs; up to there both have to see the same.
    if found[: len(expected)] != expected:
        return f"read as {found}, and tarfile finds {expected}"
    return None


def _second_reading(archive: bytes) -> list[tuple[str, bytes]]:
    found = []
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as opened:
            for member in opened:
                file = opened.extractfile(member)
                content = file.read() if file else b""
                found.append((Multihash.parse(member.name).text, content))
    except tarfile.ReadError:
        # Already its first header.
        assert not found
    return found


def _read_name(data: bytes) -> str | None:
    text = data.decode("latin-1")
    found = Multihash.parse(text)
    return None if text in map(found.spelled, "fFzu") else f"{text!r} was taken for {found}"


_READERS: dict[str, Callable[[bytes], str | None]] = {
    "block": _read_block,
    "content": _read_block,
    "archive": _read_archive,
    "headers": _read_archive,
    "gzip": _read_archive,
    "name": _read_name,
}


def _gzipped(data: bytes) -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    return packer.compress(data) + packer.flush()


def _damaged_headers(chance: random.Random) -> bytes:
    """Return an archive with damage to some header, whose checksum is right again."""
    data = bytearray(archive())
    headers = [at for at in range(0, len(data), 512) if data[at + 257 : at + 262] == b"ustar"]
    at = chance.choice(headers)
    header = bytearray(damage(chance, bytes(data[at : at + 512])).ljust(512, b"\0")[:512])
    header[148:156] = b" " * 8
    header[148:156] = b"%07o\0" % sum(header)
    data[at : at + 512] = header
    return bytes(data)


def damage(chance: random.Random, data: bytes) -> bytes:
    damaged = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(damaged) + 1)
        match chance.randrange(8):
            case 0:
                if at < len(damaged):
                    damaged[at] ^= 1 << chance.randrange(8)
            case 1:
                damaged[at : at + 1] = bytes([chance.randrange(256)])
            case 2:
                damaged[at & ~1 : (at & ~1) + 2] = chance.choice(_NUMBERS).to_bytes(2, "little")
            case 3:
                number = chance.choice(_NUMBERS + _LARGE) & 0xFFFFFFFF
                damaged[at & ~3 : (at & ~3) + 4] = number.to_bytes(4, "little")
            case 4:
                damaged[at & ~7 : (at & ~7) + 8] = chance.choice(_LARGE).to_bytes(8, "little")
            case 5:
                del damaged[at:]
            case 6:
                del damaged[at : at + chance.randrange(1, 16)]
            case _:
                start = chance.randrange(len(damaged) + 1)
                damaged[at:at] = damaged[start : start + chance.randrange(1, 600)]
    return bytes(damaged)


if __name__ == "__main__":
    ran = run(int(sys.argv[1]), int(sys.argv[2]))
    print(*sorted(ran.outcomes.items()), *ran.failures, sep="\n")
    sys.exit(bool(ran.failures))

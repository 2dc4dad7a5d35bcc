"""Archives of blocks: byte for byte as they were, and nothing that a stranger could hide in one."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import tracemalloc
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from lakeferry.errors import InvalidInput, LakeferryError, LimitExceeded
from lakeferry.transfer.chain.hashes import Algorithm, Multihash
from lakeferry.transfer.wire import tarball
from lakeferry.transfer.wire.tarball import ArchiveLimits, pack_blocks, unpack
from tests.support.odf import Chain, SetInfo, hash_of

BLOCKS = Chain().add(SetInfo("x")).append(checkpoint="one").append().blocks
MIB = 1 << 20
GB = 10**9
NAME = hash_of("a").text


def packed(blocks: Iterable[tuple[Multihash, bytes]] = BLOCKS, **options: Any) -> bytes:
    return b"".join(pack_blocks(blocks, **options))


def entry(name: str = NAME, data: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def tar(*entries: tuple[tarfile.TarInfo, bytes], format: int = tarfile.GNU_FORMAT) -> bytes:
    """Return an archive as Python writes it."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as archive:
        for info, data in entries:
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def header(name: bytes = NAME.encode(), **places: bytes) -> bytes:
    """Return one header, with other bytes at the places ``at_<number>``, and its right checksum."""
    made = bytearray(packed([(hash_of("a"), b"")], gzip=False)[:512])
    made[:100] = name.ljust(100, b"\0")
    for place, value in places.items():
        at = int(place.removeprefix("at_"))
        made[at : at + len(value)] = value
    made[148:156] = b" " * 8
    made[148:156] = b"%06o\0 " % sum(made)
    return bytes(made)


def unpacked(payload: bytes, **options: Any) -> list[tuple[Multihash, bytes]]:
    return list(unpack(gzip.compress(payload), **options))


# --- Good ones ----------------------------------------------------------------------------


def test_blocks_come_out_as_they_went_in() -> None:
    assert list(unpack(packed())) == BLOCKS
    assert list(unpack(packed([]))) == []
    sizes = [(hash_of(str(size)), bytes(size)) for size in (0, 1, 511, 512, 513, 200_000)]
    assert list(unpack(packed(sizes))) == sizes


def test_the_same_blocks_make_the_same_payload() -> None:
    assert packed() == packed()
    assert packed(BLOCKS[::-1]) != packed()
    # Neither a file's name nor a time is in the gzip header.
    assert packed()[:8] == b"\x1f\x8b\x08\0\0\0\0\0"


def test_others_read_what_we_write() -> None:
    with tarfile.open(fileobj=io.BytesIO(packed()), mode="r:gz") as archive:
        found = []
        for member in archive:
            assert member.isfile()
            file = archive.extractfile(member)
            assert file is not None
            found.append((Multihash.parse(member.name), file.read()))
            fields = (member.mode, member.uid, member.gid, member.mtime, member.uname)
            assert fields == (0, 0, 0, 0, "")
            assert not member.pax_headers
    assert found == BLOCKS


def test_entries_are_those_of_the_reference_implementation() -> None:
    """A name, a size, a time of zero, GNU's magic; mode, owner, group and type are NUL."""
    archive = packed(gzip=False)
    name, data = BLOCKS[0]
    expected = bytearray(512)
    expected[:69] = name.text.encode()
    expected[124:136] = b"%011o\0" % len(data)
    expected[136:148] = b"00000000000\0"
    expected[257:265] = b"ustar  \0"
    expected[148:156] = b"%07o\0" % (sum(expected) + 8 * 32)
    assert archive[:512] == expected
    assert archive[512 : 512 + len(data)] == data
    assert len(archive) % 512 == 0
    assert archive[-1024:] == bytes(1024)
    assert archive[-1536:-1024].strip(b"\0")


@pytest.mark.parametrize(
    "format", [tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT], ids=str
)
def test_we_read_what_others_write(format: int) -> None:
    """Names and sizes of blocks fit into plain headers, whatever the format."""
    entries = [entry(name.text, data, mtime=1_700_000_000) for name, data in BLOCKS]
    assert unpacked(tar(*entries, format=format)) == BLOCKS


def test_a_name_may_have_any_spelling() -> None:
    name = hash_of("a")
    for base in "fFzu":
        assert unpacked(tar(entry(name.spelled(base), b"x"))) == [(name, b"x")]


def test_an_archive_may_end_without_its_end_mark() -> None:
    """The gzip stream around it shows that it is whole."""
    archive = packed(gzip=False)
    for less in (512, 1024):
        assert unpacked(archive[:-less]) == BLOCKS


def test_a_payload_may_come_in_pieces_of_any_size() -> None:
    payload = packed()
    for size in (1, 7, 500, len(payload)):
        pieces = [payload[at : at + size] for at in range(0, len(payload), size)]
        assert list(unpack([b"", *pieces])) == BLOCKS


def test_an_archive_may_go_without_gzip() -> None:
    assert list(unpack(packed(gzip=False), gzip=False)) == BLOCKS
    with pytest.raises(InvalidInput):
        list(unpack(packed(), gzip=False))
    with pytest.raises(InvalidInput, match="isn't gzip"):
        list(unpack(packed(gzip=False)))


def test_blocks_are_packed_as_they_come() -> None:
    taken = 0

    def blocks() -> Iterator[tuple[Multihash, bytes]]:
        nonlocal taken
        for number in range(100):
            taken += 1
            yield hash_of(str(number)), struct.pack("<Q", number) * 10_000

    pieces = pack_blocks(blocks())
    next(pieces)
    next(pieces)
    assert taken < 100


# --- Entries that no archive of blocks has ---------------------------------------------------

OUTSIDE = [
    "../" + NAME,
    "../../../../etc/passwd",
    "/" + NAME,
    "/etc/passwd",
    "./" + NAME,
    "blocks/" + NAME,
    NAME + "/",
    NAME + "/../x",
    "..",
    "refs/head",
    "C:\\" + NAME,
    NAME + ".tmp",
    NAME + " ",
    "head",
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_name_that_is_no_hash_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"isn't a hash|a folder"):
        unpacked(tar(entry(name, b"x")))


def test_names_of_other_bytes_are_refused() -> None:
    for name in (b"", b"\xff" * 69, NAME.encode() + b"\0/../x", b"f" * 100):
        with pytest.raises(InvalidInput):
            unpacked(header(name))


def test_a_name_by_another_algorithm_is_refused() -> None:
    with pytest.raises(InvalidInput, match="named by SHA2_256"):
        unpacked(tar(entry(Multihash(Algorithm.SHA2_256, bytes(32)).text, b"x")))


@pytest.mark.parametrize("magic", [b"ustar\x0000", b"ustar  \0", bytes(8)])
def test_a_folder_before_the_name_is_refused(magic: bytes) -> None:
    """POSIX headers have a second field for it, and some readers look there in any header."""
    assert unpacked(header(at_257=magic)) == [(hash_of("a"), b"")]
    with pytest.raises(InvalidInput, match="behind or before"):
        unpacked(header(at_257=magic, at_345=b"../.."))


@pytest.mark.parametrize(
    ("type_", "why"),
    [
        (tarfile.LNKTYPE, "a link"),
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.DIRTYPE, "a folder"),
        (tarfile.FIFOTYPE, "a pipe"),
        (tarfile.CONTTYPE, "type 0x37"),
        (tarfile.XHDTYPE, "an extended header"),
        (tarfile.XGLTYPE, "an extended header"),
        (tarfile.GNUTYPE_LONGNAME, "a long name"),
        (tarfile.GNUTYPE_LONGLINK, "a long link"),
        (tarfile.GNUTYPE_SPARSE, "type 0x53"),
        (b"\xff", "type 0xff"),
    ],
)
def test_only_plain_files_are_taken(type_: bytes, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        unpacked(header(at_156=type_))


def test_extended_headers_and_long_names_as_tar_writes_them_are_refused() -> None:
    with pytest.raises(InvalidInput, match="an extended header"):
        unpacked(tar(entry(pax_headers={"path": "../x"}), format=tarfile.PAX_FORMAT))
    with pytest.raises(InvalidInput, match="an extended header"):
        unpacked(tar(entry("x" * 300), format=tarfile.PAX_FORMAT))
    with pytest.raises(InvalidInput, match="a long name"):
        unpacked(tar(entry("x" * 300)))


def test_a_name_that_comes_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="twice"):
        list(unpack(packed([*BLOCKS, BLOCKS[0]])))
    name = hash_of("a")
    with pytest.raises(InvalidInput, match="twice"):
        unpacked(tar(entry(name.spelled("f")), entry(name.spelled("z"))))


@pytest.mark.parametrize(
    ("places", "why"),
    [
        ({"at_124": b"00000000008\0"}, "size isn't a number"),
        ({"at_124": b"-0000000001\0"}, "size isn't a number"),
        ({"at_124": b"0000 000001\0"}, "size isn't a number"),
        ({"at_124": bytes(12)}, "size isn't a number"),
        ({"at_124": b"0x000000001\0"}, "size isn't a number"),
        ({"at_257": b"zip\0\0\0\0\0"}, "no known format"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(places: dict[str, bytes], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        unpacked(header(**places))


def test_a_wrong_checksum_is_refused() -> None:
    good = header()
    for at in (0, 68, 124, 148, 257, 511):
        bad = bytearray(good)
        bad[at] ^= 1
        with pytest.raises(InvalidInput, match="checksum"):
            unpacked(bytes(bad))


# --- Archives that end too early or too late --------------------------------------------------


def test_a_payload_cut_anywhere_is_refused() -> None:
    payload = packed()
    for size in range(len(payload)):
        with pytest.raises(InvalidInput):
            list(unpack(payload[:size]))


def test_an_archive_cut_inside_of_an_entry_is_refused() -> None:
    archive = packed(BLOCKS[:1], gzip=False)
    for size in (1, 511, 513, 512 + len(BLOCKS[0][1]), 1023):
        with pytest.raises(InvalidInput, match="ends too early"):
            unpacked(archive[:size])


def test_a_changed_byte_is_noticed_by_the_gzip_checksum() -> None:
    payload = bytearray(packed())
    payload[-5] ^= 1
    with pytest.raises(InvalidInput, match="isn't gzip"):
        list(unpack(bytes(payload)))


def test_nothing_may_follow() -> None:
    archive = packed(gzip=False)
    assert unpacked(archive + bytes(10_240)) == BLOCKS
    with pytest.raises(InvalidInput, match="follows the archive's end"):
        unpacked(archive + header())
    with pytest.raises(InvalidInput, match="follows the archive's end"):
        unpacked(bytes(512) + archive)
    for more in (b"x", packed(), bytes(100)):
        with pytest.raises(InvalidInput, match="follows the gzip stream"):
            list(unpack(packed() + more))
        with pytest.raises(InvalidInput, match="follows the gzip stream"):
            list(unpack([packed(), more]))


# --- Limits -----------------------------------------------------------------------------------


def test_every_limit_is_kept_and_may_be_reached() -> None:
    payload, archive = packed(), packed(gzip=False)
    largest = max(len(data) for _, data in BLOCKS)
    exact = {
        "packed_bytes": len(payload),
        "unpacked_bytes": len(archive),
        "entries": len(BLOCKS),
        "entry_bytes": largest,
    }
    assert list(unpack(payload, limits=ArchiveLimits(**exact))) == BLOCKS
    for limit, value in exact.items():
        with pytest.raises(LimitExceeded) as refused:
            list(unpack(payload, limits=ArchiveLimits(**(exact | {limit: value - 1}))))
        assert refused.value.fields == {"limit": value - 1}
        assert refused.value.code == "limit_exceeded"


@pytest.mark.parametrize("size", [b"77777777777\0", b"\x80" + bytes(3) + b"\xff" * 8, b"\xff" * 12])
def test_a_size_is_refused_before_anything_of_it_is_read(size: bytes) -> None:
    def payload() -> Iterator[bytes]:
        yield header(at_124=size)
        pytest.fail("more was read")

    with pytest.raises(LimitExceeded, match="in one entry"):
        list(unpack(payload(), gzip=False))


def swelling(before: bytes, zeros_bytes: int) -> Iterator[bytes]:
    """Yield a gzip stream of ``before`` and then very many zeros, about a thousandth of them."""
    packer = zlib.compressobj(9, wbits=31)
    yield packer.compress(before) + packer.flush(zlib.Z_FULL_FLUSH)
    # After a full flush the same bytes unfold to the same zeros, again and again.
    piece = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    for _ in range(zeros_bytes // MIB):
        yield piece


def many_entries(entry_bytes: int, total_bytes: int) -> Iterator[bytes]:
    """Yield a gzip stream of many blocks of zeros, each of this size."""
    packer = zlib.compressobj(9, wbits=31)
    for number in range(total_bytes // entry_bytes):
        name = hash_of(str(number)).text.encode()
        yield packer.compress(header(name, at_124=b"%011o\0" % entry_bytes))
        yield packer.compress(bytes(entry_bytes))


BOMBS = {
    "one entry of 10 GB": (
        lambda: swelling(header(at_124=b"\x80" + (10 * GB).to_bytes(11, "big")), 10 * GB),
        "bytes in one entry",
    ),
    "10 GB behind the end": (lambda: swelling(bytes(1024), 10 * GB), "behind the archive's end"),
    "many entries": (lambda: many_entries(MIB, 10 * GB), "bytes unpacked"),
    "many small entries": (lambda: many_entries(512, 10 * GB), "entries"),
}


@pytest.mark.parametrize(("payload", "why"), BOMBS.values(), ids=BOMBS)
def test_ten_gigabytes_in_a_small_payload_end_early_in_flat_memory(payload: Any, why: str) -> None:
    limits = ArchiveLimits(unpacked_bytes=64 * MIB, entries=2_000)
    taken_bytes = 0

    def counted() -> Iterator[bytes]:
        nonlocal taken_bytes
        for piece in payload():
            taken_bytes += len(piece)
            yield piece

    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded, match=why):
            for _ in unpack(counted(), limits=limits):
                pass
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken_bytes < MIB
    assert peak_bytes < 8 * MIB


def test_one_whole_payload_that_swells_is_let_go_as_well() -> None:
    """As it comes in a message: all of it at once, small, and sound up to the limit."""
    payload = b"".join(swelling(bytes(1024), 10 * GB))
    assert len(payload) < 12 * MIB
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded):
            list(unpack(payload))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MIB


def test_an_endless_payload_is_let_go() -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b""
            yield bytes(tarball.RECORD_BYTES)

    with pytest.raises(LimitExceeded):
        list(unpack(endless(), gzip=False))

    def comments() -> Iterator[bytes]:
        # The header of a gzip stream may have a comment of any length.
        yield b"\x1f\x8b\x08\x10" + bytes(6)
        while True:
            yield b"x" * MIB

    with pytest.raises(LimitExceeded, match="bytes"):
        list(unpack(comments(), limits=ArchiveLimits(packed_bytes=4 * MIB)))


def test_whatever_is_wrong_the_error_has_a_remedy() -> None:
    with pytest.raises(LakeferryError) as refused:
        list(unpack(b"nonsense"))
    assert refused.value.remedy

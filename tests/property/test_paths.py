"""Two spellings of one path are one path, and two paths are two; names of the log likewise."""

from __future__ import annotations

import uuid
from urllib.parse import quote

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakeferry.errors import CorruptLog, VersionNotAvailable
from lakeferry.log import deletion_vectors, file_actions, file_identity, paths
from lakeferry.log.paths import LogFileKind
from lakeferry.log.segment import arrange
from tests.support import naive

ROOTS = ("s3://bucket/table", "file:///data/table", "memory://dict", "abfss://c@a.dfs/t")
TEXT = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/."), min_size=1, max_size=6
)
NAMES = st.lists(TEXT, min_size=1, max_size=3).map("/".join)
PREFIXES = ("", "/", "s3://bucket/", "s3a://bucket/", "S3N://bucket/", "file:/", "file:///")
VERSIONS = st.integers(0, 40)
UUIDS = st.uuids().map(str)


def spellings(name: str) -> st.SearchStrategy[str]:
    """Draw a spelling: each character as it is where it may be, or percent-encoded."""

    def spell(character: str, encode: bool, lower: bool) -> str:
        if character == "/":
            return "/"
        safe = character.isascii() and character.isalnum()
        if safe and not encode:
            return character
        coded = "".join(f"%{byte:02X}" for byte in character.encode())
        return coded.lower() if lower else coded

    choices = st.tuples(*(st.tuples(st.booleans(), st.booleans()) for _ in name))
    return choices.map(
        lambda drawn: "".join(spell(c, *how) for c, how in zip(name, drawn, strict=True))
    )


@given(NAMES, st.sampled_from(PREFIXES), st.sampled_from(ROOTS), st.data())
def test_spellings_of_one_path_are_one(
    name: str, prefix: str, root: str, data: st.DataObject
) -> None:
    first, second = data.draw(spellings(name)), data.draw(spellings(name))
    one = file_identity.canonical_path(prefix + first, root)
    assert file_identity.canonical_path(prefix + second, root) == one
    assert one.endswith(name.lstrip("/")) or prefix.lower().startswith("file")


SEGMENTS = st.sampled_from(["a", "b", ".", "..", "", "...", "%61", "a:b", "a.", ".b", "c?d"])
DOTTED = st.lists(SEGMENTS, min_size=1, max_size=6).map("/".join)


@given(DOTTED, st.sampled_from(PREFIXES), st.sampled_from(ROOTS))
def test_a_path_is_spelled_as_naive_replay_spells_it(path: str, prefix: str, root: str) -> None:
    assert file_identity.identity(prefix + path, root) == naive.canonical(prefix + path, root)


@given(DOTTED, DOTTED, st.sampled_from(PREFIXES), st.sampled_from(ROOTS))
def test_one_path_is_one_place(first: str, second: str, prefix: str, root: str) -> None:
    paths = [prefix + first, prefix + second]
    one, other = (file_identity.identity(path, root) for path in paths)
    if one == other:
        assert file_identity.canonical_path(paths[0], root) == file_identity.canonical_path(
            paths[1], root
        )


@given(st.lists(st.tuples(st.sampled_from(PREFIXES), NAMES | DOTTED, st.booleans())))
def test_whole_columns_are_spelled_like_single_paths(drawn: list[tuple[str, str, bool]]) -> None:
    spelled = [prefix + (quote(name) if coded else name) for prefix, name, coded in drawn]
    column = pa.array(["first", *spelled], pa.string())
    for start in (0, 1):
        part = column.slice(start)
        one_by_one = part.to_pylist()
        found = file_identity.canonical_paths(part, ROOTS[0]).to_pylist()
        assert found == [file_identity.canonical_path(path, ROOTS[0]) for path in one_by_one]
        found = file_identity.identities(part, ROOTS[0]).to_pylist()
        assert found == [file_identity.identity(path, ROOTS[0]) for path in one_by_one]


VECTORS = st.none() | st.fixed_dictionaries(
    {
        "storageType": st.sampled_from("uip"),
        "pathOrInlineDv": st.text("ab@1", max_size=3),
        "offset": st.none() | st.integers(0, 12),
    }
)


@given(
    st.lists(st.tuples(st.sampled_from(["a", "%61", "b", "./a", "a%0Aua"]), VECTORS), max_size=6)
)
def test_keys_are_equal_exactly_where_the_logical_file_is(
    drawn: list[tuple[str, dict[str, object] | None]],
) -> None:
    column = pa.array([path for path, _ in drawn], pa.string())
    vectors = pa.array([vector for _, vector in drawn], file_actions.DELETION_VECTOR)
    keys = file_identity.keys(column, vectors, ROOTS[0]).to_pylist()
    identities = [
        (naive.canonical(path, ROOTS[0]), naive.vector_id({"deletionVector": vector}))
        for path, vector in drawn
    ]
    for i, key in enumerate(keys):
        for j, other in enumerate(keys):
            assert (key == other) == (identities[i] == identities[j])


@given(st.binary(max_size=40).map(lambda data: data[: len(data) // 4 * 4]))
def test_base_85_survives_both_ways(data: bytes) -> None:
    assert deletion_vectors.z85_decode(deletion_vectors.z85_encode(data)) == data


@given(st.uuids(), st.text("abcXYZ019", max_size=4))
def test_descriptors_of_vectors_lead_to_a_path_and_back(name: uuid.UUID, prefix: str) -> None:
    descriptor = prefix + deletion_vectors.z85_encode(name.bytes)
    path = deletion_vectors.relative_path(descriptor)
    assert path == (f"{prefix}/" if prefix else "") + f"deletion_vector_{name}.bin"
    assert deletion_vectors.relative_descriptor(path) == descriptor


@given(VERSIONS, VERSIONS, UUIDS)
def test_names_of_the_log_say_what_they_were_made_from(first: int, more: int, name: str) -> None:
    last = first + more + 1
    made = {
        LogFileKind.COMMIT: paths.commit(last),
        LogFileKind.CHECKSUM: paths.checksum(last),
        LogFileKind.CLASSIC: paths.classic_checkpoint(last),
        LogFileKind.MULTI_PART: paths.multi_part_checkpoint(last, 1 + more, 2 + more),
        LogFileKind.V2: paths.v2_checkpoint(last, name),
        LogFileKind.COMPACTED: paths.compacted(first, last),
    }
    for kind, path in made.items():
        found = paths.parse(path)
        assert found is not None
        assert (found.kind, found.version) == (kind, last)
        assert found.first_version == (first if kind is LogFileKind.COMPACTED else last)
        assert (paths.before_version(last) < path) == (kind is not LogFileKind.COMPACTED)
        assert path < paths.END_OF_VERSIONS


@given(st.text(max_size=60) | st.from_regex(r"_delta_log/[0-9.]{20,45}(json|parquet|crc)?"))
def test_any_name_is_a_log_file_or_none(name: str) -> None:
    found = paths.parse(name)
    assert found is None or found.path == name


COMMITS = VERSIONS.map(paths.commit)
CHECKPOINTS = st.one_of(
    VERSIONS.map(paths.classic_checkpoint),
    st.builds(paths.multi_part_checkpoint, VERSIONS, st.integers(1, 3), st.integers(1, 3)),
    st.builds(paths.v2_checkpoint, VERSIONS, UUIDS, st.sampled_from(["json", "parquet"])),
)
RUNS = st.builds(
    lambda first, length: paths.compacted(first, first + length), VERSIONS, st.integers(1, 6)
)


@given(
    st.integers(0, 8),
    st.sets(st.integers(0, 12)),
    st.sets(st.one_of(CHECKPOINTS, RUNS, VERSIONS.map(paths.checksum)), max_size=6),
    st.none() | st.integers(0, 14),
)
def test_a_version_is_made_of_what_naive_replay_makes_it_of(
    begin: int, gaps: set[int], others: set[str], version: int | None
) -> None:
    commits = {paths.commit(v) for v in range(begin, 13) if v not in gaps or v % 3}
    names = sorted(commits | others)
    listing = arrange(file for name in names if (file := paths.parse(name)))
    objects = dict.fromkeys(names, b"")
    try:
        target, base, deltas = naive.segment(objects, version)
    except naive.Unreadable:
        target = -1
    try:
        found = listing.segment(version)
    except (CorruptLog, VersionNotAvailable):
        assert target == -1
    else:
        assert found.version == target
        assert tuple(f.path for f in (found.checkpoint.files if found.checkpoint else ())) == base
        assert [file.path for file in found.deltas] == deltas
        earliest = listing.earliest_version()
        assert earliest is None or earliest <= listing.newest_version

"""Names in ``_delta_log``: what each of them stands for."""

from __future__ import annotations

import pytest

from lakeferry.log import paths
from lakeferry.log.paths import LogFile, LogFileKind

NAME = "3a0d65cd-4056-49b8-937b-95f9e3ee90e5"
V5 = "00000000000000000005"
V9 = "00000000000000000009"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"{V5}.json", (LogFileKind.COMMIT, 5, 5, 1, 1, "")),
        (f"{V5}.crc", (LogFileKind.CHECKSUM, 5, 5, 1, 1, "")),
        (f"{V5}.checkpoint.parquet", (LogFileKind.CLASSIC, 5, 5, 1, 1, "")),
        (
            f"{V5}.checkpoint.0000000002.0000000003.parquet",
            (LogFileKind.MULTI_PART, 5, 5, 2, 3, ""),
        ),
        (f"{V5}.checkpoint.{NAME}.parquet", (LogFileKind.V2, 5, 5, 1, 1, NAME)),
        (f"{V5}.checkpoint.{NAME}.json", (LogFileKind.V2, 5, 5, 1, 1, NAME)),
        (f"{V5}.{V9}.compacted.json", (LogFileKind.COMPACTED, 9, 5, 1, 1, "")),
        (f"_staged_commits/{V5}.{NAME}.json", (LogFileKind.STAGED, 5, 5, 1, 1, NAME)),
        (f"{2**63 - 1:020d}.json", (LogFileKind.COMMIT, 2**63 - 1, 2**63 - 1, 1, 1, "")),
    ],
)
def test_names_of_log_files(
    name: str, expected: tuple[LogFileKind, int, int, int, int, str]
) -> None:
    kind, version, first, part, parts, unique = expected
    found = paths.parse(f"_delta_log/{name}", 7, 8)
    assert found == LogFile(kind, version, f"_delta_log/{name}", first, part, parts, unique, 7, 8)
    assert kind.is_checkpoint == (
        kind in (LogFileKind.CLASSIC, LogFileKind.MULTI_PART, LogFileKind.V2)
    )


@pytest.mark.parametrize(
    "name",
    [
        "_last_checkpoint",
        "5.json",
        f"{V5}.json.tmp",
        f".{V5}.json.crc",
        f"{V5}.json.crc",
        f"0{V5}.json",
        f"{V5}.checkpoint.parquet.crc",
        f"{V5}.checkpoint.0000000003.0000000002.parquet",
        f"{V5}.checkpoint.0000000000.0000000002.parquet",
        f"{V5}.checkpoint.2.3.parquet",
        f"{V5}.checkpoint.not-a-uuid.parquet",
        f"{V5}.checkpoint.{NAME}.avro",
        f"{V9}.{V5}.compacted.json",
        f"{V5}.{V5}.compacted.json",
        f"_sidecars/{NAME}.parquet",
        f"sub/{V5}.json",
        f"{2**63:020d}.json",
        f"{V5}.json\n",
        f"{V5}.JSON",
        "\u0660" * 19 + "\u0665.json",
    ],
)
def test_names_that_are_none(name: str) -> None:
    assert paths.parse(f"_delta_log/{name}") is None


def test_a_name_outside_of_the_log_is_none() -> None:
    assert paths.parse(f"{V5}.json") is None
    assert paths.parse(f"other/_delta_log/{V5}.json") is None


def test_a_listing_from_a_version_begins_right_before_it() -> None:
    begin = paths.before_version(5)
    assert paths.commit(4) < begin < paths.commit(5)
    assert paths.multi_part_checkpoint(4, 9, 9) < begin < paths.classic_checkpoint(5)
    assert begin < paths.compacted(5, 9) < paths.END_OF_VERSIONS < paths.LAST_CHECKPOINT
    assert paths.sidecar("x.parquet") == "_delta_log/_sidecars/x.parquet"

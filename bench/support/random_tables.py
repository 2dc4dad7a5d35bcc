"""Tables of random bytes, in one commit: files to copy, which nobody reads as Parquet."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path

MIB = 1 << 20


def commit_of(sizes: Mapping[str, int]) -> bytes:
    """Return the one commit of a table with these files."""
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": '{"type":"struct","fields":[]}',
        "partitionColumns": [],
        "configuration": {},
    }
    adds = (
        {
            "add": {
                "path": name,
                "partitionValues": {},
                "size": size,
                "modificationTime": 0,
                "dataChange": True,
            }
        }
        for name, size in sizes.items()
    )
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    return "\n".join(map(json.dumps, [protocol, {"metaData": metadata}, *adds])).encode()


def random_table(folder: Path, *kinds: tuple[int, int]) -> Path:
    """Write a table on local disk: for each kind so many files of that size."""
    (folder / "_delta_log").mkdir(parents=True)
    sizes: dict[str, int] = {}
    for files, size_bytes in kinds:
        for number in range(files):
            name = f"part-{size_bytes}-{number:05d}.parquet"
            sizes[name] = size_bytes
            with (folder / name).open("wb") as file:
                for start in range(0, size_bytes, MIB):
                    file.write(os.urandom(min(MIB, size_bytes - start)))
    (folder / "_delta_log" / f"{0:020d}.json").write_bytes(commit_of(sizes))
    return folder

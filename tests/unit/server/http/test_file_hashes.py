"""A plain GET of a table's file is answered where the file has the hash that was asked for."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import lakeferry
from lakeferry.transfer.chain.hashes import Multihash
from tests.support.hosting import Place, hosted
from tests.support.reference_client import fetch, name_of


@pytest.mark.parametrize("visibility", ["private", "public"])
def test_another_hash_than_the_files_is_404(tmp_path: Path, visibility: str) -> None:
    write_deltalake(tmp_path / "t", pa.table({"x": [1, 2, 3]}))
    with hosted(Place((tmp_path / "root").as_uri())) as server:
        token = server.token()
        lakeferry.Table(str(tmp_path / "t")).push(
            server.dataset(), token=token, visibility=visibility
        )
        headers = {"Authorization": f"Bearer {token}"}
        [file] = (tmp_path / "t").glob("*.parquet")
        data = file.read_bytes()
        right, wrong = Multihash.sha3_256(data).text, name_of(b"other")

        def asked(name: str, path: str, **more: str) -> int:
            return fetch(f"{server.dataset()}/data/{name}/{path}", {**headers, **more})[0]

        for _ in range(2):
            assert fetch(f"{server.dataset()}/data/{right}/{file.name}", headers) == (200, data)
            assert asked(wrong, file.name) == 404
            assert asked(wrong, file.name, Range="bytes=0-9") == 404
            assert asked(right, "part-none.parquet") == 404
        assert asked(right, file.name, Range="bytes=0-9") == 206
        # A file that was replaced has another hash, and what was remembered isn't believed.
        stored = tmp_path / "root" / "acc" / "d" / file.name
        stored.write_bytes(data + b"more")
        assert asked(right, file.name) == 404
        assert asked(Multihash.sha3_256(data + b"more").text, file.name) == 200

"""A dataset reads a table's files with the credentials that the table's catalog issues."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakeferry.dataset import arrow_files
from lakeferry.log.schema import Struct
from lakeferry.storage import Store, StoreConfig
from lakeferry.storage.credential_renewal import VendedCredentials
from tests.support.stores import DictStore


@dataclass(frozen=True)
class Issuer:
    """Issues no credentials: nothing is opened with them here."""

    place: str

    def __call__(self) -> VendedCredentials:
        return VendedCredentials()


def test_the_tables_own_files_are_opened_with_its_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int64())}), sink)
    store = DictStore()
    store.put("a.parquet", sink.getvalue().to_pybytes())
    uri = f"{store.uri}/a.parquet"
    issuer = Issuer(store.uri)
    config = replace(store.config, options={"aws_region": "eu-1"}, renewal=issuer)
    asked: list[StoreConfig] = []

    def opened(config: StoreConfig) -> Store:
        asked.append(config)
        return store

    monkeypatch.setattr(arrow_files, "open_config", opened)
    sizes = {uri: store.head("a.parquet").size_bytes}
    files = arrow_files.TableFiles(arrow_files.DataFiles(config, sizes, {}, Struct(())))
    there: arrow_files.TableFiles = pickle.loads(pickle.dumps(files))
    rows = pq.read_table(there.open_input_file(uri))

    assert rows["id"].to_pylist() == [1, 2]
    assert asked == [config]
    assert asked[0].renewal == issuer

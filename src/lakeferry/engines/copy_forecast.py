"""Forecasts of copies, for dry runs: how objects will travel, how long that takes, what it costs.

The way of each object is the one that a copy takes (:meth:`Store.copy_route
<lakeferry.storage.store.Store.copy_route>`); nothing is asked of a store. Requests are counted as
the copy makes them, without repetitions. Times and prices are assumptions, named here, and each
forecast states those that it used. Only requests have a price: what a provider charges for bytes
that leave a region depends on too much.

Everything is summed up by Arrow: no Python object is made for a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engines import object_copy
from lakeferry.engines.object_copy import OpenConfig
from lakeferry.errors import LakeferryError
from lakeferry.log import file_identity
from lakeferry.storage import Store, StoreConfig, open_config
from lakeferry.storage.byte_rate import ByteRate
from lakeferry.storage.copy_way import (
    COPIED_PART_BYTES,
    STREAMED,
    UPLOADED_PART_BYTES,
    WHOLE_UPLOAD_BYTES,
    CopyRoute,
    CopyWay,
)
from lakeferry.storage.object_parts import MOST_PARTS
from lakeferry.storage.store import AMAZON_S3
from lakeferry.storage.uris import container_and_name

STREAMED_BYTES_PER_S = 100_000_000
COPIED_BYTES_PER_S = 1_000_000_000
DISK_BYTES_PER_S = 500_000_000
REQUEST_MS = 50
"""Assumed time of a request, of which several are made at the same time."""

PRICE_REGION = "us-east-1"
PRICE_DATE = "2025-06"
USD_PER_THOUSAND: Mapping[str, float] = {
    "COPY": 0.005,
    "GET": 0.0004,
    "HEAD": 0.0004,
    "LIST": 0.005,
    "POST": 0.005,
    "PUT": 0.005,
}
"""List prices of S3 Standard. A part that S3 copies counts as a COPY."""

_PRICE_BASIS = (
    f"list prices of S3 Standard requests in {PRICE_REGION}, {PRICE_DATE}: "
    f"${USD_PER_THOUSAND['PUT']} for 1,000 PUT, COPY, POST or LIST, "
    f"${USD_PER_THOUSAND['GET']} for 1,000 GET or HEAD; data transfer isn't included"
)
_LISTED_AT_ONCE = 1_000
_LEAD = r"^(?P<lead>[A-Za-z][A-Za-z0-9+.\-]*:(?://[^/]*)?)/"
_LOCAL_LEAD = "file:"

Requests = Counter[str]


@dataclass(frozen=True, slots=True)
class _Part:
    """Objects of one place that travel in one way."""

    way: CopyWay
    place: str
    is_certain: bool
    files: int
    size_bytes: int
    of_source: Requests
    of_target: Requests
    source_service: str | None

    @property
    def name(self) -> str:
        """``stream`` if this process moves the bytes, else ``store``."""
        return "stream" if self.way is CopyWay.STREAM else "store"


class CopyForecasts:
    """Makes forecasts for copies that may have a limit of bytes per second."""

    def __init__(self, limit_rate: int | None = None, open_store: OpenConfig = open_config) -> None:
        """Open the places of files outside of a table with ``open_store``."""
        rate = None if limit_rate is None else ByteRate(limit_rate)
        self._limit_rate = limit_rate
        self._small_bytes = object_copy.small_bytes(rate)
        self._chunk_bytes = object_copy.CHUNK_BYTES
        if rate is not None:
            self._chunk_bytes = min(self._chunk_bytes, rate.piece_bytes)
        self._open = open_store

    def of_files(self, source: Store, target: Store, files: pa.Table) -> dict[str, Any]:
        """Return the forecast of copying files; ``path`` is as in the source's log.

        Files whose column ``rewritten`` is true pass through this process, whatever the stores
        can do.
        """
        sizes = pc.fill_null(files["size"].combine_chunks().cast(pa.int64()), 0)
        rewritten = None
        if "rewritten" in files.column_names:
            rewritten = files["rewritten"].combine_chunks()
        parts: list[_Part] = []
        for place, store, here in self._places(source, files["path"]):
            route = STREAMED if store is None else self._route(store, target)
            service = None if store is None else store.locate("")[0].service
            streamed = None if rewritten is None else rewritten.filter(here)
            for way, some in _by_way(route, sizes.filter(here), streamed):
                of_source, of_target = self._requests(way, some, route.large_bytes)
                part = _Part(
                    way,
                    place,
                    route.is_certain or way is CopyWay.STREAM,
                    len(some),
                    pc.sum(some).as_py() or 0,
                    of_source,
                    of_target,
                    service,
                )
                parts.append(part)
        return self._told(parts, target.locate("")[0].service)

    def of_comparison(
        self, places: Sequence[Store], objects: int, size_bytes: int
    ) -> dict[str, Any]:
        """Return how many bytes are read to compare objects at these places, and how long."""
        rates: dict[bool, int] = {}
        seconds, requests = 0.0, 0
        for store in places:
            on_disk = store.locate("")[0].service is None
            rate = DISK_BYTES_PER_S if on_disk else STREAMED_BYTES_PER_S
            rates[on_disk] = min(self._limit_rate or rate, rate)
            seconds += size_bytes / rates[on_disk]
            requests += 0 if on_disk else objects
        seconds += requests * REQUEST_MS / 1000 / object_copy.OBJECTS_AT_ONCE
        wheres = {True: "on local disk", False: "from the store"}
        said = [
            f"{_rate(rate)} {wheres[on_disk]}{' (the limit)' if rate == self._limit_rate else ''}"
            for on_disk, rate in rates.items()
        ]
        return {
            "verify": "full",
            "verify_bytes": len(places) * size_bytes,
            "verify_duration_ms": round(seconds * 1000),
            "verify_duration_basis": f"assuming {'; '.join(said)}",
        }

    def _route(self, source: Store, target: Store) -> CopyRoute:
        route = target.copy_route(source)
        limited = self._limit_rate is not None and route.small is CopyWay.SYSTEM
        return STREAMED if limited else route

    def _places(
        self, source: Store, paths: pa.ChunkedArray
    ) -> Iterator[tuple[str, Store | None, pa.Array]]:
        """Yield the places of paths, their stores, and which paths are there."""
        paths = paths.combine_chunks().cast(pa.string())
        absolute = pc.match_substring_regex(paths, file_identity.ABSOLUTE_PATTERN)
        leads = pc.struct_field(pc.extract_regex(paths, _LEAD), "lead")
        leads = pc.if_else(absolute, pc.fill_null(leads, _LOCAL_LEAD), "")
        for lead in pc.unique(leads).to_pylist():
            place, store = self._store_of(source, lead)
            yield place, store, pc.equal(leads, lead)

    def _store_of(self, source: Store, lead: str) -> tuple[str, Store | None]:
        if not lead:
            return source.uri, source
        try:
            container, _ = container_and_name(f"{lead}/x")
            if container == container_and_name(f"{source.uri}/x")[0]:
                return source.uri, source
            # As a copy opens it: with the table's options.
            return container, self._open(StoreConfig(container, source.config.options))
        except LakeferryError:
            return lead, None

    def _requests(
        self, way: CopyWay, sizes: pa.Array, whole_bytes: int
    ) -> tuple[Requests, Requests]:
        """Return the requests to the source and to the target for objects of one way.

        S3 copies objects of more than ``whole_bytes`` in parts.
        """
        count = len(sizes)
        if way is CopyWay.SYSTEM:
            return Counter(), Counter()
        if way is CopyWay.STREAM:
            large = sizes.filter(pc.greater(sizes, self._small_bytes))
            chunks = pc.sum(_divided(large, self._chunk_bytes)).as_py() or 0
            read = Counter({"GET": count - len(large) + chunks, "HEAD": len(large)})
            in_parts = sizes.filter(pc.greater(sizes, WHOLE_UPLOAD_BYTES))
            parts = _parts(in_parts, UPLOADED_PART_BYTES)
            put = Counter({"PUT": count - len(in_parts) + parts, "POST": 2 * len(in_parts)})
            return read, put
        one = Counter({"COPY": count, "HEAD": count})
        if way is CopyWay.ASKED:
            return Counter({"HEAD": count}), one
        large = sizes.filter(pc.greater(sizes, whole_bytes))
        parts = _parts(large, COPIED_PART_BYTES)
        one["COPY"] += parts - len(large)
        # An upload in parts is begun and ended, and earlier ones are looked for.
        one += Counter({"POST": 2 * len(large), "LIST": len(large)})
        return Counter({"HEAD": count + len(large)}), one

    def _told(self, parts: list[_Part], target_service: str | None) -> dict[str, Any]:
        requests, usd = _added_up(parts, target_service)
        return {
            "ways": _ways(parts),
            "requests": {kind: count for kind, count in sorted(requests.items()) if count},
            "request_cost_usd": usd,
            "price_basis": None if usd is None else _PRICE_BASIS,
            **self._duration(parts, requests.total()),
        }

    def _duration(self, parts: list[_Part], requests: int) -> dict[str, Any]:
        """Return how long it takes, and the assumptions."""
        amounts: Counter[CopyWay] = Counter()
        for part in parts:
            by_store = part.way in (CopyWay.ASKED, CopyWay.SIGNED)
            amounts[CopyWay.ASKED if by_store else part.way] += part.size_bytes
        streamed = min(self._limit_rate or STREAMED_BYTES_PER_S, STREAMED_BYTES_PER_S)
        rates = {
            CopyWay.ASKED: (COPIED_BYTES_PER_S, "copied by the store"),
            CopyWay.SYSTEM: (DISK_BYTES_PER_S, "copied on local disk"),
            CopyWay.STREAM: (streamed, "through this machine"),
        }
        seconds, said = 0.0, []
        for way, (bytes_per_s, where) in rates.items():
            if amounts[way]:
                seconds += amounts[way] / bytes_per_s
                limited = way is CopyWay.STREAM and streamed == self._limit_rate
                by = " (the limit)" if limited else ""
                said.append(f"{_rate(bytes_per_s)} {where}{by}")
        at_once = object_copy.OBJECTS_AT_ONCE
        if requests:
            seconds += requests * REQUEST_MS / 1000 / at_once
            said.append(f"{REQUEST_MS} ms for a request, {at_once} at a time")
        return {
            "duration_ms": round(seconds * 1000),
            "duration_basis": f"assuming {'; '.join(said)}" if said else None,
        }


def _rate(bytes_per_s: int) -> str:
    if bytes_per_s < 1_000_000:
        return f"{bytes_per_s / 1000:g} kB/s"
    return f"{bytes_per_s / 1_000_000:g} MB/s"


def _by_way(
    route: CopyRoute, sizes: pa.Array, streamed: pa.Array | None
) -> Iterator[tuple[CopyWay, pa.Array]]:
    """Yield the ways of objects, each with the sizes of those that take it."""
    if streamed is not None:
        yield CopyWay.STREAM, sizes.filter(streamed)
        sizes = sizes.filter(pc.invert(streamed))
    if route.small is route.large:
        yield route.small, sizes
        return
    large = pc.greater(sizes, route.large_bytes)
    yield route.small, sizes.filter(pc.invert(large))
    yield route.large, sizes.filter(large)


def _parts(sizes: pa.Array, part_bytes: int) -> int:
    """Return how many parts objects have together; an object has a limited number of them."""
    larger = pc.max_element_wise(pa.scalar(part_bytes, pa.int64()), _divided(sizes, MOST_PARTS))
    return pc.sum(_divided(sizes, larger)).as_py() or 0


def _divided(sizes: pa.Array, by: pa.Array | int) -> pa.Array:
    """Return quotients, rounded up."""
    return pc.divide(pc.add(sizes, pc.subtract(by, 1)), by)


def _added_up(parts: Iterable[_Part], target_service: str | None) -> tuple[Requests, float | None]:
    """Return all requests to services, and the price of those with a known one."""
    by_service: dict[str | None, Requests] = {}
    files = 0
    for part in parts:
        by_service.setdefault(part.source_service, Counter()).update(part.of_source)
        by_service.setdefault(target_service, Counter()).update(part.of_target)
        files += part.files
    if files:
        # The copy is checked with a listing.
        by_service[target_service]["LIST"] += -(-files // _LISTED_AT_ONCE)
    # Nobody charges for calls to local disk.
    by_service.pop(None, None)
    total: Requests = Counter()
    for requests in by_service.values():
        total.update(requests)
    priced = by_service.get(AMAZON_S3)
    if priced is None:
        return total, None
    return total, round(sum(n * USD_PER_THOUSAND[kind] / 1000 for kind, n in priced.items()), 6)


def _ways(parts: Iterable[_Part]) -> list[dict[str, Any]]:
    """Return the ways with the number and the bytes of their files, the most bytes first."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for part in parts:
        if not part.files:
            continue
        way = found.setdefault(
            (part.name, part.place),
            {"way": part.name, "from": part.place, "certain": True, "files": 0, "bytes": 0},
        )
        way["certain"] = way["certain"] and part.is_certain
        way["files"] += part.files
        way["bytes"] += part.size_bytes
    return sorted(found.values(), key=lambda way: (-way["bytes"], way["way"], way["from"]))

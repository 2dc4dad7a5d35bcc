"""Stores for tests: one in plain Python with a clock we own, and one that fails to order.

:class:`DictStore` keeps every promise of :class:`lakeferry.storage.Store` and is
quick enough for simulations. :class:`FaultyStore` wraps any store and asks a
*rule* before each call whether, and how, it should go wrong::

    store = FaultyStore(DictStore(), on("PUT_IF_ABSENT", Fault.LOSE_ANSWER))
    for n in range(calls_of_a_clean_run):
        store = FaultyStore(DictStore(), at(n, Fault.STOP_BEFORE))
"""

from __future__ import annotations

import builtins
import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from lakeferry.errors import InvalidInput, ObjectNotFound, StorageUnavailable
from lakeferry.storage import Calls, ObjectInfo, Store, StoreConfig
from lakeferry.storage.store import StreamChunk, exactly
from lakeferry.storage.uris import check_object_name
from tests.support.clock import ManualClock

T = TypeVar("T")


class DictStore(Store):
    """Objects in a dictionary, in the order of their UTF-8 bytes, dated by ``clock``.

    One step at a time holds a lock, so threads see what a store would show them.
    """

    def __init__(
        self,
        objects: Mapping[str, bytes] | None = None,
        *,
        uri: str = "memory://dict",
        clock: Callable[[], int] | None = None,
    ) -> None:
        """Begin with ``objects``, all as old as the clock is now."""
        self.config = StoreConfig(uri)
        self.calls = Calls()
        self.clock = ManualClock() if clock is None else clock
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, int]] = {}
        # Python orders texts by their code points, which is the order of their UTF-8 bytes.
        self._order: builtins.list[str] = []
        for path, data in (objects or {}).items():
            self._write(check_object_name(path), data)

    @property
    def objects(self) -> dict[str, bytes]:
        """Everything there is, as a copy, in the order of a listing."""
        with self._lock:
            return {name: self._objects[name][0] for name in self._order}

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Make an object as old as a test needs it."""
        with self._lock:
            self._objects[path] = (self._find(path)[0], modified_ms)

    def list(
        self, prefix: str, *, start_after: str | None = None, stop_before: str | None = None
    ) -> Iterator[ObjectInfo]:
        """Yield from the state at the time of the call."""
        self.calls.add("LIST", prefix)
        if folder := prefix.rpartition("/")[0]:
            check_object_name(folder)
        with self._lock:
            first = bisect_left(self._order, prefix)
            if start_after is not None:
                first = max(first, bisect_right(self._order, start_after))
            end = len(self._order)
            if stop_before is not None:
                end = bisect_left(self._order, stop_before)
            found = []
            for path in self._order[first:end]:
                if not path.startswith(prefix):
                    break
                data, modified_ms = self._objects[path]
                found.append(ObjectInfo(path, len(data), modified_ms))
        return iter(found)

    def head(self, path: str) -> ObjectInfo:
        """Return size and date; nothing is ever at the root itself."""
        self.calls.add("HEAD", path)
        with self._lock:
            data, modified_ms = self._find(path)
        return ObjectInfo(path, len(data), modified_ms)

    def get(self, path: str) -> bytes:
        """Return the object."""
        self.calls.add("GET", path)
        with self._lock:
            data = self._find(check_object_name(path))[0]
        self.calls.add_bytes(len(data))
        return data

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return a part of the object."""
        if start < 0 or length < 0:
            raise InvalidInput("a range can't have a negative start or length")
        self.calls.add("RANGE", path)
        with self._lock:
            data = self._find(check_object_name(path))[0][start : start + length]
        self.calls.add_bytes(len(data))
        return data

    def get_many(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """Return the objects one by one."""
        return [self.get(path) for path in paths]

    def put(self, path: str, data: bytes) -> None:
        """Set the object."""
        self.calls.add("PUT", path)
        with self._lock:
            self._write(check_object_name(path), data)

    def put_stream(self, path: str, chunks: Iterator[StreamChunk], size_bytes: int) -> None:
        """Set the object once all of it has come."""
        self.calls.add("PUT", path)
        data = b"".join(exactly(chunks, size_bytes, path))
        with self._lock:
            self._write(check_object_name(path), data)

    def put_stream_if_absent(
        self, path: str, chunks: Iterator[StreamChunk], size_bytes: int
    ) -> bool:
        """Set the object, once all of it has come, unless it is there by then."""
        with self._lock:
            is_taken = check_object_name(path) in self._objects
        data = b"" if is_taken else b"".join(exactly(chunks, size_bytes, path))
        return self.put_if_absent(path, data)

    def copy_within(self, path: str, new_path: str) -> None:
        """Set the second object to the first."""
        self.calls.add("COPY", path)
        with self._lock:
            self._write(check_object_name(new_path), self._find(check_object_name(path))[0])

    def restore_time(self, path: str, modified_ms: int) -> None:
        """Do what local disk would."""
        self.calls.add("UTIME", path)
        self.set_modified(path, modified_ms)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Set the object unless it is there."""
        self.calls.add("PUT_IF_ABSENT", path)
        with self._lock:
            if check_object_name(path) in self._objects:
                return False
            self._write(path, data)
            return True

    def swap(self, path: str, expected: bytes | None, data: bytes) -> bool:
        """Set the object if it is what is expected."""
        self.calls.add("SWAP", path)
        with self._lock:
            there = self._objects.get(check_object_name(path))
            if (there[0] if there else None) != expected:
                return False
            self._write(path, data)
            return True

    def delete_many(self, paths: Sequence[str]) -> None:
        """Forget the objects."""
        for path in paths:
            self.calls.add("DELETE", path)
            with self._lock:
                if self._objects.pop(check_object_name(path), None) is not None:
                    del self._order[bisect_left(self._order, path)]

    def sign(self, method: str, path: str, expires_s: int) -> str:
        """Return a URL that looks the part and that nobody serves."""
        self.calls.add("SIGN", path)
        return (
            f"https://signed.invalid/{check_object_name(path)}?method={method}&expires={expires_s}"
        )

    def _find(self, path: str) -> tuple[bytes, int]:
        try:
            return self._objects[path]
        except KeyError:
            raise ObjectNotFound(f"no object at {path!r} in {self.uri}", path=path) from None

    def _write(self, path: str, data: bytes) -> None:
        if path not in self._objects:
            insort(self._order, path)
        self._objects[path] = (bytes(data), self.clock())


class Stopped(BaseException):
    """The process that made this call ends here. Not an ``Exception``: nothing swallows it."""


class Fault(Enum):
    """How one call goes wrong."""

    FAIL = "fails, and nothing was done"
    LOSE_ANSWER = "is done, and then seems to have failed"
    HALFWAY = "does the first half of its names (or yields half a listing), and then fails"
    DELAY = "takes its time"
    STOP_BEFORE = "ends its caller before anything was done"
    STOP_HALFWAY = "ends its caller after the first half of its names"
    STOP_AFTER = "ends its caller once it was done"


@dataclass(frozen=True, slots=True)
class StoreCall:
    """One call as a rule sees it; ``paths`` has one element except for the batch verbs."""

    index: int
    verb: str
    paths: tuple[str, ...]


Rule = Callable[[StoreCall], Fault | None]

CHANGES = frozenset({"PUT", "PUT_IF_ABSENT", "SWAP", "COPY", "UTIME", "DELETE"})
"""The verbs of calls that change something."""


def at(index: int, fault: Fault) -> Rule:
    """Return the rule by which the call with that index goes wrong, counted from zero."""
    return lambda call: fault if call.index == index else None


def on(verb: str, fault: Fault, *, containing: str = "", times: int = 1) -> Rule:
    """Return the rule by which the first calls of a verb go wrong (``times=-1``: all of them)."""
    left = times

    def rule(call: StoreCall) -> Fault | None:
        nonlocal left
        if left == 0 or call.verb != verb or not any(containing in path for path in call.paths):
            return None
        left -= 1
        return fault

    return rule


def any_of(*rules: Rule) -> Rule:
    """Return the rule that asks several; the first to find a fault decides."""

    def rule(call: StoreCall) -> Fault | None:
        faults = [rule(call) for rule in rules]
        return next((fault for fault in faults if fault is not None), None)

    return rule


class FaultyStore(Store):
    """A store whose calls go wrong as ``rule`` says; ``history`` has all that were made.

    Verbs are those of :class:`~lakeferry.storage.Calls`, with ``GET_MANY`` for
    the batch; a batch is one call.
    """

    def __init__(
        self,
        inner: Store,
        rule: Rule = lambda _: None,
        *,
        delay: Callable[[], None] = lambda: time.sleep(0.01),
    ) -> None:
        """Wrap ``inner``; ``delay`` is what :attr:`Fault.DELAY` waits with."""
        self.inner = inner
        self.config = inner.config
        self.calls = inner.calls
        self.rule = rule
        self.history: builtins.list[StoreCall] = []
        self._delay = delay
        self._lock = threading.Lock()

    def list(
        self, prefix: str, *, start_after: str | None = None, stop_before: str | None = None
    ) -> Iterator[ObjectInfo]:
        """List; like a real store, this fails when it is iterated and not when it is called."""
        call, fault = self._begin("LIST", prefix)
        if fault is None:
            yield from self.inner.list(prefix, start_after=start_after, stop_before=stop_before)
            return
        found = self._run(
            call,
            fault,
            lambda: [*self.inner.list(prefix, start_after=start_after, stop_before=stop_before)],
        )
        if fault in (Fault.HALFWAY, Fault.STOP_HALFWAY):
            yield from found[: len(found) // 2]
            raise _failure(call, fault)
        yield from found

    def head(self, path: str) -> ObjectInfo:
        """Ask, perhaps in vain."""
        return self._call("HEAD", (path,), lambda: self.inner.head(path))

    def get(self, path: str) -> bytes:
        """Get, perhaps in vain."""
        return self._call("GET", (path,), lambda: self.inner.get(path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Get a part, perhaps in vain."""
        return self._call("RANGE", (path,), lambda: self.inner.get_range(path, start, length))

    def get_many(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """Get many, perhaps in vain; one call, whatever their number."""
        return self._call("GET_MANY", tuple(paths), lambda: self.inner.get_many(paths))

    def put(self, path: str, data: bytes) -> None:
        """Put, or fail before or after."""
        self._call("PUT", (path,), lambda: self.inner.put(path, data))

    def put_stream(self, path: str, chunks: Iterator[StreamChunk], size_bytes: int) -> None:
        """Put what comes, or fail before or after; one call, whatever the number of chunks."""
        self._call("PUT", (path,), lambda: self.inner.put_stream(path, chunks, size_bytes))

    def put_stream_if_absent(
        self, path: str, chunks: Iterator[StreamChunk], size_bytes: int
    ) -> bool:
        """Put what comes if absent, or fail before or after; one call."""
        return self._call(
            "PUT_IF_ABSENT",
            (path,),
            lambda: self.inner.put_stream_if_absent(path, chunks, size_bytes),
        )

    def copy_within(self, path: str, new_path: str) -> None:
        """Copy, or fail before or after."""
        self._call("COPY", (path, new_path), lambda: self.inner.copy_within(path, new_path))

    def restore_time(self, path: str, modified_ms: int) -> None:
        """Set the time, or fail before or after."""
        self._call("UTIME", (path,), lambda: self.inner.restore_time(path, modified_ms))

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Put if absent, or fail before or after."""
        return self._call("PUT_IF_ABSENT", (path,), lambda: self.inner.put_if_absent(path, data))

    def swap(self, path: str, expected: bytes | None, data: bytes) -> bool:
        """Swap, or fail before or after."""
        return self._call("SWAP", (path,), lambda: self.inner.swap(path, expected, data))

    def delete_many(self, paths: Sequence[str]) -> None:
        """Delete all, half, or none of the names; one call, whatever their number."""
        call, fault = self._begin("DELETE", *paths)
        if fault in (Fault.HALFWAY, Fault.STOP_HALFWAY):
            self.inner.delete_many(paths[: len(paths) // 2])
            raise _failure(call, fault)
        self._run(call, fault, lambda: self.inner.delete_many(paths))

    def prune(self, prefix: str) -> None:
        """Leave it to the store."""
        self.inner.prune(prefix)

    def sign(self, method: str, path: str, expires_s: int) -> str:
        """Sign, perhaps in vain."""
        return self._call("SIGN", (path,), lambda: self.inner.sign(method, path, expires_s))

    def _begin(self, verb: str, *paths: str) -> tuple[StoreCall, Fault | None]:
        with self._lock:
            call = StoreCall(len(self.history), verb, paths)
            self.history.append(call)
            return call, self.rule(call)

    def _call(self, verb: str, paths: tuple[str, ...], act: Callable[[], T]) -> T:
        call, fault = self._begin(verb, *paths)
        if fault is Fault.HALFWAY:
            fault = Fault.FAIL
        elif fault is Fault.STOP_HALFWAY:
            fault = Fault.STOP_BEFORE
        return self._run(call, fault, act)

    def _run(self, call: StoreCall, fault: Fault | None, act: Callable[[], T]) -> T:
        if fault in (Fault.FAIL, Fault.STOP_BEFORE):
            raise _failure(call, fault)
        if fault is Fault.DELAY:
            self._delay()
        result = act()
        if fault in (Fault.LOSE_ANSWER, Fault.STOP_AFTER):
            raise _failure(call, fault)
        return result


def _failure(call: StoreCall, fault: Fault | None) -> BaseException:
    if fault in (Fault.STOP_BEFORE, Fault.STOP_HALFWAY, Fault.STOP_AFTER):
        return Stopped(f"stopped at call {call.index}: {call.verb} {call.paths[:1]}")
    changes = call.verb in CHANGES
    return StorageUnavailable(
        f"The store failed at call {call.index}: {call.verb}",
        cause="the test said so",
        # A client that sees only a broken connection can't know what was done; a
        # refused one (FAIL) it can.
        outcome_unknown=changes and fault is not Fault.FAIL,
    )

"""Rewrites the paths in newline-delimited JSON; every other byte stays."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

import msgspec
import pyarrow as pa

from lakeferry.errors import CorruptLog
from lakeferry.log.decoding import decode_odd
from lakeferry.log.lines import line_blocks
from lakeferry.log.rewrite.path_rewrite import (
    Absolute,
    PassObserver,
    Relative,
    Rewrite,
    Sidecars,
    rewrite_vectors,
    unreported,
)

SPELLED = "lakeferry.spelled"
"""The field with a token's old text, for the rare token that needs it."""

_CHUNK_LINES = 16_384
# Newline-delimited JSON.

_STRING = rb'"(?:[^"\\]|\\.)*"'
_TOKEN = re.compile(_STRING + rb"|[{}\[\],:]|[^\s{}\[\],:\"]+")
_UNIT = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u....|\\.|.", re.DOTALL)
_PLAIN_MEMBERS = rb'(?:,"[A-Za-z]+":(?:' + _STRING + rb"|[0-9a-z.-]+))*"
_COMMON = re.compile(rb'\{"(add|remove|cdc)":\{"path":"([^"\\]*)"')
# A vector followed only by plain members and the end of its action, so that it can't belong to
# anything nested deeper.
_COMMON_VECTOR = re.compile(
    rb'"deletionVector":\{"storageType":"([a-z])","pathOrInlineDv":"([^"\\]*)"'
    + _PLAIN_MEMBERS
    + rb"\}"
    + _PLAIN_MEMBERS
    + rb"\}\}\s*$"
)
_NAMES = (b'"add"', b'"remove"', b'"cdc"', b'"sidecar"')
_SPELLED_PATH = re.compile(rb',"lakeferry\.spelled":(' + _STRING + rb")")
_SPELLED_VECTOR = re.compile(rb',"lakeferry\.spelled":\[(' + _STRING + rb"),(" + _STRING + rb")\]")
_DECODE = msgspec.json.Decoder(str)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ACTIONS = ("add", "remove", "cdc")
_WANTED = frozenset(
    [(name, "path") for name in (*_ACTIONS, "sidecar")]
    + [("sidecar", "sizeInBytes")]
    + [
        (name, "deletionVector", key)
        for name in _ACTIONS
        for key in ("storageType", "pathOrInlineDv")
    ]
)

ByteSpan = tuple[int, int]
Spans = dict[tuple[str | None, ...], ByteSpan]
ByteEdit = tuple[int, int, bytes]


def rewrite_lines(
    data: bytes,
    rewrite: Rewrite,
    sidecars: Sidecars | None = None,
    *,
    adds: Rewrite | None = None,
    done: PassObserver = unreported,
) -> bytes:
    """Return a commit, compacted log or JSON checkpoint with its paths rewritten.

    Every other byte stays: white space, order, escapes, line ends, unknown fields and actions.
    ``adds`` is used for ``add`` actions instead, by callers that need to see their paths.
    ``done`` is called with the fraction of the bytes that are rewritten.
    """
    blocks, read_bytes = [], 0
    for block in line_blocks(data):
        blocks.append(_rewrite_block(block, rewrite, sidecars, adds=adds))
        read_bytes += len(block)
        done(read_bytes / max(1, len(data)))
    return b"\n".join(blocks)


def _rewrite_block(
    block: bytes, rewrite: Rewrite, sidecars: Sidecars | None, *, adds: Rewrite | None
) -> bytes:
    """Return whole lines with their paths rewritten."""
    lines = block.split(b"\n")
    for start in range(0, len(lines), _CHUNK_LINES):
        numbers = range(start, min(start + _CHUNK_LINES, len(lines)))
        found = {number: spans for number in numbers if (spans := _find(lines[number]))}
        if adds is None:
            _rewrite_chunk(lines, found, rewrite, sidecars)
            continue
        added = {number: spans for number, spans in found.items() if ("add", "path") in spans}
        others = {number: spans for number, spans in found.items() if number not in added}
        _rewrite_chunk(lines, added, adds, None)
        _rewrite_chunk(lines, others, rewrite, sidecars)
    return b"\n".join(lines)


def change_path(line: bytes) -> str | None:
    """Return the path of a ``cdc`` action; ``None`` for other lines."""
    span = _find(line).get(("cdc", "path"))
    return None if span is None else _text(line, span)


def _rewrite_chunk(
    lines: list[bytes],
    found: Mapping[int, Spans],
    rewrite: Rewrite,
    sidecars: Sidecars | None,
) -> None:
    paths: list[tuple[int, ByteSpan, str]] = []
    vectors: list[tuple[int, ByteSpan, ByteSpan]] = []
    descriptors: list[tuple[str, str]] = []
    edits: dict[int, list[ByteEdit]] = defaultdict(list)
    for number, spans in found.items():
        line = lines[number]
        for name in _ACTIONS:
            if (span := spans.get((name, "path"))) is not None:
                paths.append((number, span, _text(line, span)))
            kind = spans.get((name, "deletionVector", "storageType"))
            where = spans.get((name, "deletionVector", "pathOrInlineDv"))
            if kind is not None and where is not None:
                vectors.append((number, kind, where))
                descriptors.append((_text(line, kind), _text(line, where)))
        if sidecars and (span := spans.get(("sidecar", "path"))) is not None:
            size = spans.get(("sidecar", "sizeInBytes"))
            edits[number] += _sidecar_edits(line, span, size, sidecars)
    if paths:
        values = rewrite(pa.array([old for _, _, old in paths], pa.string())).to_pylist()
        for (number, span, old), new in zip(paths, values, strict=True):
            if new is not None and new != old:
                edits[number].append(_path_edit(lines[number], span, (old, new), rewrite))
    if vectors:
        rewritten = rewrite_vectors(descriptors, rewrite)
        for (number, kind, where), before, after in zip(
            vectors, descriptors, rewritten, strict=True
        ):
            if after != before:
                edits[number] += _vector_edits(
                    lines[number], (kind, where), (before, after), rewrite
                )
    for number, changes in edits.items():
        lines[number] = _apply(lines[number], changes)


def _apply(line: bytes, edits: list[ByteEdit]) -> bytes:
    pieces, position = [], 0
    for start, end, text in sorted(edits):
        pieces += [line[position:start], text]
        position = end
    return b"".join([*pieces, line[position:]])


def _find(line: bytes) -> Spans:
    """Return the positions of the relevant tokens; for strings, between the quotes."""
    # If it contains an escape, a line may spell any key in an unusual way.
    escaped = b"\\u" in line
    if not escaped:
        if not any(name in line for name in _NAMES):
            return {}
        usual = _usual(line)
        if usual is not None:
            return usual
    if not line.strip():
        return {}
    try:
        _OBJECT.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as broken:
        if decode_odd(line) is not None:
            return {}
        raise CorruptLog("a line of the log can't be read", cause=str(broken)) from broken
    return _scan(line)


def _usual(line: bytes) -> Spans | None:
    """Return the same, much faster, for a line in the layout that engines write."""
    path = _COMMON.match(line)
    if path is None or line.count(b'"path"') != 1 or not line.rstrip().endswith(b"}}"):
        return None
    name = path[1].decode()
    found: Spans = {(name, "path"): path.span(2)}
    if b'"deletionVector"' in line:
        vector = _COMMON_VECTOR.search(line, path.end())
        names = (b'"deletionVector"', b'"storageType"', b'"pathOrInlineDv"')
        if vector is None or any(line.count(each) > 1 for each in names):
            return None
        found[name, "deletionVector", "storageType"] = vector.span(1)
        found[name, "deletionVector", "pathOrInlineDv"] = vector.span(2)
    return found


def _scan(line: bytes) -> Spans:
    # The JSON is known to be valid, so it is enough to follow keys and depth. If a key occurs
    # twice, the last one counts, as in JSON parsers.
    found: Spans = {}
    keys: list[str | None] = []
    at_key = False
    for token in _TOKEN.finditer(line):
        start, end = token.span()
        first = line[start : start + 1]
        if first in b"{[":
            at_key = first == b"{"
            keys.append("" if at_key else None)
        elif first in b"}]":
            keys.pop()
            at_key = False
        elif first == b",":
            at_key = keys[-1] is not None
        elif first == b'"' and at_key:
            keys[-1] = _text(line, (start + 1, end - 1))
            at_key = False
        elif first != b":" and tuple(keys) in _WANTED:
            is_text = first == b'"'
            if is_text != (keys[-1] == "sizeInBytes"):
                found[tuple(keys)] = (start + 1, end - 1) if is_text else (start, end)
    return found


def _text(line: bytes, span: ByteSpan) -> str:
    raw = line[span[0] : span[1]]
    try:
        return _DECODE.decode(b'"' + raw + b'"') if b"\\" in raw else raw.decode()
    except (msgspec.MsgspecError, UnicodeDecodeError) as broken:
        raise CorruptLog("a line of the log can't be read", cause=str(broken)) from broken


def _plain(text: str) -> bytes:
    return msgspec.json.encode(text)[1:-1]


def _splice(raw: bytes, old: str, new: str) -> bytes:
    """Return ``new`` as JSON text; its common end with ``old`` keeps the spelling in ``raw``."""
    limit = min(len(old), len(new))
    common = limit if new.endswith(old) or old.endswith(new) else 0
    while common < limit and old[-1 - common] == new[-1 - common]:
        common += 1
    if b"\\" in raw:
        units = _UNIT.findall(raw.decode())
        tail = "".join(units[len(units) - common :]).encode()
    else:
        tail = old[len(old) - common :].encode()
    return _plain(new[: len(new) - common]) + tail


def _path_edit(line: bytes, span: ByteSpan, change: tuple[str, str], rewrite: Rewrite) -> ByteEdit:
    start, end = span
    old, new = change
    raw = line[start:end]
    text = _splice(raw, old, new)
    kept = _SPELLED_PATH.match(line, end + 1)
    if isinstance(rewrite, Relative) and kept is not None:
        inside = kept.span(1)[0] + 1, kept.span(1)[1] - 1
        if _text(line, inside) == new:
            return start, kept.end(), line[inside[0] : inside[1]] + b'"'
    if isinstance(rewrite, Absolute) and (kept is not None or _splice(text, new, old) != raw):
        return start, end + 1, text + b'","' + SPELLED.encode() + b'":"' + raw + b'"'
    return start, end, text


def _vector_edits(
    line: bytes,
    spans: tuple[ByteSpan, ByteSpan],
    change: tuple[tuple[str, str], tuple[str, str]],
    rewrite: Rewrite,
) -> list[ByteEdit]:
    (kind, where), (old, new) = spans, change
    raw_kind, raw = line[kind[0] : kind[1]], line[where[0] : where[1]]
    if old[0] == new[0]:
        text = _splice(raw, old[1], new[1])
        exact = _splice(text, new[1], old[1]) == raw
        edits: list[ByteEdit] = []
    else:
        text = _plain(new[1])
        exact = raw_kind == old[0].encode() and raw == _plain(old[1])
        edits = [(*kind, new[0].encode())]
    kept = _SPELLED_VECTOR.match(line, where[1] + 1)
    if isinstance(rewrite, Relative) and kept is not None:
        (a, b), (c, d) = kept.span(1), kept.span(2)
        if (_text(line, (a + 1, b - 1)), _text(line, (c + 1, d - 1))) == new:
            return [
                (*kind, line[a + 1 : b - 1]),
                (where[0], kept.end(), line[c + 1 : d - 1] + b'"'),
            ]
    if isinstance(rewrite, Absolute) and (kept is not None or not exact):
        spelled = b'","' + SPELLED.encode() + b'":["' + raw_kind + b'","' + raw + b'"]'
        return [*edits, (where[0], where[1] + 1, text + spelled)]
    return [*edits, (*where, text)]


def _sidecar_edits(
    line: bytes, span: ByteSpan, size: ByteSpan | None, sidecars: Sidecars
) -> Iterator[ByteEdit]:
    old = _text(line, span)
    if old in sidecars:
        new, size_bytes = sidecars[old]
        yield (*span, _splice(line[span[0] : span[1]], old, new))
        if size is not None:
            yield (*size, str(size_bytes).encode())

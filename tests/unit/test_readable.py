from __future__ import annotations

from lakeferry.readable import counted, elapsed, moment, one_line, size


def test_numbers_have_their_nouns() -> None:
    assert [counted(n, "file") for n in (0, 1, 2000)] == ["0 files", "1 file", "2,000 files"]
    assert [counted(n, "property") for n in (1, 2)] == ["1 property", "2 properties"]
    assert counted(None, "property") == "an unknown number of properties"


def test_sizes_times_and_durations() -> None:
    assert [size(n) for n in (None, 1, 1536, 2**70)] == [
        "unknown",
        "1 byte",
        "1.5 KiB",
        "1024.0 EiB",
    ]
    assert moment(0) == "1970-01-01 00:00:00 UTC"
    assert moment(2**62) == f"{2**62} ms"
    assert [elapsed(s) for s in (0.9, 61, 90_061)] == ["0:00:00", "0:01:01", "1:01:01"]


def test_what_controls_a_display_is_shown_as_text() -> None:
    assert one_line("a\n\x1b[31m\u202eb") == "a \\x1b[31m\\u202eb"

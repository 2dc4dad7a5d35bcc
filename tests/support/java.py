"""How a JVM runs that lives for a few minutes, and does little that is the same."""

from __future__ import annotations

OPTIONS = (
    # It ends before the optimising compiler would pay for itself.
    "-XX:TieredStopAtLevel=1",
    # With one compiler Java keeps little room for its code; when that is full, it interprets.
    "-XX:ReservedCodeCacheSize=240m",
    "-XX:+UseSerialGC",
)

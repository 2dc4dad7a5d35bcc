"""How the tests' JVMs run: those that live for a minute, and the one that most tests share."""

from __future__ import annotations

_EACH = (
    "-XX:+UseSerialGC",
    # Hadoop has a program set the mode of every file that it makes on local disk.
    "-Djdk.lang.Process.launchMechanism=VFORK",
)

OPTIONS = (
    *_EACH,
    # It ends before the optimising compiler would pay for itself.
    "-XX:TieredStopAtLevel=1",
    # With one compiler Java keeps little room for its code; when that is full, it interprets.
    "-XX:ReservedCodeCacheSize=240m",
)
"""For a JVM that lives for a minute or two, and does little that is the same."""

LASTING = (*_EACH, "-XX:TieredStopAtLevel=4")
"""For one that lives as long as the tests do."""

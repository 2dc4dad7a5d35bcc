"""How the tests' JVMs run: those that live for a minute, and the one that most tests share."""

from __future__ import annotations

_EACH = (
    "-XX:+UseSerialGC",
    # Hadoop has a program set the mode of every file that it makes on local disk.
    "-Djdk.lang.Process.launchMechanism=VFORK",
    # Spark's classes take this much. Java begins with a tenth, and collects all garbage each time
    # that it takes more.
    "-XX:MetaspaceSize=256m",
)

OPTIONS = (
    *_EACH,
    # It ends before the optimising compiler would pay for itself.
    "-XX:TieredStopAtLevel=1",
    # With one compiler Java keeps little room for its code; when that is full, it interprets.
    "-XX:ReservedCodeCacheSize=240m",
)
"""For a JVM that lives for a minute or two, and does little that is the same."""

LASTING = (
    *_EACH,
    "-XX:TieredStopAtLevel=4",
    # Plans are thrown away by the gigabyte: the more room for them, the less often they are
    # looked through.
    "-Xms1500m",
    "-Xmn600m",
)
"""For one that lives as long as the tests do, with :data:`LASTING_MEMORY`."""

LASTING_MEMORY = "2g"
"""What Spark remembers of a thousand queries fills half of that; with less it collects garbage."""

"""A Delta log at a location: loads snapshots, commits, writes checkpoints.

Connects :mod:`lakeferry.log`, which decides, with :mod:`lakeferry.storage`, which
reads and writes. Knows no redirects and no catalogs.
"""

from lakeferry.table.delta_log import DeltaLog

__all__ = ["DeltaLog"]

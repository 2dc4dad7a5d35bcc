"""The console: pages that show the fleet, tables and datasets, and move tables.

``lakeferry ui`` shows it to one user (:mod:`lakeferry.web.local_console`), ``lakeferry serve`` to
those with tokens (:mod:`lakeferry.web.server_console`). Only these two import this package.
"""

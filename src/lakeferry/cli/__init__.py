"""The command line: one file per group of commands.

``docs/cli.md`` describes it for users. Commands stand on :mod:`lakeferry.api.table`,
which they import when they run and not before: ``lakeferry --help`` loads
neither Arrow nor Spark.
"""

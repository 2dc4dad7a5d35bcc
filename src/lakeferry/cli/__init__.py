"""The command line: one file per group of commands.

``docs/cli.md`` describes it for users. Commands use :mod:`lakeferry.api.table`, which they
import only when they run: ``lakeferry --help`` loads neither Arrow nor Spark.
"""

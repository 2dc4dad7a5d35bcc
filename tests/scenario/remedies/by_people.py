"""Remedies that no test can follow: a person has to act, or the command line can't get there."""

from __future__ import annotations

from tests.support.remedies import NEEDS_A_PERSON

_OTHER_PROGRAM = "a newer Lakeferry or another program has to be installed"
_SIGNAL = "it takes a signal to a running process: tests/scenario/test_cli_redirect.py sends one"
_RACE = "it takes two processes that meet in one storage call; the simulations provoke it"
_REPORT = "it is a defect of Lakeferry: the user reports it"
_SENDER = "the sender's data is damaged, and only its owner can mend it"
_IN_SPARK = "it is raised in the user's Spark session; tests/compat/test_spark_sql.py follows it"
_INSTALL = "a package of the system or of Python has to be installed"

NEEDS_A_PERSON.update(
    {
        "cli/app.py: <output.after_interrupt>": _SIGNAL,
        "many_moves/__init__.py: run the command again: the list goes on from here": _SIGNAL,
        "catalogs/sql.py: install it: pip install 'lakeferry[postgresql]'": _INSTALL,
        "catalogs/sql.py: somebody else is writing to it for long: try again in a moment": _RACE,
        "catalogs/sql.py: try again": _RACE,
        "cli/demo/__init__.py: please report it, with {}": _REPORT,
        "cli/demo/spark.py: 'lakeferry doctor' says what is missing": _INSTALL,
        "cli/demo/spark.py: look at {}": _REPORT,
        "cli/demo/spark.py: pip install deltalake": _INSTALL,
        "cli/demo/writer.py: look at {}": _REPORT,
        "engines/__init__.py: pip install 'lakeferry[spark]', or use --engine local": _INSTALL,
        "engines/objects.py: try again": _RACE,
        "engines/spark_errors.py: pip install 'lakeferry[spark]', or use --engine local": _INSTALL,
        "engines/spark_session.py: install Java 17 or newer and set JAVA_HOME, "
        "or use --engine local": _INSTALL,
        "export/exporter.py: try again when they are done": _RACE,
        "export/manifest.py: choose another place, or use that version": _OTHER_PROGRAM,
        "log/cleanup.py: restore the missing log files from a copy; nothing was deleted": (
            "every command reads the log first, and that fails with a remedy of its own"
        ),
        "log/features.py: use a version of Lakeferry that knows this protocol": _OTHER_PROGRAM,
        "protection/dropping.py: drop it with the engine that added it": _OTHER_PROGRAM,
        "protection/work.py: try again when fewer write to the table; "
        "what was done so far stays valid": _RACE,
        "redirect/precopy.py: nothing has changed at the source; "
        "this is a defect of Lakeferry": _REPORT,
        "redirect/way_back.py: run the same command again: "
        "the net change comes back in one commit": _RACE,
        "server/exporting.py: please report it, with what LAKEFERRY_DEBUG=1 shows": _REPORT,
        "spark/__init__.py: pip install 'lakeferry[spark]'": _INSTALL,
        "spark/client.py: name {} instead of it: in the statement, or in the view or "
        "function, which has to be created again": _IN_SPARK,
        "spark/client.py: write the statement or the name itself, use a named parameter, "
        "or give the computed text to spark.sql": _IN_SPARK,
        "table/load.py: try again; if it stays so, restore the file from a copy": _RACE,
        "transfer/blocks.py: another version of Lakeferry may know it": _OTHER_PROGRAM,
        "transfer/blocks.py: its writer's copy is damaged, or it isn't a metadata block": _SENDER,
        "transfer/chain.py: its sender's chain is damaged, or its blocks are not in order": _SENDER,
        "transfer/delta_blocks.py: its sender's chain is damaged": _SENDER,
        "transfer/delta_blocks.py: its writer's copy is damaged": _SENDER,
        "transfer/delta_blocks.py: update Lakeferry": _OTHER_PROGRAM,
        "transfer/delta_judging.py: its sender's chain is damaged": _SENDER,
        "transfer/delta_roots.py: its sender's chain is damaged": _SENDER,
        "transfer/downloads.py: ask its owner: the dataset there is damaged": _SENDER,
        "transfer/downloads.py: the sender's copy is damaged": _SENDER,
        "transfer/simple.py: ask its owner: the dataset there is damaged": _SENDER,
    }
)

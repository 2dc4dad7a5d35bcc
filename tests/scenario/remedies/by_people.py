"""Remedies that no test can follow: a person has to act, or the command line can't get there."""

from __future__ import annotations

from tests.support.remedies import NEEDS_A_PERSON, provoked

_OTHER_PROGRAM = "a newer Lakeferry or another program has to be installed"
_RACE = "it takes two processes that meet in one storage call"
_REPORT = "it is a defect of Lakeferry: the user reports it"
_READS = "a person reads what is written there"
_INSTALL = "a package of the system or of Python has to be installed"

_DEMO = "scenario/test_cli_demo.py::"
_SQL = "unit/catalogs/test_sql.py::"
_SPARK_SQL = "compat/test_spark_sql.py::"
_BY_NAME = "compat/test_spark_by_name.py::"
_IN_SPARK = "it is raised in the user's Spark session"
_CONNECT = "compat/test_spark_connect.py::"
_CONNECT_ENGINE = "unit/engines/spark/test_connect_engine.py::"
_UNITY_ON_CONNECT = "it takes a Connect server with Unity Catalog's Spark connector"
_ENGINE = "unit/engines/test_engines.py::"

NEEDS_A_PERSON.update(
    {
        "app.py: <output.after_interrupt>": provoked(
            "it takes a signal to a running process",
            "scenario/test_cli_redirect.py::test_an_interrupted_move_says_how_to_go_on",
        ),
        "redirect_list.py: <output.after_interrupt>": provoked(
            "it takes a signal to a running process",
            "scenario/test_cli_redirect.py::test_an_interrupted_list_reports_what_is_done_and_goes_on",
        ),
        "app.py: please report it, with what {}=1 shows": _REPORT,
        "move_list.py: please report it": _REPORT,
        "single_moves.py: 'lakeferry fleet pause --stop-running' stops the move; then cancel it "
        "again": (_RACE),
        "features.py: drop these features from the table with the engine that manages it": (
            _OTHER_PROGRAM
        ),
        "features.py: use the table through the catalog or service that manages its commits": (
            _OTHER_PROGRAM
        ),
        "move_list.py: run the command again: the list continues from here": provoked(
            "it takes a signal to a running process",
            "unit/api/test_move_list.py::"
            "test_an_interrupt_lets_nothing_begin_and_tells_what_is_done",
        ),
        "sql_database.py: install it: pip install 'lakeferry[postgresql]'": provoked(
            _INSTALL, f"{_SQL}test_postgresql_without_its_driver_says_what_to_install"
        ),
        "packages.py: pip install '{}'": provoked(
            _INSTALL, "scenario/test_wheel.py::test_a_command_names_the_package_that_it_lacks"
        ),
        "spark_errors.py: install what Lakeferry requires on every node, or send it with "
        "--archives of spark-submit; docs/install.md shows how": provoked(
            _INSTALL, f"{_ENGINE}test_a_package_that_executors_lack_is_named"
        ),
        "arrow_versions.py: pip install 'pyarrow>=21'": provoked(
            _INSTALL, "unit/dataset/test_scanning_values.py::test_variants_are_their_two_parts"
        ),
        "packages.py: use a Python that was built with it": provoked(
            _INSTALL, "unit/test_packages.py::test_a_python_without_a_module_of_its_own_is_named"
        ),
        "sql_database.py: another process has been writing to it for a long time: "
        "try again in a moment": provoked(
            "the program waits ten seconds for it",
            f"{_SQL}test_a_database_that_is_locked_for_too_long_is_unavailable",
        ),
        "name_changes.py: run the same command again, which asks about that table": provoked(
            "a person answers a question on a terminal",
            "scenario/test_managed_names.py::test_the_question_is_about_the_table_that_is_dropped",
        ),
        "catalogs/catalog.py: run the same command again": provoked(
            _RACE,
            "unit/catalogs/test_name_changes.py::"
            "test_a_name_that_somebody_else_moves_meanwhile_stays_where_it_leads",
        ),
        "sql.py: try again": provoked(_RACE, f"{_SQL}test_a_name_that_comes_and_goes_is_given_up"),
        "examples/demo/__init__.py: choose another folder with --folder": provoked(
            "a demo takes a minute, so that it is followed where a demo is run anyway",
            f"{_DEMO}test_the_demo_s_numbers_are_those_of_its_tables",
        ),
        "examples/demo/__init__.py: please report it, with {}": _REPORT,
        "spark.py: 'lakeferry doctor' says what is missing": provoked(
            _INSTALL, f"{_DEMO}test_the_demo_without_java_says_what_is_missing"
        ),
        "spark.py: look at {}": _READS,
        "spark.py: pip install deltalake": provoked(
            _INSTALL, f"{_DEMO}test_the_demo_without_delta_rs_says_what_is_missing"
        ),
        "writer.py: look at {}": provoked(
            _READS, f"{_DEMO}test_a_writer_that_was_killed_is_waited_for_no_longer"
        ),
        "engines/__init__.py: pip install 'lakeferry[spark]', or use --engine local": provoked(
            _INSTALL, f"{_ENGINE}test_without_spark_its_engine_says_how_to_get_it"
        ),
        "log_file_copy.py: try again": provoked(
            _RACE,
            "unit/engines/test_local_copy.py::TestLogFiles::test_a_file_that_is_gone_is_named",
        ),
        "spark_errors.py: install that package with pip, or use --engine local": provoked(
            _INSTALL, f"{_ENGINE}test_a_spark_that_lacks_a_package_says_how_to_get_it"
        ),
        "serving.py: see its log": provoked(
            _READS,
            "unit/api/test_serving.py::test_who_waits_for_it_is_told_when_it_stops_by_itself",
        ),
        "log/cleanup.py: restore the missing log files from a copy; nothing was deleted": provoked(
            "every command reads the log first, and that fails with a remedy of its own",
            "unit/log/test_cleanup.py::test_a_log_with_a_gap_is_left_alone",
        ),
        "features.py: use a version of Lakeferry that supports this protocol": provoked(
            _OTHER_PROGRAM,
            "unit/log/test_features.py::test_versions_that_do_not_exist_yet_are_refused",
        ),
        "dropping.py: drop it with the engine that added it": provoked(
            _OTHER_PROGRAM,
            "unit/protection/test_dropping.py::"
            "test_what_can_t_be_dropped_is_refused_and_nothing_changes",
        ),
        "drop_context.py: try again when fewer processes write to the table; what was done so "
        "far stays valid": provoked(
            _RACE,
            "unit/protection/test_dropping.py::"
            "test_a_table_whose_properties_others_set_without_a_pause_is_given_up",
        ),
        "precopy.py: report this defect of Lakeferry to its developers; nothing has changed at "
        "the source": provoked(
            _REPORT,
            "unit/redirect/enable/test_enabling_adoption.py::"
            "test_names_under_which_something_else_is_cancelled_never_pass",
        ),
        "carried_commits.py: run the same command again: it brings all changes back "
        "in one commit": provoked(
            _RACE,
            "unit/redirect/disable/test_disabling.py::"
            "test_where_they_are_cleaned_up_meanwhile_the_same_command_brings_the_net_change",
        ),
        "export_jobs.py: please report it, with what LAKEFERRY_DEBUG=1 shows": provoked(
            _REPORT,
            "unit/server/lakefs/test_export_worker.py::"
            "test_whatever_a_job_raises_is_kept_and_the_next_one_is_done",
        ),
        "spark/__init__.py: pip install 'lakeferry[spark]'": provoked(
            _INSTALL, "unit/spark/test_spark.py::test_without_pyspark_it_says_how_to_get_it"
        ),
        "redirected_path.py: use {} instead of the old name in the statement; if a view or "
        "function has the old name, create it again with the new one": provoked(
            "it is raised and followed in the user's Spark session",
            f"{_SPARK_SQL}test_a_view_is_followed_in_the_jvm_or_refused",
        ),
        "connect_engine.py: install lakeferry=={} for the server's Python (on Databricks: in the "
        "cluster's libraries, or the environment of the serverless job), or use --engine "
        "local": provoked(_INSTALL, f"{_CONNECT}test_executors_with_another_lakeferry_are_refused"),
        "connect_engine.py: pip install 'pyspark[connect]'": provoked(
            _INSTALL, f"{_CONNECT_ENGINE}test_without_the_client_s_packages_it_says_what_to_install"
        ),
        "connect_engine.py: write sc://host:port, as PySpark's builder.remote takes it": provoked(
            "it takes a server, which these tests don't start",
            f"{_CONNECT_ENGINE}test_a_url_of_another_kind_is_refused",
        ),
        "connect_server.py: write the whole path, with its scheme": (
            "it takes a server that doesn't say what a relative path means"
        ),
        "connect_plans.py: spark.conf.set('spark.connect.session.planCompression.threshold', "
        "'-1')": "it takes a PySpark that compresses plans in another way",
        "connect_client.py: give the server a catalog of that name, or ask the catalog's "
        "administrator to grant SELECT on the table to the user of this session": _UNITY_ON_CONNECT,
        "connect_client.py: connect to a server that has the catalog to which the table "
        "moved": _UNITY_ON_CONNECT,
        'connect_client.py: spark.conf.set("{}", "false"), then start it again': _UNITY_ON_CONNECT,
        "redirected_path.py: read {} with a condition on its columns, such as {} = '{}'": provoked(
            _IN_SPARK, f"{_BY_NAME}test_what_only_a_path_can_say_is_refused_with_the_name"
        ),
        "redirected_path.py: use {}; an older version can be read with spark.read or in "
        "SQL": provoked(
            _IN_SPARK, f"{_BY_NAME}test_what_only_a_path_can_say_is_refused_with_the_name"
        ),
        "redirected_path.py: leave out the path, and use the table that is there: {}": provoked(
            _IN_SPARK, f"{_BY_NAME}test_what_only_a_path_can_say_is_refused_with_the_name"
        ),
        "session_catalogs.py: set {}.uri to the server that Lakeferry uses (UC_URL)": provoked(
            _IN_SPARK, f"{_BY_NAME}test_another_table_of_that_name_is_refused"
        ),
        "session_catalogs.py: ask the catalog's administrator to grant SELECT on the table, and "
        "MODIFY for writing, to the user whose token Spark has, or correct the catalog's settings "
        "as the cause says": provoked(
            "another person has to grant it",
            f"{_BY_NAME}test_a_table_that_spark_cant_open_is_refused",
        ),
        "session_catalogs.py: start Spark with the jars of Unity Catalog's Spark connector "
        "(unitycatalog-spark) in spark.jars or spark.jars.packages, with {}={}, and with {}.uri "
        "and {}.token": provoked(
            "it takes the connector, which is on no registry",
            f"{_BY_NAME}test_without_a_catalog_the_error_names_the_settings",
        ),
        "session_catalogs.py: use a newer Spark (4.2 was tried), or lakeferry.open": provoked(
            "it takes another Spark",
            "unit/spark/test_session_catalogs.py::"
            "test_a_delta_lake_without_managed_tables_is_refused_before_it_is_asked",
        ),
        "patched_delta_tables.py: open it again, with DeltaTable.forPath or forName": provoked(
            "it is raised and followed in the user's Spark session",
            f"{_SPARK_SQL}test_a_table_that_moved_after_it_was_opened_is_refused",
        ),
        "redirected_path.py: write the statement or the name itself, or give the computed text to "
        "spark.sql": provoked(
            "it is raised in the user's Spark session, about a script that the user rewrites",
            f"{_SPARK_SQL}test_what_is_known_only_while_a_script_runs_is_refused",
        ),
        "statement_rewrite.py: divide it into several statements, or give the driver a larger "
        "stack (spark.driver.extraJavaOptions=-Xss16m)": provoked(
            "it is raised in the user's Spark session, about a statement that the user rewrites",
            "compat/test_spark_sql_hidden.py::"
            "test_a_statement_that_is_too_deep_to_be_looked_through_is_not_run",
        ),
    }
)

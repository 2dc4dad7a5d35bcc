"""Tables that Unity Catalog manages: what its API refuses, and what another person has to do."""

from __future__ import annotations

from tests.support.remedies import NEEDS_A_PERSON

_REFUSALS = "tests/scenario/test_managed_refusals.py"
_CONTRACT = "tests/scenario/test_managed_contract.py"
_UNIT = "tests/unit/catalogs/test_unity_delta.py"
_SOURCES = "tests/unit/catalogs/test_unity_credentials.py"

_STORE = "tests/unit/table/managed/test_managed_store.py"
_TABLES = "tests/scenario/test_managed_tables.py"

NEEDS_A_PERSON.update(
    {
        "cleaning.py: nothing has to be done: cleaning up this log is up to the catalog": (
            f"there is nothing to type: {_TABLES}::test_what_the_catalog_does_not_permit_is_refused"
        ),
        "managed_store.py: leave the file as it is: only the catalog may change it": (
            f"no command does that: {_STORE}::test_the_log_is_not_changed_past_the_catalog"
        ),
        "managed_store.py: run the same command again": (
            f"no command of ours leaves a gap: {_STORE}::test_no_commit_may_leave_a_gap"
        ),
        "managed_store.py: run the same command again when the catalog answers": (
            "a catalog has to be down at one moment and up at the next: "
            f"{_STORE}::test_whatever_call_fails_the_commit_is_there_once_or_not_at_all"
        ),
        "managed_store.py: run the same command again; if that doesn't help, ask the catalog's "
        "administrator": (
            "it takes a catalog that says that a free version is taken, over and over"
        ),
        "publish_commits.py: stop the writer that wrote this file without the catalog, move the "
        "file out of the log, and run 'lakeferry publish TABLE' again": (
            "only a person finds out which writer that was: "
            f"{_STORE}::test_a_published_file_with_other_bytes_is_not_reported"
        ),
        "table.py: give the name of a managed table: unity:catalog.schema.table": (
            "only a person knows the name: tests/unit/api/test_table_place.py::"
            "test_a_table_without_such_a_catalog_has_nothing_to_publish"
        ),
        "transfers.py: pull into a folder, and move that table to a new name of the catalog: "
        "lakeferry redirect enable FOLDER unity:catalog.schema.table --managed": (
            "only a person knows which folder and which name: tests/scenario/"
            "test_managed_copies.py::test_nothing_is_pulled_into_a_managed_table"
        ),
        "unity_commit_catalog.py: ask who dropped it, or who took the privileges on it from you": (
            f"a dropped table doesn't come back: {_CONTRACT}::test_a_dropped_table_is_gone"
        ),
        "unity_commit_catalog.py: try again, and see the server's own log": (
            "it takes somebody who renames the table between each two of our requests"
        ),
        "unity_credentials.py: give your own storage options for that place": (
            f"{_SOURCES}::test_a_place_has_credentials has a server that issues none, and "
            "tests/scenario/test_vended_credentials.py::test_options_of_the_user_ask_nobody "
            "gives its own"
        ),
        "unity_delta_rest.py: only the user who started the move may use that place: run the same "
        "command with that user's token (UC_TOKEN).{}": (
            f"another user has to begin: {_UNIT}::test_a_staging_table_belongs_to_who_allocated_it"
        ),
        "unity_delta.py: ask its administrator to create it (CREATE SCHEMA {}.{}), then try "
        "again": (f"an administrator has to act: {_CONTRACT}::test_a_missing_schema_is_named"),
        "unity_delta_rest.py: check the name, and whether it was dropped": (
            f"only a person knows the name: {_CONTRACT}::test_a_missing_schema_is_named"
        ),
        "unity_delta_rest.py: change what the cause names, or ask the administrator of the server "
        "to change its rules": (
            f"the catalog decides: {_REFUSALS}::"
            "test_managed_tables_that_are_switched_off_later_are_read_and_not_changed"
        ),
        "unity_delta_rest.py: ask its administrator to set up what the cause names; or leave out "
        "--managed: the table is registered as an external one then": (
            f"the administrator has to act: {_REFUSALS}::"
            "test_a_server_that_is_not_set_up_for_managed_tables_is_refused"
        ),
        "unity_delta_rest.py: choose another name": (
            f"the API is called with another one in "
            f"{_CONTRACT}::test_a_taken_name_is_given_to_nobody"
        ),
        "unity_delta_rest.py: ask its administrator to rename all but one of them in its "
        "database": (
            "no request reaches those tables: "
            f"{_CONTRACT}::test_two_tables_of_one_name_are_an_error_of_its_own"
        ),
        "unity_delta_rest.py: ask the catalog's administrator to grant you {}": (
            "whoever owns the table has to act: "
            f"{_UNIT}::test_a_refusal_says_which_privilege_is_needed"
        ),
        "unity_delta_rest.py: try again, and see the server's own log": (
            f"the server has to recover: {_UNIT}::test_what_is_no_answer_to_a_commit_is_raised"
        ),
        "unity_delta_rest.py: use a server of version 0.7 or newer, or an external table": (
            f"another server has to be installed: {_UNIT}::test_a_server_of_before_is_one_"
            "without_the_api"
        ),
        "unity_listing.py: look for the table with that id in Unity Catalog, and use its name": (
            "it takes a server with more tables than a client lists: "
            f"{_UNIT}::test_a_listing_that_is_too_long_proves_nothing"
        ),
    }
)

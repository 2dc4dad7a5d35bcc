"""Tables that Unity Catalog manages: what its API refuses, and what another person has to do."""

from __future__ import annotations

from tests.support.remedies import NEEDS_A_PERSON

_CONTRACT = "tests/scenario/test_managed_contract.py"
_UNIT = "tests/unit/catalogs/test_unity_delta.py"
_SOURCES = "tests/unit/catalogs/test_unity_credentials.py"

NEEDS_A_PERSON.update(
    {
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
        "unity_delta.py: continue as the user who began, to whom alone the place belongs.{}": (
            f"another user has to begin: {_UNIT}::test_a_staging_table_belongs_to_who_allocated_it"
        ),
        "unity_delta.py: have its administrator create it (CREATE SCHEMA {}.{}), then try again": (
            f"an administrator has to act: {_CONTRACT}::test_a_missing_schema_is_named"
        ),
        "unity_delta_rest.py: check the name, and whether it was dropped": (
            f"only a person knows the name: {_CONTRACT}::test_a_missing_schema_is_named"
        ),
        "unity_delta_rest.py: choose another name": (
            f"the API is called with another one in "
            f"{_CONTRACT}::test_a_taken_name_is_given_to_nobody"
        ),
        "unity_delta_rest.py: have its administrator give all but one of them another name in its "
        "database": (
            "no request reaches those tables: "
            f"{_CONTRACT}::test_two_tables_of_one_name_are_an_error_of_its_own"
        ),
        "unity_delta_rest.py: have {} granted to you": (
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

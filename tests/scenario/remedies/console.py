"""The console: what its pages refuse. People follow these remedies in a browser."""

from __future__ import annotations

from tests.support.remedies import NEEDS_A_PERSON, provoked

_PAGE = "a person uses a page"
_APP = "unit/web/test_console_app.py::"
_OTHER_SITE = "TestForms::test_a_form_comes_from_our_own_pages"
_OLD_FORM = "TestForms::test_a_form_needs_the_token_of_its_session"

NEEDS_A_PERSON.update(
    {
        remedy: provoked(_PAGE, by)
        for remedy, by in {
            "background_work.py: wait until it has ended": "unit/web/test_background_work.py::"
            "test_one_of_a_kind_runs_at_a_time_and_some_not_beside_each_other",
            "console_app.py: load the page again": f"{_APP}TestServer::"
            "test_signing_in_needs_a_valid_token_and_our_form",
            "console_app.py: sign in with a token that may write": f"{_APP}TestServer::"
            "test_a_token_to_read_sees_and_does_nothing",
            "demo_tables.py: name a folder in which you may write": "unit/web/test_demo_tables.py::"
            "test_a_folder_that_cannot_be_made_is_refused",
            "demo_tables.py: name a folder that isn't there yet, or an empty one": "unit/web/"
            "test_demo_tables.py::test_nothing_is_written_where_something_is",
            "fleet_forms.py: begin it with /": "unit/web/pages/test_fleet_forms.py::"
            "test_a_form_with_a_wrong_value_says_what_is_right",
            "fleet_forms.py: use {}": "unit/web/pages/test_fleet_forms.py::"
            "test_a_form_with_a_wrong_value_says_what_is_right",
            "fleet_forms.py: give a new place for the tables": "unit/web/pages/"
            "test_fleet_forms.py::test_a_form_with_a_wrong_value_says_what_is_right",
            "live_file_counts.py: use 'lakeferry inspect' or 'lakeferry files'": "unit/api/"
            "test_live_file_counts.py::test_a_log_that_is_too_large_is_refused",
            "redirect_map.py: give a folder, a prefix or sql:": "unit/web/pages/"
            "test_redirect_map.py::test_a_search_needs_a_place",
            "served_datasets.py: go back to the list: it may have another name now": "unit/web/"
            "pages/test_served_datasets.py::TestWhoSeesWhat::test_what_is_no_dataset_is_not_found",
            "table_timeline.py: check the path": "unit/api/test_table_timeline.py::"
            "test_a_place_without_a_table_is_refused",
            "table_timeline_pages.py: choose one at Tables": "unit/web/pages/"
            "test_table_timeline_pages.py::test_a_place_without_a_table_is_told",
            "live_feed.py: close some, or load the page again to see what is new": "unit/web/"
            "test_live_feed.py::test_all_connections_share_one_poller_and_few_are_let_in",
            "request_rules.py: load the page again, and repeat the action": f"{_APP}{_OLD_FORM}",
            "request_rules.py: open the URL that the program printed": f"{_APP}TestLocal::"
            "test_another_host_is_refused",
            "request_rules.py: use the form on the page": f"{_APP}{_OTHER_SITE}",
            "sign_in.py: open the URL that 'lakeferry ui' printed; each start has another one": (
                f"{_APP}TestLocal::test_another_token_lets_nobody_in"
            ),
            "single_moves.py: if the move is running, 'lakeferry fleet pause --stop-running' stops "
            "it; then try again": "unit/"
            "web/pages/test_move_jobs.py::test_a_job_that_does_not_stand_still_is_not_settled",
            "single_moves.py: see 'lakeferry fleet status'": "scenario/test_single_moves.py::"
            "test_a_job_that_is_not_there_is_refused",
            "visit.py: scan it once with 'lakeferry fleet scan', or start the server with "
            "--console-place": f"{_APP}TestServer::test_places_have_to_be_allowed",
        }.items()
    }
)

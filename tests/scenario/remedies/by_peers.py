"""Remedies of transfers, servers and stores that no command line can be made to print here."""

from __future__ import annotations

from tests.support.remedies import NEEDS_A_PERSON, provoked

_RACE = "it takes two processes that meet in one storage call"
_LATE = "it takes minutes of silence"
_BROKEN_STORE = "it takes a store that breaks its own rules"
_FILE_SYSTEM = "it takes another file system"
_PEER = "it takes a peer that breaks the protocol"
_SENDER = "the sender's data is damaged, and only its owner can mend it"
_OTHER_VERSION = "another version of Lakeferry has to be installed"

_LOCAL = "unit/storage/test_local_store.py::"
_OBJECTS = "unit/storage/test_objects.py::"
_LAKEFS = "unit/storage/test_lakefs.py::"
_DELTA = "unit/transfer/datasets/delta/test_delta_dataset.py::"
_REPOSITORY = "unit/transfer/repository/test_repository.py::"
_BLOCKS = "unit/transfer/chain/test_odf_blocks.py::"
_CHAIN = "unit/transfer/chain/test_validation.py::"

NEEDS_A_PERSON.update(
    {
        "failure_messages.py: ask the owner of the dataset to repair it: it lacks files": _SENDER,
        "failure_messages.py: ask the server's owner for a token that is valid now, then run the "
        "same command again": "a token has to end in the middle of a session",
        "failure_messages.py: compare the versions of Lakeferry at both ends": _OTHER_VERSION,
        "failure_messages.py: {}; the server's log has the reason": _OTHER_VERSION,
        "failure_messages.py: pull into an empty place: the table is then transferred in "
        "parts": provoked(
            "it takes a history of many gigabytes",
            "unit/server/sessions/test_pull_work.py",
        ),
        "failure_messages.py: push to a new name: the table is then transferred in parts": (
            "it takes a history of many gigabytes"
        ),
        "failure_messages.py: run the same command again: what has arrived isn't transferred "
        "again": ("the store behind a server has to fail in the middle of a session"),
        "handshake.py: compare the versions of Lakeferry at both ends": provoked(
            _OTHER_VERSION,
            "unit/transfer/wire/test_handshake.py::test_every_refusal_is_an_error_of_its_own",
        ),
        "handshake.py: try again later": provoked(
            "it takes a server that is out of order",
            "unit/transfer/wire/test_handshake.py::test_every_refusal_is_an_error_of_its_own",
        ),
        "rest_request.py: try again when the service is less busy": (
            "the program waits half a minute for an answer"
        ),
        "running_server.py: see its log": provoked(
            "a person reads the log",
            "unit/api/test_serving.py::test_a_server_that_can_t_begin_to_answer_says_so",
        ),
        "local_durability.py: move the table to another file system": provoked(
            _FILE_SYSTEM, f"{_LOCAL}test_put_if_absent_refuses_where_no_winner_can_be_told"
        ),
        "local_durability.py: try again; if it keeps failing, use a file system whose folders "
        "can be "
        "locked": provoked(
            _FILE_SYSTEM, f"{_LOCAL}test_a_swap_waits_for_the_folder_and_no_longer_than_it_may"
        ),
        "files.py: give a file on another disk, or free some space": provoked(
            "it takes a full disk", "unit/cli/test_files.py::test_a_full_disk_is_named"
        ),
        "local_errors.py: free some space there, or choose another place, and run the same command "
        "again": (
            provoked("it takes a full disk", f"{_LOCAL}test_a_full_disk_is_named_with_what_to_do")
        ),
        "storage/lakefs.py: ask the owner of lakeFS: Lakeferry needs a server that lists objects "
        "in order": provoked(
            _BROKEN_STORE, f"{_LAKEFS}test_a_server_that_lists_wrongly_is_not_relied_on"
        ),
        "storage/lakefs.py: try again: the object may have been replaced meanwhile": provoked(
            _RACE,
            f"{_LAKEFS}test_an_object_that_is_replaced_by_a_shorter_one_while_it_is_read_is_told",
        ),
        "lakefs_write.py: run the command again": provoked(
            _RACE,
            "unit/server/lakefs/test_action_file.py::"
            "test_a_file_that_somebody_else_committed_meanwhile_is_told",
        ),
        "http_pool.py: check that it is running and that its endpoint is right, then try again": (
            provoked(
                "the store has to go away in the middle of a large upload",
                f"{_OBJECTS}test_a_store_that_went_away_before_a_part_came_is_named",
            )
        ),
        "cloud_listing.py: use another store: Lakeferry needs one that lists objects in order": (
            provoked(
                _BROKEN_STORE, f"{_OBJECTS}test_a_store_that_lists_out_of_order_is_not_relied_on"
            )
        ),
        "objects.py: use a store with conditional puts": provoked(
            _BROKEN_STORE, f"{_OBJECTS}test_a_store_without_versions_replaces_nothing"
        ),
        "store.py: try again; if it happens again, find out which program replaces this file": (
            provoked(
                _RACE,
                "scenario/test_store_copies.py::TestReadingInPieces::"
                "test_a_file_that_is_changed_in_place_is_refused",
            )
        ),
        "store.py: try again: the object that is read may have been replaced meanwhile": provoked(
            _RACE,
            "scenario/test_storage_contract.py::TestEveryStore::"
            "test_a_stream_that_goes_wrong_leaves_the_name_as_it_was",
        ),
        "odf_blocks.py: update Lakeferry: a newer version may know this format": provoked(
            _OTHER_VERSION, f"{_BLOCKS}test_what_no_block_may_say_is_refused"
        ),
        "odf_blocks.py: ask the owner of the dataset: this block is damaged, or it isn't a "
        "metadata block": provoked(_SENDER, f"{_BLOCKS}test_a_block_cut_anywhere_is_refused"),
        "validation.py: ask the owner of the sender's dataset: its chain is damaged, or its blocks "
        "are not in order": (
            provoked(_SENDER, f"{_CHAIN}test_a_block_that_breaks_a_rule_is_refused")
        ),
        "validation.py: pull first; or replace the other chain with --force": provoked(
            _PEER, f"{_CHAIN}test_a_run_that_continues_another_chain_has_diverged"
        ),
        "transfer/datasets/dataset.py: push again: a push that already succeeded changes nothing": (
            provoked(
                "the store has to go away in the middle of a commit",
                f"{_REPOSITORY}test_what_cannot_be_looked_up_is_unknown",
            )
        ),
        "transfer/datasets/dataset.py: pull first, then push again": provoked(
            _RACE, f"{_REPOSITORY}test_of_two_commits_at_once_one_wins_and_the_other_is_told"
        ),
        "transfer/datasets/dataset.py: send them, then commit again": provoked(
            _PEER,
            f"{_REPOSITORY}TestCommits::test_a_commit_without_its_objects_stores_nothing",
        ),
        "version_blocks.py: compact the table's small files (OPTIMIZE), then run 'lakeferry "
        "cleanup TABLE'": (
            provoked(
                "it takes a commit with hundreds of thousands of files",
                f"{_DELTA}test_a_block_that_is_too_large_isn_t_made",
            )
        ),
        "block_checks.py: ask the owner of the sender's dataset: its chain is damaged": provoked(
            _SENDER, f"{_DELTA}test_a_block_of_another_table_than_its_commit_says_is_refused"
        ),
        "version_blocks.py: ask the owner of the dataset: this block is damaged": provoked(
            _SENDER, f"{_DELTA}test_a_path_that_leads_elsewhere_is_refused"
        ),
        "version_blocks.py: update Lakeferry": provoked(
            _OTHER_VERSION, f"{_DELTA}test_a_block_of_a_later_format_asks_for_an_update"
        ),
        "delta_dataset.py: if no version of the table here needs the file, delete it, "
        "and try again": provoked(_PEER, f"{_DELTA}test_objects_with_other_bytes_are_found_out"),
        "delta_dataset.py: ask the owner of the sender's dataset: its chain is damaged, or the "
        "local table is damaged": provoked(
            _PEER, f"{_DELTA}test_a_file_that_is_kept_has_to_be_there"
        ),
        "required_objects.py: ask the owner of the sender's dataset: its chain is "
        "damaged": provoked(
            _SENDER, f"{_DELTA}test_two_versions_never_give_one_path_different_bytes"
        ),
        "required_objects.py: restore them in the sender's table": provoked(
            "a sender finds out before a receiver does; against a pull of a table that is damaged "
            "at its server only the server's owner helps",
            f"{_DELTA}test_a_file_that_the_newest_version_needs_may_not_be_gone",
        ),
        "root_checkpoints.py: ask the owner of the sender's dataset: its chain "
        "is damaged": provoked(
            _SENDER, f"{_DELTA}test_a_roots_checkpoint_has_to_say_what_its_block_says"
        ),
        "root_checkpoints.py: look at what is there, and choose another place": provoked(
            _RACE, f"{_DELTA}test_a_root_never_replaces_what_somebody_else_has_put_into_the_log"
        ),
        "codec.py: ask for them in pages": provoked(
            _PEER, "unit/transfer/wire/test_messages.py::test_the_number_of_objects_is_bounded"
        ),
        "downloads.py: ask the owner of the sender's dataset: its copy is damaged": provoked(
            _SENDER,
            "unit/transfer/client/test_push_and_pull.py::test_an_object_of_another_size_is_not_read",
        ),
        "client_objects.py: compare the clocks of both machines, or transfer fewer objects "
        "at a time": (
            provoked(
                "two clocks have to differ",
                "unit/transfer/session/test_pull_client_and_server.py::"
                "test_a_url_that_is_never_any_good_ends_in_a_clear_error",
            )
        ),
        "upload_slots.py: try again later": provoked(
            "the server's other clients have to go first",
            "unit/server/test_upload_slots.py::"
            "test_of_those_who_wait_some_of_who_has_the_most_make_way",
        ),
        "garbage_collection.py: run 'lakeferry gc' again when fewer pushes are running": provoked(
            "it takes a slow store",
            "unit/transfer/repository/test_garbage_collection.py::test_a_store_that_is_too_slow_loses_nothing",
        ),
        "remote_dataset.py: ask the server's owner for the certificate of its authority, and set "
        "SSL_CERT_FILE to that file": provoked(
            "another person has to act, and a certificate has to be installed",
            "unit/transfer/client/test_remote_dataset.py::"
            "test_a_server_without_a_certificate_that_we_trust_is_named",
        ),
        "remote_dataset.py: try again later, or from another network": provoked(
            _LATE,
            "unit/transfer/client/test_uploads.py::test_a_push_to_a_store_that_stops_reading_ends",
        ),
        "repository.py: use a store with working conditional puts (If-Match, "
        "If-None-Match)": provoked(
            _BROKEN_STORE,
            f"{_REPOSITORY}TestRepository::test_a_store_that_ignores_conditions_is_refused",
        ),
        "machine.py: run the same command again: what has arrived isn't transferred again": (
            provoked(
                _LATE,
                "unit/transfer/session/test_pull_client_and_server.py::test_a_server_that_doesn_t_answer_is_left",
            )
        ),
        "tarball.py: it has to be a tar of plain files, each named by its block's hash": (
            provoked(
                _PEER,
                "unit/transfer/wire/test_tarball.py::test_a_header_that_makes_no_sense_is_refused",
            )
        ),
        "access_tokens.py: try again": provoked(
            "64 random bits have to come twice",
            "unit/transfer/repository/test_access_tokens.py::test_an_id_that_is_taken_is_never_given_to_another",
        ),
    }
)

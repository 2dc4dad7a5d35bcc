"""Exports of tables in lakeFS: refs, places, descriptors and events that are wrong at first."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial

import pytest

import lakeferry
from lakeferry.export import manifest, webhook
from lakeferry.export.descriptors import DESCRIPTORS_FOLDER, MOST_DESCRIPTORS
from tests.support.lake import entry, redirected
from tests.support.remedies import NEEDS_A_PERSON, Witness, follows
from tests.support.repositories import Repository, new_repository
from tests.support.servers import WEBHOOK_SECRET
from tests.support.serving import Serving, serving, until

KNOWN = {webhook.SECRET_HEADER: WEBHOOK_SECRET}

NEEDS_A_PERSON.update(
    {
        "job_queue.py: find the reason in the server's log; then export the table by hand: "
        "lakeferry export lakefs://REPOSITORY/REF/PATH": (
            "a person reads the log and mends what it tells; tests/unit/export/test_job_queue.py::"
            "test_only_so_many_may_wait fills the queue"
        ),
    }
)


def _repository(witness: Witness, fixture: str = "lakefs") -> Repository:
    """Make a repository whose branch ``main`` has the table ``t``, committed."""
    made = new_repository(fixture, witness.fixture)
    made.append(1, 2)
    made.commit()
    return made


def _event(repository: Repository, when: str | None = None) -> bytes:
    """Return what lakeFS sends after the newest commit of ``main``, now or at another time."""
    said = {
        "event_type": "post-commit",
        "event_time": when or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "repository_id": repository.name,
        "branch_id": "main",
        "commit_id": repository.head(),
    }
    return json.dumps(said).encode()


@follows(
    "origins.py: check the URI: lakefs://repository/ref/path",
    "origins.py: give --table NAME, a name without a slash",
    "pruning.py: keep at least 1",
    "pruning.py: leave out --keep",
    starts=("lakefs",),
)
def an_export_with_words_that_make_no_sense_is_corrected(witness: Witness) -> None:
    repository = _repository(witness)
    table, variables = repository.uri(), repository.variables
    for wrong in (f"lakefs://{repository.name}-x/main/t", repository.uri("no-such-ref")):
        witness.refused("export", wrong, **variables)
    witness.done("export", table, **variables)
    witness.refused("export", table, "--table", "a/b", **variables)
    witness.done("export", table, "--table", "a", **variables)
    words = ("export", table, "--to", witness.lake.uri("out"))
    witness.refused(*words, "--keep", 2, **variables)
    witness.done(*words, **variables)
    # The command line lets no such number through; Python does.
    export = partial(lakeferry.Table(table, repository.options).export, engine="local")
    witness.raises(lambda: export(keep=0))
    witness.returns(lambda: export(keep=1))


@follows(
    "origins.py: commit them, or export {}{}",
    "origins.py: commit them, or export the last commit: {}{}",
    starts=("lakefs",),
)
def what_is_staged_is_committed_or_the_last_commit_exported(witness: Witness) -> None:
    repository = _repository(witness)
    variables = repository.variables
    repository.append(3)
    for ref in ("main$", "main"):
        remedy = witness.refused("export", repository.uri(ref), **variables)["remedy"]
        last = witness.done("export", repository.uri(remedy.split()[-1]), **variables)
        assert last["version"] == 0
    repository.commit()
    assert witness.done("export", repository.uri(), **variables)["version"] == 1


@follows(
    "publishing.py: export the table that it leads to (lakeferry redirect resolve), or use "
    "--no-follow",
    starts=("lakefs",),
)
def a_redirected_table_is_exported_where_it_is_now(witness: Witness) -> None:
    repository = new_repository("lakefs", witness.fixture)
    variables, moved = repository.variables, witness.lake.make("moved")
    history = redirected(("delta.redirectReaderWriter", entry(moved)))
    repository.upload(history.objects(repository.uri(), with_data=True))
    repository.commit()
    witness.refused("export", repository.uri(), **variables)
    witness.done("export", repository.uri(), "--no-follow", **variables)
    there = witness.done("redirect", "resolve", repository.uri(), **variables)["location"]
    assert there == moved
    witness.done("export", there, "--to", witness.lake.uri("out"), **variables)


@follows("exporter.py: try again when they have finished")
def an_export_to_a_place_where_others_export_is_tried_again(witness: Witness) -> None:
    table, place = witness.lake.make("t"), witness.lake.uri("out")
    with pytest.MonkeyPatch.context() as patch:
        # Whenever it writes what the place has, somebody else was faster.
        patch.setattr(manifest, "swap", lambda *_: False)
        witness.raises(lambda: lakeferry.Table(table).export(place))
    witness.done("export", table, "--to", place)


@follows("manifest.py: choose another place, or use that version")
def an_export_of_another_version_of_lakeferry_stays(witness: Witness) -> None:
    table, place = witness.lake.make("t"), witness.lake.uri("out")
    witness.done("export", table, "--to", place)
    file = witness.lake.folder / "out" / manifest.NAME
    told = json.loads(file.read_bytes())
    file.write_text(json.dumps(told | {"format": told["format"] + 1}))
    witness.refused("export", table, "--to", place)
    witness.done("export", table, "--to", witness.lake.uri("other"))


@follows(
    "storage/lakefs.py: use s3://{}/BRANCH/… with lakeFS as the endpoint (--storage-option "
    "aws_endpoint=…) and its key",
    starts=("lakefs",),
)
def a_table_in_lakefs_is_written_through_its_gateway(witness: Witness) -> None:
    repository = _repository(witness)
    witness.refused("checkpoint", repository.uri(), **repository.variables)
    server = repository.server
    key = {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}
    endpoint = ("--storage-option", f"aws_endpoint={server.endpoint}")
    witness.done("checkpoint", f"s3://{repository.name}/main/t", *endpoint, **key)
    repository.commit()
    assert f"_delta_log/{0:020}.checkpoint.parquet" in repository.names()


@follows("publishing.py: restore the missing log files from a copy")
def a_log_without_a_protocol_is_restored_and_exported(witness: Witness) -> None:
    table = witness.lake.make("t")
    first = witness.lake.folder / "t" / "_delta_log" / f"{0:020}.json"
    copy = first.read_bytes()
    first.write_bytes(b"\n".join(x for x in copy.splitlines() if b'"protocol"' not in x) + b"\n")
    words = ("export", table, "--to", witness.lake.uri("out"), "--no-follow")
    witness.refused(*words)
    first.write_bytes(copy)
    witness.done(*words)


@follows(
    "surveys.py: check the bucket's name and the storage options (AWS_ENDPOINT_URL). For a "
    "table in lakeFS, these are the options of the store in which lakeFS keeps its objects, not "
    "of lakeFS itself",
    starts=("lakefs_on_s3",),
)
def the_store_of_lakefs_is_named_and_not_lakefs(witness: Witness) -> None:
    repository = _repository(witness, "lakefs_on_s3")
    itself = repository.variables | repository.server.gateway.environment()
    witness.refused("export", repository.uri(), **itself)
    witness.done("export", repository.uri(), **repository.variables)


@follows(
    "webhook.py: set {} to the secret that lakeFS sends, and start it again",
    "webhook.py: give lakeFS the secret that the server has in {}",
    "webhook.py: let lakeFS send its own events: 'lakeferry lakefs init' writes the action for "
    "them",
    "http_app.py: check both clocks; recorded events aren't accepted",
    "http_app.py: there is nothing to do: its export was requested then",
    starts=("lakefs",),
)
def lakefs_sends_its_own_events_with_the_secret(witness: Witness) -> None:
    repository, home = _repository(witness), witness.lake.home
    variables = repository.variables
    with serving(home, variables, secret=None) as server:
        witness.told(_refusal(server, _event(repository), KNOWN))
    with serving(home, variables) as server:
        witness.told(_refusal(server, _event(repository), {webhook.SECRET_HEADER: "another"}))
        witness.told(_refusal(server, b"{}", KNOWN))
        witness.told(_refusal(server, _event(repository, "2020-01-01T00:00:00Z"), KNOWN))
        witness.done("lakefs", "init", repository.name, "--url", server.url, **variables)
        # lakeFS knows the secret and the time, and says that the action was committed.
        server.has_done(1)
        event = _event(repository)
        assert server.post(event, KNOWN)[0] == 202
        witness.told(_refusal(server, event, KNOWN))
        witness.returns(lambda: server.has_done(2))


@follows(
    "descriptors.py: correct the file and commit it: name, type: delta and path are needed",
    "descriptors.py: describe fewer tables in one repository",
    starts=("lakefs",),
)
def descriptors_are_corrected_and_there_are_fewer_of_them(witness: Witness) -> None:
    repository, home = _repository(witness), witness.lake.home
    names = [f"{number}.yaml" for number in range(MOST_DESCRIPTORS + 1)]
    with serving(home, repository.variables) as server:
        repository.upload(
            dict.fromkeys(names, b"type: iceberg"), path=DESCRIPTORS_FOLDER.rstrip("/")
        )
        witness.told(_failure(server, repository))
        doomed = {"paths": [f"{DESCRIPTORS_FOLDER}{name}" for name in names[1:]]}
        repository.call("POST", "/branches/main/objects/delete", doomed)
        repository.upload({"t.yaml": b"name: t"}, path=DESCRIPTORS_FOLDER.rstrip("/"))
        witness.told(_failure(server, repository))
        right = {"t.yaml": b"name: t\ntype: delta\npath: t"}
        repository.upload(right, path=DESCRIPTORS_FOLDER.rstrip("/"))
        commit = repository.commit()
        failed = len(server.queue.failures())
        assert server.post(_event(repository), KNOWN)[0] == 202
        until(lambda: not server.queue.pending(), server.shown)
        assert len(server.queue.failures()) == failed, server.shown()
    place = f"{repository.store(path='').storage_namespace()}/_lakefs/exported/main/{commit}/t"
    witness.done("inspect", place, **repository.variables)


def _refusal(server: Serving, body: bytes, headers: dict[str, str]) -> dict[str, str]:
    """Send a body to the webhook, which has to refuse it; return the error."""
    status, answer = server.post(body, headers)
    assert status in (400, 401, 409), answer
    error: dict[str, str] = answer["error"]
    return error


def _failure(server: Serving, repository: Repository) -> dict[str, str]:
    """Commit, tell the server, and return the one error of the job, as the log has it, too."""
    known = len(server.queue.failures())
    repository.commit()
    assert server.post(_event(repository), KNOWN)[0] == 202
    until(lambda: len(server.queue.failures()) > known, server.shown)
    (error,) = server.queue.failures()[-1]["errors"]
    assert error["remedy"] in server.shown(), server.shown()
    found: dict[str, str] = error
    return found

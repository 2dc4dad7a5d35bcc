"""Every command about a managed table, by its name and by its old path, whatever its catalog says.

Each ends with a result, or with a code and a remedy: never with an internal error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakeferry.api.redirects import Redirects
from lakeferry.cli.app import run_command
from lakeferry.storage import normalise, open_store, rest_request
from tests.support.history import Append, DeleteRows, History, Layout
from tests.support.unity_delta_rules import delta_error
from tests.support.unity_server import UnityServer, unity_server
from tests.unit.cli.program import environment

PAST = History(Layout(deletion_vectors="u")).then(Append(2), DeleteRows(1), Append(1))
NOWHERE = "http://127.0.0.1:9"


@dataclass(frozen=True)
class Place:
    """A moved table: its old path, its name at the move, and a folder for what commands make."""

    old: str
    name: str
    folder: Path
    server: UnityServer


def commands(table: str, name: str, folder: Path) -> dict[str, list[str]]:
    """Return every command that takes a table, or a name in a catalog. They change nothing."""
    other, new, dry = str(folder / "other"), str(folder / "new"), "--dry-run"
    return {
        "inspect": ["inspect", table],
        "history": ["history", table],
        "files": ["files", table],
        "checkpoint": ["checkpoint", table, dry],
        "verify": ["verify", table, table],
        "feature list": ["feature", "list", table],
        "feature drop": ["feature", "drop", table, "deletionVectors", dry],
        "cleanup": ["cleanup", table, dry],
        "enable from": ["redirect", "enable", table, new, dry],
        "enable managed": ["redirect", "enable", other, f"{name}_2", "--managed", dry],
        "enable to existing": ["redirect", "enable", other, table, "--to-existing", dry],
        "resume": ["redirect", "resume", table, dry],
        "cancel": ["redirect", "cancel", table, dry],
        "disable": ["redirect", "disable", table, dry],
        "abandon": ["redirect", "disable", table, "--abandon-target", dry],
        "status": ["redirect", "status", table],
        "resolve": ["redirect", "resolve", table],
        "freeze": ["redirect", "freeze", table, dry],
        "thaw": ["redirect", "thaw", table, dry],
        "export": ["export", table, "--to", str(folder / "out"), dry],
        "pull": ["pull", f"{NOWHERE}/t", table, dry],
        "publish": ["publish", table],
        "show": ["catalog", "show", name],
        "list": ["catalog", "list", name.rpartition(".")[0]],
        "rename": ["catalog", "rename", name, f"{name}_3", dry],
        "remove": ["catalog", "remove", name, dry],
        "register": ["catalog", "register", name, other, dry],
        "move": ["catalog", "move", name, other, dry],
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A table that has moved into the catalog, and beside its old path another one like it."""
    folder = tmp_path_factory.mktemp("walls")
    with pytest.MonkeyPatch.context() as patch, unity_server() as server:
        # A catalog that is busy is asked at once again.
        patch.setattr(rest_request, "PAUSES_S", ())
        for variable in os.environ.keys() - environment(folder).keys():
            patch.delenv(variable)
        patch.setenv("HOME", str(folder))
        patch.chdir(folder)
        for variable, value in server.environment().items():
            patch.setenv(variable, value)
        _ = server.ours
        for each in ("orders", "other"):
            PAST.write(open_store(normalise(str(folder / each))), with_data=True)
        old, name = normalise(str(folder / "orders")), f"unity:{server.schema}.orders"
        with Redirects() as redirects:
            redirects.enable(old, name, managed=True)
        yield Place(old, name, folder, server)


@contextmanager
def there(_: Place) -> Iterator[None]:
    yield


@contextmanager
def renamed(place: Place) -> Iterator[None]:
    table = place.server.ours.tables_named(place.name.partition(":")[2])[0]
    table["name"] = "renamed"
    yield
    table["name"] = "orders"


@contextmanager
def dropped(place: Place) -> Iterator[None]:
    table = place.server.ours.tables_named(place.name.partition(":")[2])[0]
    place.server.ours.forget(table)
    yield
    place.server.ours.keep(table)


@contextmanager
def without_token(_: Place) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UC_TOKEN", "expired")
        yield


@contextmanager
def without_privileges(place: Place) -> Iterator[None]:
    before, place.server.ours.privileges = place.server.ours.privileges, set()
    yield
    place.server.ours.privileges = before


def answering(status: int, kind: str) -> Callable[[Place], AbstractContextManager[None]]:
    @contextmanager
    def answer(place: Place) -> Iterator[None]:
        place.server.ours.always = delta_error(status, kind, "words")
        yield
        place.server.ours.always = None

    return answer


@contextmanager
def down(_: Place) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UC_URL", NOWHERE)
        yield


def refused(codes: dict[str, str]) -> dict[str, str]:
    """Return the code of each command; several commands have one."""
    return {command: code for code, listed in codes.items() for command in listed.split(", ")}


BY_NAME = refused(
    {
        "feature_not_droppable": "feature drop",
        "catalog_managed": "cleanup, enable from, resolve, pull, remove",
        "redirect_illegal_transition": "resume",
        "invalid_input": "register, move",
    }
)
BY_OLD_PATH = refused(
    {
        "redirect_in_progress": "feature drop, cleanup",
        "redirect_illegal_transition": "enable from, cancel, abandon, freeze, thaw",
        "catalog_managed": "enable to existing, resolve, pull, remove",
        "invalid_input": "register, move",
    }
)
LOCAL = refused(
    {
        "redirect_in_progress": "feature drop, cleanup",
        "redirect_illegal_transition": "enable from, cancel, freeze, thaw",
    }
)
"""What the old path alone refuses."""
FOLLOWING = "history, files, enable to existing, resume, disable, resolve, export, pull, publish"
ABOUT_NAMES = ("show", "list", "rename", "remove", "register", "move")
"""The commands that look only at a name, which they find or not."""


def failing(code: str, *, by_name: bool) -> dict[str, str]:
    """Return what is refused while the catalog refuses everything with one code."""
    names = (*ABOUT_NAMES, "enable managed")
    if by_name:
        return dict.fromkeys(commands("", "", Path()), code)
    return LOCAL | dict.fromkeys([*FOLLOWING.split(", "), *names], code)


MISSING = "table_not_found"
STATES = {
    "there": (there, BY_NAME, BY_OLD_PATH),
    "renamed": (
        renamed,
        {
            command: MISSING
            for command in commands("", "", Path())
            if command not in ("enable managed", "list", "remove", "register")
        },
        {key: code for key, code in BY_OLD_PATH.items() if key not in ABOUT_NAMES}
        | dict.fromkeys(("show", "rename", "move"), MISSING),
    ),
    "dropped": (
        dropped,
        {
            command: MISSING
            for command in commands("", "", Path())
            if command not in ("enable managed", "list", "remove", "register")
        },
        LOCAL
        | dict.fromkeys(FOLLOWING.split(", "), "forbidden")
        | dict.fromkeys(("show", "rename", "move"), MISSING),
    ),
    "without a token": (
        without_token,
        failing("unauthorized", by_name=True),
        failing("unauthorized", by_name=False),
    ),
    "without a privilege": (
        without_privileges,
        failing("forbidden", by_name=True),
        failing("forbidden", by_name=False),
    ),
    "busy": (
        answering(429, "TooManyRequestsException"),
        failing("catalog_unavailable", by_name=True),
        failing("catalog_unavailable", by_name=False),
    ),
    "overloaded": (
        answering(503, "ServiceUnavailableException"),
        failing("catalog_unavailable", by_name=True),
        failing("catalog_unavailable", by_name=False),
    ),
    "down": (
        down,
        failing("catalog_unavailable", by_name=True),
        failing("catalog_unavailable", by_name=False),
    ),
}


@pytest.mark.parametrize("by_name", [True, False], ids=["by its name", "by its old path"])
@pytest.mark.parametrize("state", STATES)
def test_every_command_ends_with_a_result_or_a_remedy(
    place: Place, state: str, by_name: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    enter, of_name, of_path = STATES[state]
    expected = dict(of_name if by_name else of_path)
    if state == "without a privilege":
        # A listing shows what one may see.
        del expected["list"]
    found, walls = {}, []
    with enter(place):
        table = place.name if by_name else place.old
        for command, words in commands(table, place.name, place.folder).items():
            code = run_command([*words, "--json"])
            said = capfd.readouterr()
            if code == 0:
                continue
            error = json.loads(said.err.splitlines()[-1])["error"]
            found[command] = error["code"]
            if not error["remedy"]:
                walls.append((command, error))
    assert found == expected
    assert walls == []


def test_a_moved_table_is_equal_to_its_old_path(place: Place) -> None:
    """What the move has added for the catalog is no difference."""
    assert run_command(["verify", place.old, place.name, "--rows"]) == 0
    other = str(place.folder / "other")
    assert run_command(["verify", other, place.name]) == 0


def test_a_name_that_should_be_there_is_not_asked_for_a_place(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    other, name = str(place.folder / "other"), f"{place.name}_9"
    assert run_command(["redirect", "enable", other, name, "--to-existing", "--json"]) == 1
    error = json.loads(capfd.readouterr().err.splitlines()[-1])["error"]
    assert (error["code"], "--location" in error["remedy"]) == ("table_not_found", False)

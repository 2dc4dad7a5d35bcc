"""Remedies are a contract: each one that the source can give works when it is followed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.scenario.remedies import load
from tests.support import lake as lakes
from tests.support import remedies
from tests.support.remedies import Case, Witness
from tests.support.serving import Serving, serving

load()
SITES = remedies.sites()
COVERED = {key for case in remedies.CASES for key in case.keys}
FOLDER = "somebody's (1) & $HOME; x"
"""Where the tables are: a command in a remedy has to work when it is pasted into a shell."""
TOP = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Serving]]:
    """Start one server for all cases of this module, when the first of them asks for it."""
    with ExitStack() as stack:
        running: list[Serving] = []

        def start() -> Serving:
            if not running:
                folder = tmp_path_factory.mktemp("server")
                running.append(stack.enter_context(serving(folder, {})))
            return running[0]

        yield start


def test_every_remedy_has_a_case_or_a_reason() -> None:
    known = COVERED | remedies.NEEDS_A_PERSON.keys()
    missing = sorted(SITES.keys() - known)
    assert not missing, (
        "add a case to tests/scenario/remedies, or a reason to NEEDS_A_PERSON, for:\n"
        + "\n".join(missing)
    )


@pytest.mark.parametrize(
    "code",
    [
        "raise Error(remedy='new')",
        "raise Error(remedy='old' if x else 'new')",
        "raise Error(remedy=f(x))\ndef f(x):\n    return 'new'",
        "raise Error(remedy=TEXTS.get(x, OLD))\nTEXTS = {1: 'new'}\nOLD = 'old'",
        "def f():\n    kind, remedy = Error, 'old' if x else 'new'\n    raise kind(remedy=remedy)",
        "def f(x, remedy):\n    raise Error(remedy=remedy)\nf(1, 'new')",
        "class Lacking:\n    cause: str\n    remedy: str\nLacking('x', 'new')",
        "failed.remedy = 'new'",
        "output.fail({'code': 'x', 'remedy': 'new'})",
        "from lakeferry.other import f\nraise Error(remedy=f())",
        "from lakeferry import other\nraise Error(remedy=other.f())",
    ],
)
def test_a_new_remedy_is_found_however_it_is_given(code: str) -> None:
    found = remedies.sites({"a.py": code, "other.py": "def f():\n    return 'new'"})
    assert "new" in {site.text for site in found.values()}


def test_no_case_or_reason_is_about_a_remedy_that_is_gone() -> None:
    listed = COVERED | remedies.NEEDS_A_PERSON.keys()
    gone = sorted(listed - SITES.keys())
    assert not gone, "remove from tests/scenario/remedies:\n" + "\n".join(gone)


def test_no_remedy_is_listed_twice() -> None:
    assert sorted(COVERED & remedies.NEEDS_A_PERSON.keys()) == []


def test_a_reason_names_tests_that_exist() -> None:
    for key, reason in remedies.NEEDS_A_PERSON.items():
        for named in re.findall(r"tests/[\w/.:]+", reason):
            file, *names = named.rstrip(".:").split("::")
            assert (TOP / file).is_file(), (key, named)
            text = (TOP / file).read_text()
            missing = [name for name in names if not re.search(rf"(def|class) {name}\b", text)]
            assert not missing, (key, named)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=case.marks) for case in remedies.CASES]
)
def test_a_remedy_works_when_it_is_followed(
    case: Case,
    tmp_path: Path,
    start_server: Callable[[], Serving],
    request: pytest.FixtureRequest,
) -> None:
    witness = Witness(lakes.on_disk(tmp_path, FOLDER), start_server, request.getfixturevalue)
    case.play(witness)
    for key in case.keys:
        site = SITES[key]
        assert any(site.matches(printed) for printed in witness.remedies), (
            key,
            witness.remedies,
        )
    assert witness.followed, "the remedy was not followed to a command that succeeds"

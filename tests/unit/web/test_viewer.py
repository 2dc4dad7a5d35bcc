from __future__ import annotations

from pathlib import Path

import pytest

from lakeferry.transfer.repository.access_tokens import Scope, TokenGrant
from lakeferry.web.viewer import Viewer


def viewer(scope: Scope, dataset: str | None = None, places: tuple[str, ...] = ()) -> Viewer:
    return Viewer.of_token("token", TokenGrant(scope, dataset, 0, None), places)


@pytest.mark.parametrize(
    ("who", "sees_fleet", "runs_fleet", "sees", "changes"),
    [
        (Viewer.of_user(), True, True, True, True),
        (viewer(Scope.READ), True, False, True, False),
        (viewer(Scope.WRITE), True, True, True, True),
        (viewer(Scope.READ, "a/b"), False, False, True, False),
        (viewer(Scope.WRITE, "a/b"), False, False, True, True),
        (viewer(Scope.WRITE, "a/bc"), False, False, False, False),
    ],
)
def test_rights_follow_from_the_token(
    who: Viewer, sees_fleet: bool, runs_fleet: bool, sees: bool, changes: bool
) -> None:
    assert (who.sees_fleet, who.runs_fleet) == (sees_fleet, runs_fleet)
    assert (who.sees_dataset("a/b"), who.changes_dataset("a/b")) == (sees, changes)


@pytest.mark.parametrize(
    ("place", "is_allowed"),
    [
        ("s3://lake/new", True),
        ("s3://lake/new/deep/er", True),
        ("s3://lake/newer", False),
        ("s3://lake", False),
        ("s3://other/new", False),
        ("unity:main.sales.t", True),
        ("unity:main.sales", True),
        ("unity:main.salesforce.t", False),
        ("sql:anything.a.b", True),
        ("file:///known/a", True),
        ("file:///known/../etc", False),
        ("s3://lake/new/../old", False),
        ("s3://lake/new/.lakeferry/tokens", False),
        ("s3://lake/new/a/b/%2elakeferry", False),
        ("file:///known/a/../.lakeferry", False),
        ("nonsense://x", False),
        ("", False),
    ],
)
def test_only_allowed_places_may_be_named(place: str, is_allowed: bool) -> None:
    places = ("s3://lake/new", "unity:main.sales", "sql:")
    assert viewer(Scope.WRITE, places=places).may_name(place, ("file:///known",)) is is_allowed
    assert Viewer.of_user().may_name(place)


def test_a_link_does_not_lead_out_of_an_allowed_place(tmp_path: Path) -> None:
    (tmp_path / "allowed").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "allowed" / "link").symlink_to(tmp_path / "secret")
    who = viewer(Scope.WRITE, places=(str(tmp_path / "allowed"),))
    assert who.may_name(str(tmp_path / "allowed" / "new"))
    assert not who.may_name(str(tmp_path / "allowed" / "link"))
    assert not who.may_name(str(tmp_path / "allowed" / "link" / "t"))

"""``/datasets``: the datasets of a server, who pushed to them last, and the tokens for them.

A visitor with a token for one dataset sees that dataset alone, and no token of anybody. Tokens are
listed for visitors who may write all datasets. They are created and revoked on the command line
only: whoever has got hold of a token could make itself another one here.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.responses import Response

from lakeferry.errors import InvalidInput, ObjectNotFound
from lakeferry.storage.parallel_calls import concurrently
from lakeferry.transfer.repository.access_tokens import StoredToken
from lakeferry.transfer.repository.dataset_list import (
    DatasetPage,
    ListedDataset,
    list_datasets,
    one_dataset,
)
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.last_push import LastPush, last_push
from lakeferry.transfer.repository.push_records import now_ms
from lakeferry.transfer.repository.repository import Visibility
from lakeferry.web.console import Console, DatasetRoot
from lakeferry.web.page_filters import command_line
from lakeferry.web.page_routes import Consequence, ConsolePage, act, page_at
from lakeferry.web.viewer import Viewer
from lakeferry.web.visit import Visit

DATASETS_ON_A_PAGE = 50
_TOKENS_SHOWN = 500
_SEES_WHO = {Visibility.PUBLIC: "everybody", Visibility.PRIVATE: "users with a token for it"}


@dataclass(frozen=True, slots=True)
class ShownDataset:
    """A dataset and its last push; ``pusher`` is the token's name, or its id."""

    dataset: ListedDataset
    push: LastPush | None
    pusher: str | None


def served_datasets(visit: Visit) -> Response:
    """Show a page of datasets, and the tokens to whoever may write them all."""
    root = _root(visit)
    after = visit.asked("after") or None
    page = _page(root, visit.viewer, after)
    tokens = _tokens(root, visit.viewer)
    return visit.page(
        "datasets.html",
        title="Datasets",
        root=root,
        shown=_shown(root, page.datasets, tokens, visit.viewer),
        next_after=page.next,
        after=after,
        tokens=tokens[:_TOKENS_SHOWN],
        tokens_left=len(tokens) - len(tokens[:_TOKENS_SHOWN]),
        sees_tokens=visit.viewer.runs_fleet,
        now_ms=now_ms(),
        list_command=command_line(("lakeferry", "ls", root.url)),
        token_command=command_line(
            ("lakeferry", "token", "create", "--root", root.uri, "--scope", "write")
        ),
        push_command=command_line(("lakeferry", "push", "TABLE", f"{root.url}/NAME")),
    )


def one_served_dataset(visit: Visit) -> Response:
    """Show one dataset, how to get it, and what may be done with it."""
    root, name = _root(visit), _name(visit)
    dataset = _existing(root, name)
    tokens = _tokens(root, visit.viewer)
    (shown,) = _shown(root, (dataset,), tokens, visit.viewer)
    url = f"{root.url}/{name}"
    return visit.page(
        "dataset.html",
        title=name.text,
        shown=shown,
        dataset=dataset,
        url=url,
        tokens=[each for each in tokens if each.grant.covers(name)],
        sees_tokens=visit.viewer.runs_fleet,
        now_ms=now_ms(),
        may_change=visit.viewer.changes_dataset(name.text),
        may_rename=visit.viewer.runs_fleet,
        other_visibility=_other(Visibility(dataset.visibility)).value,
        sees_who=_SEES_WHO[Visibility(dataset.visibility)],
        pull_command=command_line(("lakeferry", "pull", url, "TABLE")),
        push_command=command_line(("lakeferry", "push", "TABLE", url)),
    )


# --- Actions ------------------------------------------------------------------------


def _rename(visit: Visit) -> Response:
    """Give a dataset another name."""
    root, name = _changed(visit)
    new = _new_name(visit)
    root.changes.rename(name, new)
    visit.note(f"{name} is now called {new}. Tokens for the old name don’t cover it.")
    return visit.go(f"/datasets/{new}")


def _rename_consequence(visit: Visit) -> Consequence:
    root, name = _changed(visit)
    new = _new_name(visit)
    return Consequence(
        f"Rename {name} to {new}?",
        f"Clients have to use the new address, and {name} leads nowhere. Tokens for {name} alone "
        "don’t cover the new name. No object is moved.",
        "Rename",
        command_line(("lakeferry", "dataset", "rename", root.url, name, new)),
    )


def _delete(visit: Visit) -> Response:
    """Delete a dataset; its objects stay for garbage collection."""
    root, name = _changed(visit)
    changed = root.changes.delete(name)
    visit.note(f"{name} is deleted." if changed.changed else f"There is no dataset {name}.")
    return visit.go("/datasets")


def _delete_consequence(visit: Visit) -> Consequence:
    root, name = _changed(visit)
    return Consequence(
        f"Delete {name}?",
        f"Nobody can pull {name} from this server any more, and its name is free at once. "
        "'lakeferry gc' deletes its objects when the grace period is over, by default after 24 "
        "hours; until then the folder can be copied.",
        "Delete",
        command_line(("lakeferry", "dataset", "delete", root.url, name)),
        is_danger=True,
    )


def _set_visibility(visit: Visit) -> Response:
    """Set who may read a dataset."""
    root, name = _changed(visit)
    visibility = _visibility(visit)
    root.changes.set_visibility(name, visibility)
    visit.note(f"{name} can be read by {_SEES_WHO[visibility]}.")
    return visit.go(f"/datasets/{name}")


def _visibility_consequence(visit: Visit) -> Consequence:
    root, name = _changed(visit)
    visibility = _visibility(visit)
    return Consequence(
        f"Make {name} {visibility.value}?",
        f"It can then be read by {_SEES_WHO[visibility]}. What others have pulled already stays "
        "with them.",
        f"Make it {visibility.value}",
        command_line(("lakeferry", "dataset", "visibility", root.url, name, visibility.value)),
        is_danger=visibility is Visibility.PUBLIC,
    )


# --- Shared steps -------------------------------------------------------------------


def _root(visit: Visit) -> DatasetRoot:
    root = visit.console.datasets
    if root is None:
        raise ObjectNotFound("there is no such page")
    return root


def _name(visit: Visit) -> DatasetName:
    """Return the name in the address; one that the visitor may not see doesn't exist."""
    try:
        name = DatasetName.parse(visit.request.path_params["name"])
    except InvalidInput as wrong:
        raise ObjectNotFound("there is no such dataset") from wrong
    if not visit.viewer.sees_dataset(name.text):
        raise ObjectNotFound("there is no such dataset")
    return name


def _existing(root: DatasetRoot, name: DatasetName) -> ListedDataset:
    found = one_dataset(root.repository, name)
    if found is None:
        raise ObjectNotFound(
            "there is no such dataset", remedy="go back to the list: it may have another name now"
        )
    return found


def _changed(visit: Visit) -> tuple[DatasetRoot, DatasetName]:
    """Return the dataset that a form is about, if the visitor may change it."""
    root, name = _root(visit), _name(visit)
    _existing(root, name)
    return root, name


def _new_name(visit: Visit) -> DatasetName:
    return DatasetName.parse(visit.form.get("new", "").strip())


def _visibility(visit: Visit) -> Visibility:
    try:
        return Visibility(visit.form.get("visibility", ""))
    except ValueError as wrong:
        raise InvalidInput("a visibility is private or public") from wrong


def _other(visibility: Visibility) -> Visibility:
    return Visibility.PRIVATE if visibility is Visibility.PUBLIC else Visibility.PUBLIC


def _page(root: DatasetRoot, viewer: Viewer, after: str | None) -> DatasetPage:
    if viewer.dataset is not None:
        own = one_dataset(root.repository, DatasetName.parse(viewer.dataset))
        return DatasetPage(() if own is None or after is not None else (own,), None)
    begin = None if after is None else DatasetName.parse(after).text
    return list_datasets(root.repository, after=begin, limit=DATASETS_ON_A_PAGE)


def _shown(
    root: DatasetRoot,
    datasets: tuple[ListedDataset, ...],
    tokens: list[StoredToken],
    viewer: Viewer,
) -> list[ShownDataset]:
    folders = root.repository.folders.read()
    names = {each.id: each.name for each in tokens}

    def push(name: str) -> LastPush | None:
        folder = folders.folder(DatasetName(name))
        return None if folder is None else last_push(root.repository.store, folder)

    def pusher(found: LastPush | None) -> str | None:
        if found is None or found.token_id is None or not viewer.sees_fleet:
            return None
        return names.get(found.token_id) or f"token {found.token_id}"

    found = concurrently(push, [each.name for each in datasets])
    return [
        ShownDataset(dataset, each, pusher(each))
        for dataset, each in zip(datasets, found, strict=True)
    ]


def _tokens(root: DatasetRoot, viewer: Viewer) -> list[StoredToken]:
    return root.tokens.all() if viewer.runs_fleet else []


def _is_anybody(_: Viewer) -> bool:
    return True


def _may_write(viewer: Viewer) -> bool:
    return viewer.may_write


def _may_write_all(viewer: Viewer) -> bool:
    return viewer.runs_fleet


def _has_datasets(console: Console, _: Viewer) -> bool:
    return console.datasets is not None


DATASETS_PAGE = ConsolePage(
    "Datasets",
    "/datasets",
    (
        page_at("/datasets", served_datasets, needs=_is_anybody),
        act(
            "/datasets/{name:path}/rename",
            _rename,
            needs=_may_write_all,
            consequence=_rename_consequence,
        ),
        act(
            "/datasets/{name:path}/delete",
            _delete,
            needs=_may_write,
            consequence=_delete_consequence,
        ),
        act(
            "/datasets/{name:path}/visibility",
            _set_visibility,
            needs=_may_write,
            consequence=_visibility_consequence,
        ),
        page_at("/datasets/{name:path}", one_served_dataset, needs=_is_anybody),
    ),
    is_shown=_has_datasets,
)

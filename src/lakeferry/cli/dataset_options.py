"""Options of the commands that take a server's URL or its root."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from lakeferry import config
from lakeferry.cli.options import TableType

if TYPE_CHECKING:
    from lakeferry.api.datasets import DatasetPlace

PLACE = TableType()

token_option = click.option(
    "--token",
    default=None,
    metavar="T",
    help="The access token; by default the value of LAKEFERRY_TOKEN, or of the remote's variable.",
)


def place_options(
    place: str, token: str | None, storage_options: Mapping[str, str]
) -> DatasetPlace:
    """Return how a server is reached, or how a root is opened."""
    from lakeferry.api.table import Places

    settings = config.load(storage_options=storage_options)
    environment = settings.catalog_environment()
    places = Places(environment=environment, layered=settings.storage_options)
    reached: DatasetPlace = {"token": token, "places": places, "environment": environment}
    if not place.lower().partition("://")[0].endswith(("http", "https")):
        reached["storage_options"] = settings.storage_options(place)
    return reached

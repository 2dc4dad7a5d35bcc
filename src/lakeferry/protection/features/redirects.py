"""Drops the features of redirects, in all dialects: the entry goes with them.

A table with a redirect in force is refused before; what is left is an entry without its feature,
or a feature without its entry.
"""

from __future__ import annotations

from lakeferry.log import features
from lakeferry.log.actions import Metadata, changed
from lakeferry.protection.features.droppable_feature import DroppableFeature
from lakeferry.redirect import dialects


class DropRedirects(DroppableFeature):
    """The table leads nowhere."""

    names = tuple(sorted(features.REDIRECT_FEATURES))

    def without_properties(self, metadata: Metadata) -> Metadata:
        """Return metadata without an entry in any dialect."""
        return changed(metadata, configuration=dialects.without_redirect(metadata))

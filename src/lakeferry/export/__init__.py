"""Export: a table's log at another place, with absolute URIs, for readers who can't see its own.

``exporter.py`` is the capability; ``webhook.py``, ``queue.py`` and ``descriptors.py``
are what a server needs to do it whenever lakeFS commits.
"""

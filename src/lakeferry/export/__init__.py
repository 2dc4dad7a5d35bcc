"""Export: writes a table's log to another place, with absolute URIs.

``exporter.py`` is the capability; ``webhook.py``, ``queue.py`` and ``descriptors.py``
are what a server needs to do it whenever lakeFS commits.
"""

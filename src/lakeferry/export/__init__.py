"""Export: writes a table's log to another place, with absolute URIs.

``exporter.py`` exports a table; ``webhook.py``, ``job_queue.py`` and ``descriptors.py`` let a
server export after each commit in lakeFS.
"""

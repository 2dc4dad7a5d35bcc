"""``lakeferry serve``: what answers on the network, and what works behind it.

``app.py`` is the HTTP application, ``serving.py`` runs it until somebody ends it.
``datasets.py`` hands out datasets and takes their objects, ``access.py`` says to whom.
``worker.py`` takes jobs from the queue of :mod:`lakeferry.export.queue` and
``exporting.py`` does them; ``lakefs_action.py`` has lakeFS call us. Each endpoint is
given what it needs; nothing here is global.

Importing this package loads neither Starlette nor uvicorn.
"""

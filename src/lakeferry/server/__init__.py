"""``lakeferry serve``: what answers on the network, and what works behind it.

``running_server.py`` runs the server until it is stopped. ``http/`` answers requests,
``sessions/`` does the server's part of pushes and pulls over WebSocket, ``lakefs/`` exports
tables after a commit in lakeFS. Each endpoint gets what it needs; nothing here is global.

Importing this package loads neither Starlette nor uvicorn.
"""

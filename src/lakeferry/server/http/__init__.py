"""HTTP: the application's routes, datasets over REST, access, and limits on connections.

May import :mod:`lakeferry.server.lakefs`, and neither :mod:`lakeferry.server.sessions` nor the
running server.
"""

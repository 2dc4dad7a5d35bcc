"""Pushes and pulls over WebSocket: the server's end of each session, and the work it asks for.

May import :mod:`lakeferry.server.http`.
"""

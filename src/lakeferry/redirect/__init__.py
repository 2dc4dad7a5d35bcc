"""Redirect: a table moves, and everyone who has its old path keeps working.

``entry.py`` is what a redirect is, ``dialects.py`` writes it in each dialect, ``read_entry.py``
reads it, and ``states.py`` says which state may follow which. ``resolve.py`` says where a path
leads. ``enable/`` and ``disable/`` are the ways there and back, ``cancel.py`` gives a move up
before it is READY. ``move.py`` has what they share: both ends of a move, and who decides.
"""

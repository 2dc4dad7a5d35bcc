"""Redirects: a table moves, and everyone who has its old path keeps working.

``model.py`` is what a redirect is and how each dialect spells it; ``states.py``
the one table of what may follow what; ``resolve.py`` where a path leads;
``enable.py``, ``disable.py`` and ``freeze.py`` the procedures, ``commits.py`` the
commits they make, ``staging.py`` how a log comes to be at another place.
"""

"""The way from NORMAL to READY: checks, copies while writers go on, and the commits that decide.

``enabling.py`` is the procedure. ``existing_target.py`` is the one for a table that is already at
the target.
"""

"""The way from READY to NORMAL: what changed at the target comes back to the source.

``disabling.py`` is the procedure, ``abandon.py`` the one for a target that is lost.
"""

"""Protection: drops table features, keeps history readable, cleans up the log.

``boundary`` returns how far a table's history is protected. ``cleaning`` deletes expired
log files, by the pure rules of :mod:`lakeferry.log.cleanup`. ``dropping`` drops a
feature: ``preparing`` takes its traces out of the current state, ``schemas`` out of
the schema, and ``work`` is what both are given.
"""

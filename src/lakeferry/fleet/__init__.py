"""The fleet: many tables that are found, planned and moved in waves, with a durable history.

The inventory, the plan and the history of every job are rows in the database of the SQL catalog.
A move is executed as ``redirect enable`` does it. What is decided, which job is next and what a
target is called, is pure; :mod:`lakeferry.fleet.records` is the edge to the database.
"""

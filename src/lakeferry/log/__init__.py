"""The Delta log as values: no I/O, no clock, no randomness.

Everything in this package is a function from values to values. It asks for data by name, and
returns what to write as a plan; :mod:`lakeferry.table` reads and writes the store.
"""

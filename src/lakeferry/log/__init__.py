"""The Delta log as values: no I/O, no clock, no randomness.

Everything in this package is a function from values to values. What has to be
read is asked for by name, what has to be written is returned as a plan;
:mod:`lakeferry.table` does both against a store.
"""

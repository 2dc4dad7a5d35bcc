"""The client of a transfer: push and pull a dataset by its URL.

``push_and_pull.py`` is the way in. May import every package of transfer but
:mod:`lakeferry.transfer.repository`.
"""

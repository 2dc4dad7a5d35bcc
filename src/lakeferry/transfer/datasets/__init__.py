"""Datasets in a store: a chain of blocks, the objects that they name, and commits that add to both.

``dataset.py`` says what every dataset can do, ``odf.py`` and ``delta/`` implement it. May import
:mod:`lakeferry.transfer.chain` and :mod:`lakeferry.transfer.wire`.
"""

"""A root of datasets, as a server has it: names, access, signed URLs, push records, garbage.

May import :mod:`lakeferry.transfer.chain`, :mod:`lakeferry.transfer.wire` and
:mod:`lakeferry.transfer.datasets`.
"""

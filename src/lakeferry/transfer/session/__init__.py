"""The four state machines of a transfer: client and server of a pull, client and server of a push.

Events go in and actions come out. A machine does no I/O and has no clock. May import
:mod:`lakeferry.transfer.chain` and :mod:`lakeferry.transfer.wire`; no store and no event loop.
"""

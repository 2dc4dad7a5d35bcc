"""What a chain of blocks is: hashes, the bytes of a block, and which block may follow which.

Imports no other package of transfer, no store and no event loop.
"""

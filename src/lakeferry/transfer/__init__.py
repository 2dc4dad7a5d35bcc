"""Transfer: a dataset goes from one repository to another, as git pushes and pulls.

Everything from a peer is checked before it is used. Six packages, each of which may import those
above it and none below (a test reads the imports):

=============== ===========================================================================
``chain/``      hashes, blocks, and which block may follow which
``wire/``       the messages of both dialects, the handshake, many blocks in one payload
``session/``    the four state machines: what a client and a server say to each other
``datasets/``   chains of blocks and their objects in a store: ODF datasets, Delta tables
``repository/`` a root of datasets: names, tokens, signed URLs, push records, garbage
``client/``     push and pull: connections, downloads, uploads, retries
=============== ===========================================================================

``chain``, ``wire`` and ``session`` only decide: no I/O, no clock, no randomness.
``repository`` and ``client`` don't know each other. The server's part is in
:mod:`lakeferry.server`.
"""

"""Transfer: a dataset goes from one repository to another, as git pushes and pulls.

Nothing that a peer says is believed before it was checked. ``hashes.py`` has the names
of blocks and objects, ``flat.py`` and ``blocks.py`` read a block's bytes, ``chain.py`` knows
which block may follow which, ``tarball.py`` has many blocks in one payload; ``messages.py``
and ``session.py`` are the dialogue that carries them. All of these decide and never do: no
I/O, no clock, no randomness.

``repository.py`` and ``odf_dataset.py`` are datasets on a store, ``tokens.py`` and
``signing.py`` who may have them.

``client.py`` pulls and pushes: ``remote.py`` knows which hosts to talk to and how patiently,
``conversation.py`` drives a machine over a WebSocket, ``moving.py`` does its work with
``downloads.py``, ``small_downloads.py`` and ``uploads.py``, and ``simple.py`` makes do with
plain files.
"""

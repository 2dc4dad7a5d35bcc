"""The Python API behind ``import lakeferry`` and the command line.

It combines the capabilities with places, catalogs and engines: ``table.py`` is ``lakeferry.Table``,
``redirects.py`` moves tables, ``move_list.py`` moves the tables of a list, ``transfers.py`` pushes
and pulls, ``serving.py`` runs a server, ``inspection.py`` describes a table.
"""

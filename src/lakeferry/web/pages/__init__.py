"""The pages of the console, one module for each group of addresses.

A module defines a :class:`~lakeferry.web.page_routes.ConsolePage`, and
:mod:`lakeferry.web.console_app` lists it.
"""

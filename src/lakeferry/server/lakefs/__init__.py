"""Exports after a commit in lakeFS: the action file that calls us, and the jobs that it starts.

Imports no other package of the server.
"""

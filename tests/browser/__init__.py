"""The console in real Chromium.

This is a package, so that the browser of a worker ends with its last test: while Playwright runs,
the worker's main thread has an event loop, and tests of other folders couldn't have theirs.
"""

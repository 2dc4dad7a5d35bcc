"""Which work has threads of its own."""

from __future__ import annotations

from lakeferry.server.sessions.worker_threads import SessionThreads
from lakeferry.transfer.session import events as e


def test_few_large_answers_are_made_at_once() -> None:
    threads = SessionThreads()
    large = threads.pool_of(e.LoadBlocks())
    assert threads.pool_of(e.UrlsReady((None,) * 50_000)) is large
    assert threads.pool_of(e.UrlsReady((None,) * 5_000)) not in (large, None)
    assert threads.pool_of(e.UrlsReady((None,))) is None
    assert threads.stop(0)

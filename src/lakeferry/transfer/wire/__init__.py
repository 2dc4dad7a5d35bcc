"""What the two ends of a transfer send: messages in both dialects, handshake, payloads.

Turns values into text or bytes and back, with a bound on everything that a peer sends. May
import :mod:`lakeferry.transfer.chain`; no store and no event loop.
"""

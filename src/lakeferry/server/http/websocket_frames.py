"""Reads WebSocket messages within a size limit that can change with every message.

``websockets`` collects a frame before it checks it, copies it twice on the way, and keeps every
fragment as an object of its own. An unauthenticated peer could exploit that with large frames
that are refused only after they have arrived, and with messages in pieces of one byte. Here

- a message is refused by the length that its frame announces, before its bytes are taken, if
  it is longer than the limit that holds at that moment (:attr:`BoundedFrames.limit_bytes`);
- its bytes are unmasked as they come, into one buffer, whatever the fragments;
- fragments and control frames are bounded in number.

The rest is ``websockets``' own: the handshake, what is sent, and how a connection ends.
RFC 6455, section 5.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

from websockets.exceptions import ProtocolError
from websockets.frames import BINARY, CONT, TEXT, CloseCode, Frame, Opcode
from websockets.protocol import Protocol
from websockets.server import ServerProtocol
from websockets.utils import apply_mask

MOST_FRAGMENTS = 4096
"""Most fragments of one message: at 16 KiB each, they hold the maximum of 64 MiB."""
CONTROL_FRAMES = 100
"""How many pings, pongs and closes a peer may send in :data:`CONTROL_EVERY_S`."""
CONTROL_EVERY_S = 10.0

_NO_LIMIT = 1 << 62
_FIN, _RESERVED, _OPCODE = 0b1000_0000, 0b0111_0000, 0b0000_1111
_MASKED, _LENGTH = 0b1000_0000, 0b0111_1111
_LARGEST_CONTROL_BYTES = 125


class _Bounded(Protocol):
    """Reads frames; ``ServerProtocol`` calls it after the handshake."""

    limit_bytes = _NO_LIMIT
    """Maximum size of the next message."""
    awaited_bytes = 0
    """Size of the message that is arriving, as far as its frames have announced it."""
    is_awaited_whole = True
    """True if the last frame of the message has been announced."""
    refused_bytes: int | None = None
    """The announced size of a message that was too large; everything after it is ignored."""
    clock: Callable[[], float] = staticmethod(time.monotonic)

    _message = bytearray()
    _kind = TEXT
    _fragments = 0
    _is_over = False
    _controls = 0
    _controls_since_s = 0.0

    def let_go(self) -> None:
        """Discard the message that is arriving, and ignore those that follow."""
        self._is_over = True
        self._message = bytearray()

    def parse(self) -> Generator[None]:
        """Read frames as they arrive; an error ends the connection."""
        try:
            while True:
                if (yield from self.reader.at_eof()):
                    raise EOFError("unexpected end of stream")
                yield from self._read_frame()
        except ProtocolError as wrong:
            self.fail(CloseCode.PROTOCOL_ERROR, str(wrong))
            self.parser_exc = wrong
        except EOFError as ended:
            self.fail(CloseCode.ABNORMAL_CLOSURE, str(ended))
            self.parser_exc = ended
        except UnicodeDecodeError as wrong:
            self.fail(CloseCode.INVALID_DATA, wrong.reason)
            self.parser_exc = wrong
        yield

    def _read_frame(self) -> Generator[None]:
        first, second = yield from self.reader.read_exact(2)
        if first & _RESERVED:
            raise ProtocolError("reserved bits must be 0")
        if not second & _MASKED:
            raise ProtocolError("incorrect masking")
        try:
            opcode = Opcode(first & _OPCODE)
        except ValueError as unknown:
            raise ProtocolError("invalid opcode") from unknown
        is_last, length = bool(first & _FIN), second & _LENGTH
        if length > _LARGEST_CONTROL_BYTES:
            size = yield from self.reader.read_exact(2 if length == 126 else 8)
            length = int.from_bytes(size, "big")
        if opcode in (TEXT, BINARY, CONT):
            self._begin(opcode, length, is_last=is_last)
            if self.refused_bytes is not None:
                yield from self._pass_over(4 + length)
                return
            mask = yield from self.reader.read_exact(4)
            yield from self._read_payload(length, bytes(mask))
            self._end(is_last=is_last)
            return
        self._count_control()
        if length > _LARGEST_CONTROL_BYTES or not is_last:
            raise ProtocolError("a control frame that is long or in fragments")
        mask = yield from self.reader.read_exact(4)
        data = yield from self.reader.read_exact(length)
        frame = Frame(opcode, apply_mask(data, mask))
        self.recv_frame(frame)

    def _begin(self, opcode: Opcode, length: int, *, is_last: bool) -> None:
        if self.refused_bytes is not None:
            return
        if (opcode is CONT) != (self.current_size is not None):
            raise ProtocolError("a continuation frame out of place, or none where one has to be")
        if opcode is not CONT:
            self._kind, self._message, self._fragments = opcode, bytearray(), 0
        self._fragments += 1
        if self._fragments > MOST_FRAGMENTS:
            raise ProtocolError("too many fragments")
        whole = len(self._message) + length
        self.awaited_bytes, self.is_awaited_whole = whole, is_last
        if whole > self.limit_bytes:
            self.refused_bytes = whole
            self.awaited_bytes, self._message = 0, bytearray()
            self.current_size = None

    def _pass_over(self, length: int) -> Generator[None]:
        """Skip bytes, so that the peer's Close can be read."""
        while length:
            if (yield from self.reader.at_eof()):
                raise EOFError("the stream ends within a frame")
            count = min(length, len(self.reader.buffer))
            del self.reader.buffer[:count]
            length -= count

    def _read_payload(self, length: int, mask: bytes) -> Generator[None]:
        at = 0
        while at < length:
            if (yield from self.reader.at_eof()):
                raise EOFError("the stream ends within a frame")
            piece = self.reader.buffer[: length - at]
            del self.reader.buffer[: len(piece)]
            turn = at % 4
            if not self._is_over:
                self._message += apply_mask(piece, mask[turn:] + mask[:turn])
            at += len(piece)

    def _end(self, *, is_last: bool) -> None:
        if not is_last:
            self.current_size = len(self._message)
            return
        if self._is_over:
            self.current_size = None
            return
        data, self._message = self._message, bytearray()
        self.current_size, self.awaited_bytes = None, 0
        self.events.append(Frame(self._kind, data))

    def _count_control(self) -> None:
        now_s = self.clock()
        if now_s - self._controls_since_s > CONTROL_EVERY_S:
            self._controls, self._controls_since_s = 0, now_s
        self._controls += 1
        if self._controls > CONTROL_FRAMES:
            raise ProtocolError("too many control frames")


class BoundedFrames(ServerProtocol, _Bounded):
    """A server's end of a WebSocket, whose messages are bounded."""

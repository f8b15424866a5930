"""A raw connection to a node, for what no client and no peer would say."""

import asyncio

from quorumlog.model.limits import Limits
from quorumlog.wire.decoder import FrameDecoder
from quorumlog.wire.frame import encode_frame


class Stranger:
    """A raw socket that can say anything."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.decoder = FrameDecoder(Limits())

    @classmethod
    async def at(cls, address):
        host, port = address.split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def log_event(self, message, attachments=(), **options):
        self.writer.write(b"".join(encode_frame(message, attachments=attachments, **options)))

    def shout(self, raw):
        self.writer.write(raw)

    async def hear(self):
        """Return the next message, or None when the connection has ended."""
        async with asyncio.timeout(30):
            while (frame := self.decoder.next_frame()) is None:
                data = await self.reader.read(65_536)
                if not data:
                    return None
                self.decoder.receive_data(data)
            return frame.message

    async def hear_until_end(self):
        heard = []
        try:
            while (message := await self.hear()) is not None:
                heard.append(message)
        except ConnectionError:
            pass
        return heard

    def close(self):
        self.writer.close()

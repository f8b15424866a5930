"""The wire format: bytes in, frames out, and back.

Frames, their header and the numbers of message kinds are defined here. No socket, clock or file is
touched; the messages themselves are in `quorumlog.model.messages`.
"""

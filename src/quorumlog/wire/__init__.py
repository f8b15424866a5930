"""The protocol on the socket, without the socket: bytes in, frames out, and back."""

"""A codec for tests with encrypted bodies: it inverts every byte."""

from __future__ import annotations


class InvertingCodec:
    """A codec that inverts every byte."""

    id = "turned-1"

    def encode(self, data: bytes, /) -> bytes:
        return bytes(byte ^ 0x5A for byte in data)

    def decode(self, data: bytes, /) -> bytes:
        return bytes(byte ^ 0x5A for byte in data)


codec = InvertingCodec()

#!/usr/bin/env python3
"""Writes the dark form of a picture: changes its palette as report.html's style sheet does in the dark theme."""

import struct
import sys
import zlib

# The CSS filters invert(.905) and hue-rotate(180deg).
INVERTED = 0.905
ROTATED = ((-0.574, 1.430, 0.144), (0.426, 0.430, 0.144), (0.426, 1.430, -0.856))


def dark(color):
    inverted = [INVERTED * 255 + channel * (1 - 2 * INVERTED) for channel in color]
    rotated = (sum(a * b for a, b in zip(row, inverted)) for row in ROTATED)
    return bytes(min(255, max(0, round(channel))) for channel in rotated)


def main(source, target):
    with open(source, "rb") as file:
        png = file.read()
    out, at = png[:8], 8
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        data = png[at + 8 : at + 8 + length]
        if kind == b"PLTE":
            data = b"".join(dark(data[i : i + 3]) for i in range(0, length, 3))
        out += struct.pack(">I", length) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        at += length + 12
    with open(target, "wb") as file:
        file.write(out)


if __name__ == "__main__":
    main(*sys.argv[1:])

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lines of a server's log as bytes: split at any end, without colours, progress bars folded. Meaning is for server_log."""

from __future__ import annotations

import os
import re
import stat

from .files import plain, write_atomic

PIECE_CAP_BYTES = 64 * 1024  # of a longer line only its head is looked at
CHUNK_BYTES = 256 * 1024
LINE_CAP = 500
_END = re.compile(rb"[\r\n]")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)?((?: [A-Z_]+\d+)*)\] ?")
_BAR = re.compile(r"(?P<label>.*?)\s*\d{1,3}%[^/]*?\|\s*(?P<done>\d+)/(?P<total>\d+) \[[^\]]*\]$")


class Splitter:
    """Bytes in, (piece, end) out; the end is a newline, a carriage return, or nothing where a long piece goes on."""

    def __init__(self):
        self.rest = b""

    def feed(self, data):
        data = self.rest + data
        start = 0
        for end in _END.finditer(data):
            yield data[start : end.start()], end.group()
            start = end.end()
        self.rest = data[start:]
        while len(self.rest) > PIECE_CAP_BYTES:
            yield self.rest[:PIECE_CAP_BYTES], b""
            self.rest = self.rest[PIECE_CAP_BYTES:]


def text_of(piece):
    """A piece without colours, and without the NUL bytes of a hole."""
    return _ANSI.sub("", piece[:PIECE_CAP_BYTES].replace(b"\0", b"").decode("utf-8", "replace")).rstrip()


def segments(text):
    """[(stamp or None, rank or None, text)]: a message may follow a progress bar on one line, its stamp begins it."""
    stamps = list(_STAMP.finditer(text))
    edges = [stamp.start() for stamp in stamps] + [len(text)]
    found = [(None, None, text[: edges[0]].rstrip())]
    for stamp, edge in zip(stamps, edges[1:]):
        found.append((stamp[1], stamp[2].strip() or None, text[stamp.end() : edge].rstrip()))
    return [segment for segment in found if segment[2]]


def progress_bar(text):
    return _BAR.match(text) if "%" in text and len(text) < LINE_CAP else None


def fold(path, *, cap_bytes, hide=()):
    """Rewrite a finished log in place: progress bars folded to their last state, the middle left out beyond `cap_bytes` (at least 1000).

    Of each of the texts HIDE (a server prints its own API key) "***" is left.

    Needs twice `cap_bytes` of memory, whatever the size of the log.
    """
    head, end, left_out = bytearray(), bytearray(), 0
    with open(path, "rb", opener=plain) as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        for data in _folded(iter(lambda: file.read(CHUNK_BYTES), b"")):
            for text in hide:
                data = data.replace(text.encode(), b"***")
            room = max(0, cap_bytes // 2 - len(head))
            head += data[:room]
            end += data[room:]
            excess = len(end) - cap_bytes
            if excess > CHUNK_BYTES:
                del end[:excess]
                left_out += excess
    if left_out or len(head) + len(end) > cap_bytes:
        before = head[: head.rfind(b"\n") + 1] or head + b"\n"
        start = len(end) - (cap_bytes - len(before) - 100)  # 100 for the line between
        line_start = end.find(b"\n", start) + 1
        after = end[start if line_start in (0, len(end)) else line_start :]
        left_out += len(head) + len(end) - len(before) - len(after)
        head, end = before + b"[... %d bytes left out here ...]\n" % left_out, after
    write_atomic(path, bytes(head + end), mode=mode)


def _folded(chunks):
    """The chunks' bytes, of each run of a progress bar's states within a line only the last. Nothing else is dropped."""
    splitter = Splitter()
    held_back = b""  # may yet be replaced by a later state
    carriage = False  # the end before was a carriage return, so that a newline right after it belongs to it

    def line(piece, end):
        nonlocal held_back, carriage
        held, done, after_carriage, carriage = held_back, end != b"\r", carriage, end == b"\r"
        newline = b"\n" if end else b""
        if progress_bar(text_of(piece)):
            held_back = b"" if done else piece
            return piece + newline if done else b""
        if not piece and end == b"\r":
            return b""
        held_back = b""
        held = held and held + b"\n"
        return held if not piece and (held or after_carriage) else held + piece + newline

    for chunk in chunks:
        for piece, end in splitter.feed(chunk.replace(b"\0", b"")):  # a hole of log_cap
            yield line(piece, end)
    yield line(splitter.rest, b"")

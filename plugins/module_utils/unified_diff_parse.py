# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads unified diffs, git's among them, and refuses whatever would not be carried out in full."""

from __future__ import annotations

import re

from .errors import RingmasterError
from .unified_diff import DEV_NULL, FilePatch, Hunk, show

_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_MODE = re.compile(rb"(new|deleted) file mode (\d+)")
_PREFIX = re.compile("[abciow]/")  # git's, with and without diff.mnemonicPrefix
_ESCAPES = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_REMEDY = "Make it anew with `git diff` or `diff -u`."

# Lines of git (at the head of a file, unless anywhere) that mean more than a diff of lines can carry.
_REFUSED = (
    (b"rename from ", "renames a file", "Let it delete the one and create the other (git diff --no-renames)."),
    (b"copy from ", "copies a file", "Let it create the copy (git diff --no-renames)."),
    (b"old mode ", "changes the mode of a file", "Leave the mode out."),
)
_REFUSED_ANYWHERE = (
    (b"Binary files ", "changes a binary file", "Only text can be patched."),
    (b"GIT binary patch", "changes a binary file", "Only text can be patched."),
    (b"diff --c", "is the diff of a merge", "Make it against one parent (git diff PARENT COMMIT)."),
)


def parse(text: str) -> list[FilePatch]:
    """The files that the diff TEXT changes, in its order. Raises RingmasterError for whatever would not be carried out in full."""
    lines = text.encode("utf-8", "surrogateescape").split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    found, head, at = [], {}, 0
    while at < len(lines):
        line = lines[at].rstrip(b"\r")
        _refuse(line, bool(head))
        if line.startswith(b"--- ") and lines[at + 1 : at + 2] and lines[at + 1].startswith(b"+++ "):
            patch, at = _file(lines, at, head)
            found.append(patch)
            head = {}
            continue
        if line.startswith(b"@@ "):
            raise _bad(at, "a hunk that belongs to no file")
        mode = _MODE.match(line) if head else None
        if mode:
            head.update(kind=mode.group(1), mode=mode.group(2))
            if not mode.group(2).startswith(b"100"):
                raise RingmasterError("The diff creates or deletes a link or a submodule.", "Only regular files can be patched.")
        if line.startswith(b"diff --git "):
            found += _empty_file(head)
            head = {"names": line[len(b"diff --git ") :]}
        at += 1
    found += _empty_file(head)
    if not found:
        raise RingmasterError("The diff names no file: there is no line `--- ` with a line `+++ ` below it.", _REMEDY)
    paths = [patch.path for patch in found]
    twice = sorted({path for path in paths if paths.count(path) > 1})
    if twice:
        raise RingmasterError(f"The diff changes {twice[0]} twice.", "Make one diff of both, or two patches.")
    return found


def _refuse(line, in_head):
    for prefix, what, remedy in (_REFUSED if in_head else ()) + _REFUSED_ANYWHERE:
        if line.startswith(prefix):
            raise RingmasterError(f"The diff {what}: {show(line)}.", remedy)


def _bad(at, what):
    return RingmasterError(f"Line {at + 1} of the diff: {what}.", _REMEDY)


def _file(lines, at, head):
    """The FilePatch whose `---` line is LINES[AT], and the index after it."""
    old, new = (_name(lines[at + index][4:], at + index) for index in (0, 1))
    kinds = {(True, False): "create", (False, True): "delete", (False, False): "change"}
    try:
        kind = kinds[old == DEV_NULL, new == DEV_NULL]
    except KeyError:
        raise _bad(at, f"both names are {DEV_NULL}") from None
    path = _path(old, new, at)
    at += 2
    hunks, shift = [], 0
    while at < len(lines) and lines[at].startswith(b"@@ "):
        hunk, at = _hunk(lines, at, path, len(hunks) + 1, shift)
        if hunks and hunk.start < hunks[-1].start + len(hunks[-1].old):
            raise RingmasterError(f"Hunk {hunk.number} of {path} begins before the one ahead of it ends.", _REMEDY)
        hunks.append(hunk)
        shift += len(hunk.new) - len(hunk.old)
    if not hunks:
        raise _bad(at - 1, f"{path} has no hunk")
    if kind != "change" and (len(hunks) != 1 or (hunks[0].old if kind == "create" else hunks[0].new)):
        raise RingmasterError(f"The diff is to {kind} {path}, and has lines on both sides.", _REMEDY)
    if kind == "change" and not all(hunk.old and hunk.new for hunk in hunks) and (len(hunks) > 1 or hunks[0].start):
        raise RingmasterError(f"A hunk of {path} has no context: nothing says that its place is right.", "Make it with context (diff -u).")
    return FilePatch(path, kind, tuple(hunks), _file_mode(head)), at


def _file_mode(head):
    return 0o755 if head.get("mode") == b"100755" else 0o644


def _empty_file(head):
    """[FilePatch] of a file without lines that git creates or deletes: it has names and a mode, and no `---`."""
    if "kind" not in head:
        return []
    names = head["names"]
    if names.startswith(b'"'):
        raise RingmasterError(f"The diff has an empty file with a quoted name: {show(names)}.", "Leave it out.")
    half = len(names) // 2
    path = _path(names[:half].decode(errors="surrogateescape"), names[half + 1 :].decode(errors="surrogateescape"), 0)
    return [FilePatch(path, "create" if head["kind"] == b"new" else "delete", (Hunk(1, 0, 0, (), ()),), _file_mode(head))]


def _name(raw, at):
    """The file name of a `---` or `+++` line, without the date after a tab; quoted as git does, when it is."""
    if not raw.startswith(b'"'):
        return raw.split(b"\t")[0].rstrip().decode(errors="surrogateescape")
    quoted = re.match(rb'"((?:[^"\\]|\\.)*)"', raw)
    if not quoted:
        raise _bad(at, "the quotes of the name are not closed")
    return re.sub(rb"\\([0-7]{3}|.)", _unescape, quoted.group(1)).decode(errors="surrogateescape")


def _unescape(match):
    code = match.group(1)
    return bytes([int(code, 8) & 0xFF]) if len(code) == 3 else _ESCAPES.get(code, code)


def _path(old, new, at):
    """The one path that the names OLD and NEW mean, without the first folder where they differ in it (a/ and b/)."""
    if DEV_NULL in (old, new):
        path = new if old == DEV_NULL else old
        path = path[2:] if _PREFIX.match(path) else path
    elif old == new:
        path = old
    else:
        path, other = old.partition("/")[2], new.partition("/")[2]
        if path != other or not path:
            raise RingmasterError(f"The diff makes {new} of {old}.", "Renames are refused: both names have to be the same below a/ and b/.")
    parts = [part for part in path.split("/") if part != "."]
    if ".." in parts or "" in parts or "\0" in path:
        raise RingmasterError(f"Line {at + 1} of the diff: the path {path!r} leaves the root.", "Paths are relative, without `..`.")
    return "/".join(parts)


def _hunk(lines, at, path, number, shift):
    match = _HUNK.match(lines[at])
    if not match:
        raise _bad(at, f"{show(lines[at])} is no head of a hunk")
    start, old_count, _new_start, new_count = (1 if group is None else int(group) for group in match.groups())
    old, new, left = [], [], {b"-": old_count, b"+": new_count}
    at += 1
    sides = []
    while any(left.values()) or (at < len(lines) and lines[at].startswith(b"\\")):
        line = lines[at] if at < len(lines) else b"end of the diff"
        tag, body = (b" ", line) if line in (b"", b"\r") else (line[:1], line[1:])  # editors take the blank of an empty line
        if tag == b"\\" and sides:
            for side in sides:  # "No newline at end of file", in whatever language
                side[-1] = side[-1][:-1] if side[-1].endswith(b"\n") else side[-1]
            at += 1
            continue
        counts = {b" ": b"-+", b"-": b"-", b"+": b"+"}.get(tag)
        if counts is None or not all(left[bytes([sign])] for sign in counts):
            raise _bad(min(at, len(lines) - 1), f"hunk {number} of {path} has other numbers of lines than its head says")
        sides = []
        for sign in counts:
            left[bytes([sign])] -= 1
            sides.append(old if sign == ord("-") else new)
            sides[-1].append(body + b"\n")
        at += 1
    if _goes_on(lines, at):
        raise _bad(at, f"hunk {number} of {path} has more lines than its head says")
    if any(not line.endswith(b"\n") for side in (old, new) for line in side[:-1]):
        raise _bad(at - 1, f"hunk {number} of {path} goes on after the end of the file")
    index = start - 1 if old_count else start
    if index < 0:
        raise _bad(at - 1, f"hunk {number} of {path} begins at line 0")
    return Hunk(number, index, index + shift, tuple(old), tuple(new)), at


def _goes_on(lines, at):
    """Whether LINES[AT], after the last line of a hunk, can only be one more of it."""
    line = lines[at] if at < len(lines) else b""
    is_next_file = line.startswith(b"--- ") and lines[at + 1 : at + 2] and lines[at + 1].startswith(b"+++ ")
    return line[:1] in (b" ", b"+", b"-") and not is_next_file and line.rstrip(b"\r") != b"-- "  # the last: a mail's signature

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Unified diffs, applied and reversed exactly: every context line has to be there, at the stated line or all hunks equally far off it.

`unified_diff_parse` reads them.
"""

from __future__ import annotations

from typing import NamedTuple

from .errors import RingmasterError

DEV_NULL = "/dev/null"


class Mismatch(RingmasterError):
    """A file is not what a diff expects."""


class Hunk(NamedTuple):
    """Lines OLD (bytes with their ends) at index START of the file become NEW, which then begin at index NEW_START."""

    number: int
    start: int
    new_start: int
    old: tuple
    new: tuple


class FilePatch(NamedTuple):
    """What happens to one file: `kind` is change, create or delete; `mode` that of a file that is created."""

    path: str
    kind: str
    hunks: tuple
    mode: int = 0o644


def show(line):
    text = line.decode(errors="backslashreplace")
    return repr(text if len(text) <= 160 else text[:160] + "…")


def reverse(patch: FilePatch) -> FilePatch:
    """The patch that undoes PATCH."""
    kind = {"create": "delete", "delete": "create"}.get(patch.kind, patch.kind)
    return patch._replace(kind=kind, hunks=tuple(Hunk(one.number, one.new_start, one.start, one.new, one.old) for one in patch.hunks))


def apply(content: bytes | None, patch: FilePatch, near: int = 0) -> tuple[bytes | None, int]:
    """(what CONTENT becomes, how many lines off the stated ones). None is no file. Raises Mismatch.

    Tried NEAR lines off first. Else there has to be exactly one offset at which every line of every hunk fits.
    """
    if patch.kind == "create":
        if content is not None:
            raise Mismatch(f"{patch.path} is there already, and the diff creates it.")
        return b"".join(patch.hunks[0].new), 0
    if content is None:
        raise Mismatch(f"{patch.path} is not there. (A diff that creates a file says `--- {DEV_NULL}`.)")
    first = patch.hunks[0]
    if patch.kind == "delete" or not first.old or not first.new:  # the whole file is the context
        whole = b"".join(first.old)
        if content != whole:
            expected, found = f"{len(whole)} bytes", f"{len(content)} bytes"
            raise Mismatch(f"{patch.path} is not what the diff replaces as a whole: expected {expected}, found {found} or other text.")
        return None if patch.kind == "delete" else b"".join(first.new), 0
    lines = content.split(b"\n")
    lines = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    offset = _offset(lines, patch, near)
    result, at = [], 0
    for hunk in patch.hunks:
        result += lines[at : hunk.start + offset]
        result += hunk.new
        at = hunk.start + offset + len(hunk.old)
    return b"".join(result + lines[at:]), offset


def _fits(lines, hunk, offset):
    start = hunk.start + offset
    return start >= 0 and tuple(lines[start : start + len(hunk.old)]) == hunk.old


def _offset(lines, patch, near):
    if all(_fits(lines, hunk, near) for hunk in patch.hunks):
        return near
    first = patch.hunks[0]
    starts = [index - first.start for index, line in enumerate(lines) if line == first.old[0]]
    candidates = [offset for offset in starts if _fits(lines, first, offset)]
    fitting = [offset for offset in candidates if all(_fits(lines, hunk, offset) for hunk in patch.hunks)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        places = " and ".join(str(first.start + offset + 1) for offset in fitting[:3])
        raise Mismatch(f"{patch.path}: hunk 1 does not fit at line {first.start + 1}, and fits at lines {places}.")
    raise _difference(lines, patch, candidates[0] if len(candidates) == 1 else near)


def _difference(lines, patch, offset):
    """The Mismatch that tells the first line which is not as PATCH, OFFSET lines off, expects it."""
    hunk = next(hunk for hunk in patch.hunks if not _fits(lines, hunk, offset))
    for index, expected in enumerate(hunk.old, max(0, hunk.start + offset)):
        found = lines[index] if index < len(lines) else None
        if found != expected:
            break
    shown = "the end of the file" if found is None else show(found)
    off = f" ({offset:+d} lines off)" if offset else ""
    return Mismatch(f"{patch.path}: hunk {hunk.number}, line {index + 1}{off}: expected {show(expected)}, found {shown}.")


def apply_all(contents: dict, patches: list[FilePatch], near: dict | None = None) -> tuple[dict, dict]:
    """({path: content}, {path: offset}) with every one of PATCHES applied to CONTENTS {path: bytes or None}. Raises Mismatch at the first
    that does not fit. NEAR {path: offset} says where to look first."""
    after, offsets = dict(contents), {}
    for patch in patches:
        after[patch.path], offsets[patch.path] = apply(contents[patch.path], patch, (near or {}).get(patch.path, 0))
    return after, offsets


def state(contents: dict, patches: list[FilePatch]) -> str:
    """Whether PATCHES are `present` in CONTENTS or `absent`; `neither` when some of it is otherwise; `unclear` when it reads both ways."""
    ways = {}
    for name, wanted in (("absent", patches), ("present", [reverse(patch) for patch in patches])):
        try:
            ways[name] = apply_all(contents, wanted)[1]
        except Mismatch:
            continue
    exact = [name for name, offsets in ways.items() if not any(offsets.values())]
    if len(ways) == 2 and len(exact) != 1:
        return "unclear"
    return (exact if len(ways) == 2 else list(ways) or ["neither"])[0]

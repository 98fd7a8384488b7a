# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one entry of the catalogue of fatal signatures is. The entries: signatures, and what it gathers."""

from __future__ import annotations

import re
from typing import NamedTuple


class Signature(NamedTuple):
    """One way to die.

    `regex` is searched in one line without its time stamp; its group `rank` is the rank where the stamp names none. `scope` says what a
    line that it matches proves:

    - ended: nothing, unless it belongs to what ended a process, or is among the log's last words with no progress after it
    - error: the same, and only as the text of the exception itself, the last of its chain; `frame` must match one of its frames
    - nccl: the same, or as what NCCL said before an exception that names NCCL
    - line: the end of the process that wrote it, wherever it stands

    `summary` and `advice` are templates of the regex's groups (`path2` stands for `path`) and of {sglang} ("SGLang 0.5.16", or "this
    SGLang"). `details` are (regex, template) searched in the line and the unstamped lines after it: each one found is appended to the
    summary. `advice_in` are (phases, advice) that replace the advice when it happened in one of these phases.
    """

    id: str
    regex: re.Pattern
    summary: str
    advice: str
    details: tuple = ()
    scope: str = "ended"
    frame: re.Pattern | None = None
    advice_in: tuple = ()
    consequence: bool = False  # says only that something died before
    outlives_ready: bool = False  # still the cause when the ready line came after it


def signature(name, regex, summary, advice, details=(), frame=None, **fields):
    """A Signature of patterns given as text."""
    compiled = tuple((re.compile(found), text) for found, text in details)
    return Signature(name, re.compile(regex), summary, advice, compiled, frame=frame and re.compile(frame), **fields)

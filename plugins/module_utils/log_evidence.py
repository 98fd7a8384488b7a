# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lines of a log that may tell why its server ended. log_cause makes the cause of them, once the processes are known to be gone.

A signature's words prove nothing by themselves (signature_type says when they count): servers log errors that they survive.
"""

from __future__ import annotations

import re

from .log_marks import BENIGN, GOES_ON
from .signatures import BY_ID, SIGNATURES

LAST_WORDS = 20  # lines
_JUDGED_CHARS = 2000  # of a longer line only its head is searched
_LINES_CAP = 12  # of one block
_FRAMES_CAP = 40
_WARNINGS_CAP = 5

# A message by which a process says that it ends; what follows without a stamp belongs to it.
_LAST_MESSAGE = re.compile(
    r"\w hit an exception|^Process \S+:$|terminate called after throwing|watchdog thread terminated with exception|^Fatal Python error: "
)
_TRACEBACK = "Traceback (most recent call last)"
_CHAIN = re.compile(r"During handling of the above exception|The above exception was the direct cause")
# Nothing is above these frames that could catch. (A library's own module level may, while it is imported.)
_OUTERMOST = re.compile(r"in (?:_bootstrap|_run_module_as_main)$|^(?!.*(?:site|dist)-packages/).* in <module>$")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:: .*|:)?$")
_NAMED_ERROR = re.compile(r"[\w.]*(?:Error|Exception): |\S*python[\d.]*: ")  # the interpreter's own has no name
_CARETS = re.compile(r"[\s~^]+$")
_KILLED = {"rank_killed", "subprocess_killed"}
_SEARCHED = [entry for entry in SIGNATURES if entry.scope != "error"]
_OF_EXCEPTIONS = [entry for entry in SIGNATURES if entry.scope == "error"]


class Evidence:
    """Takes the lines of a log one by one.

    benign: how many look like errors and are none. nccl_warnings: [{rank, line}], NCCL's first warnings.
    """

    def __init__(self):
        self.benign = 0
        self.nccl_warnings = []
        self._blocks = {}  # signature id -> {groups, lines, phase, record, ended, mark}
        self._moves = self._lines = self._record = 0
        self.next_record()
        self._first = False

    def next_record(self):
        """A stamped line comes: whatever was open is over."""
        self._first = True
        self._record += 1
        self._open = []  # the blocks that take the next lines
        self._ended = None  # the record at hand is the end of a process: "told" by itself, or an "uncaught" exception
        self._frames = None  # of the traceback at hand
        self._untold = None  # (text, line, frames) of an exception whose text begins a line later
        self._excuse = None  # next: a traceback that begins now is harmless; in: within one; after: its message may go on

    def went_on(self, phase=None):
        """The server made progress; PHASE: it entered this one. What was said before it was ready it has survived, but for a port."""
        self._moves += 1
        if phase:  # some helper's end, not the server's
            for block in self._blocks.values():
                block["ended"] = block["ended"] and block["ended"] != "uncaught"
        if phase == "ready_line":
            self._blocks = {name: block for name, block in self._blocks.items() if BY_ID[name][1].outlives_ready}

    def take(self, text, line, phase):
        """TEXT: a line without stamp and rank; LINE: {rank, line} to be kept of it; PHASE: that the log was in."""
        text = text[:_JUDGED_CHARS]
        first, self._first = self._first, False
        if self._is_benign(text, first):
            return
        self._phase = phase
        if "server_args=" in text:  # holds names of everything
            return
        if self._frames is not None and text[0].isspace():
            self._frames.append(line)
            if len(self._frames) == 1 and _OUTERMOST.search(text):
                self._ended = self._ended or "uncaught"
            del self._frames[1:-_FRAMES_CAP]
            return
        self._lines += 1
        for block in self._open:
            if len(block["lines"]) < _LINES_CAP:
                block["lines"].append(line)
                block["mark"] = (self._moves, self._lines)
        if _LAST_MESSAGE.search(text):
            self._ended = "told"
        if "NCCL WARN" in text and len(self.nccl_warnings) < _WARNINGS_CAP:
            self.nccl_warnings.append(line)
        self._search(text, line)
        untold, self._untold = self._untold, None
        if _TRACEBACK in text:
            self._frames = []
        elif self._frames is not None:
            frames, self._frames = self._frames, None
            if _EXCEPTION.match(text):
                self._exception(text, [line], frames)
                self._untold = (text, line, frames) if text.endswith(":") else None
        elif untold:
            head, head_line, frames = untold
            self._exception(f"{head} {text.strip()}", [head_line, line], frames)  # takes the place of what its head alone made
        elif _NAMED_ERROR.match(text):  # without its traceback only the catalogue makes it a cause
            self._name_exception(text, [line], [])

    def _is_benign(self, text, first):
        harmless = next((excuses for regex, excuses in BENIGN if regex.search(text)), None)
        if first and harmless is None and GOES_ON.search(text) and not (_NAMED_ERROR.match(text) or _says_it_itself(text)):
            harmless = False
        if harmless is not None:
            self.benign += 1
            self._excuse = "next" if harmless else None
            return True
        if self._excuse is None:
            return False
        if _TRACEBACK in text and self._excuse != "after":
            self._excuse = "in"
        elif self._excuse == "in" and not text[0].isspace():
            self._excuse = "after"
        elif self._excuse == "after" and _CHAIN.search(text):
            self._excuse = "next"
        elif self._excuse == "next" or (self._excuse == "after" and (_TRACEBACK in text or _says_it_itself(text))):
            self._excuse = None
            return False
        return True

    def _search(self, text, line):
        for entry in _SEARCHED:
            found = entry.regex.search(text)
            if found:
                self._note(entry, found.groupdict(), [line])

    def _exception(self, text, lines, frames):
        place = [frame for frame in frames[-6:] if not _CARETS.match(frame["line"])][-2:]
        source = place[-1]["line"].strip() if place else ""
        text = text.rstrip(":")
        error = text if ": " in text or not source or source.startswith("File ") else f"{text} ({source})"
        # Of a chain only the last counts as the exception.
        of_chain = [name for name, block in self._blocks.items() if block["record"] == self._record and block["exception"]]
        for name in of_chain:
            del self._blocks[name]
        lines = [*place, *lines]
        if not self._name_exception(error, lines, frames):
            self._note(BY_ID["exception"][1], {"error": error}, lines, exception=True)

    def _name_exception(self, error, lines, frames):
        for entry in _OF_EXCEPTIONS:
            found = entry.regex.search(error)
            if found and (entry.frame is None or any(entry.frame.search(frame["line"]) for frame in frames)):
                self._note(entry, found.groupdict(), lines, exception=True)
                return True
        return False

    def _note(self, entry, groups, lines, *, exception=False):
        block = {
            "groups": groups, "lines": list(lines), "phase": self._phase, "record": self._record, "exception": exception,
            "ended": "told" if entry.scope == "line" else self._ended, "mark": (self._moves, self._lines),
        }  # fmt: skip
        former = self._blocks.get(entry.id)
        if former is None or (block["ended"] and not former["ended"]) or not self._counts(former):
            self._blocks[entry.id] = block
            self._open.append(block)

    def _counts(self, block, last_words=LAST_WORDS):
        moves, lines = block["mark"]
        return block["ended"] or (moves == self._moves and self._lines - lines < last_words)

    def blocks(self, *, killed=False):
        """{signature id: {groups, lines [{rank, line}], phase}} of all that counts, now that the log's processes are gone.

        KILLED: a process was, by a signal that it did not send itself (the log may say so too). Where nothing else ended one, that was from
        outside, and what was said before is not the reason, unless it is the very last line.
        """
        ended = {name for name, block in self._blocks.items() if block["ended"] and not BY_ID[name][1].consequence}
        last_words = 1 if (killed or ended & _KILLED) and ended <= _KILLED else LAST_WORDS
        counting = {name for name, block in self._blocks.items() if self._counts(block, last_words)}
        if any(name.startswith("nccl_") for name in counting):
            counting |= {name for name in self._blocks if BY_ID[name][1].scope == "nccl"}
        return {name: self._blocks[name] for name in counting}


def _says_it_itself(text):
    return any(entry.scope == "line" and entry.regex.search(text) for entry in _SEARCHED)

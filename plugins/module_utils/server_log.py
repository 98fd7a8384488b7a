# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read an SGLang server's log: phase, progress, facts, and, once its processes are known to be gone, the cause.

Nothing here says that a server is ready or dead: words in a log cannot decide it.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import deque
from datetime import datetime

from .log_evidence import Evidence
from .log_lines import CHUNK_BYTES, LINE_CAP, Splitter, progress_bar, segments, text_of
from .log_marks import BARS, FACTS, FIRST_WORDS, PHASE_BEGINS, PHASE_ENDS

_LAST_CAP = 20
_MOST_BYTES = 1 << 20  # a poll reads that much of both ends of what was appended: a flood would make its reader deaf for minutes

_TORCH_RANK = re.compile(r"\[rank(\d+)\]:(?: (?!\[))?")
_NCCL_DEVICE = re.compile(r"\S+:\d+:\d+ \[(\d+)\] ")
_ELAPSED = re.compile(r"elapsed[=:] ?(\d+(?:\.\d+)?)")
# Lines that come by the thousand and can say nothing fatal: statistics, access log, NCCL's trace (but for the line with its version).
_ROUTINE = re.compile(r"Decode batch|Prefill batch|INFO:|[^ ]+ \[\d+\] NCCL INFO (?!NCCL version)")
_SERVES = re.compile(r"Decode batch|Prefill batch|INFO: +\S+ - \"")
_BEGIN = re.compile("(?:INFO: +)?(?:" + "|".join(f"(?P<{name}>{regex})" for name, regex in PHASE_BEGINS) + ")")
_PHASE_END = re.compile("|".join(f"(?P<{name}>{regex})" for name, regex in PHASE_ENDS))
_BAR_PHASES = [(phase, re.compile(regex)) for phase, regex in BARS]


class LogReader:
    """Follows one log. All attributes say what was read up to the last poll.

    phase: name of the latest phase entered; phases: [{name, seconds}], seconds None where not known; done, total: the bar of this
    phase, or None; size: bytes read so far (growth is progress); facts {nccl, sglang, tp_size, model_path, max_total_num_tokens,
    custom_all_reduce, graph_batch_sizes, startup_timings, drained}, None where the log does not say. custom_all_reduce is False when
    turned off by its flag, the log's sentence when SGLang turned it off, else True; graph_batch_sizes: [int] that the target model's
    decode graphs were captured for. evidence: log_evidence.Evidence, of which log_cause makes the cause. benign: how many lines look
    like errors and are none.
    """

    def __init__(self, path, *, _clock=time.monotonic):
        self.path = path
        self.size = 0
        self.done = self.total = None
        self.facts = dict.fromkeys(name for name, _regex, _convert in FACTS)
        self.evidence = Evidence()
        self._last = deque(maxlen=_LAST_CAP)
        self._clock = _clock
        self._before = self._now = _clock() if _clock else None
        self._entered = {"spawn": self._now}
        self._elapsed = {}  # phase -> rank -> seconds
        self._bar = (None, None, None)  # phase, done, total
        self._restart(None)

    def _restart(self, identity, offset=0):
        self._identity = identity
        self._offset = offset
        self._splitter = Splitter()
        self._skipping = False  # within the tail of a piece beyond the cap
        self._rank = self._stamp = None
        self.evidence.next_record()

    @property
    def phase(self):
        return next(reversed(list(self._entered)))

    @property
    def benign(self):
        return self.evidence.benign

    @property
    def phases(self):
        names = list(self._entered)
        starts = list(self._entered.values()) + [self._now if self._clock else self._stamp_s()]
        return [{"name": name, "seconds": self._seconds(name, starts[i], starts[i + 1])} for i, name in enumerate(names)]

    def _seconds(self, name, start, end):
        if name == "ready_line":
            return 0.0  # what follows is no start any more
        if name in self._elapsed:
            return round(max(self._elapsed[name].values()), 2)
        return None if start is None or end is None else round(max(0.0, end - start), 2)

    def _stamp_s(self):
        with contextlib.suppress(TypeError, ValueError):
            return datetime.strptime(self._stamp, "%Y-%m-%d %H:%M:%S").timestamp()
        return None

    def _start_s(self):
        """When the line at hand was written: by its stamp in a finished log; while following, when it was read, on the monotonic clock.

        After a long pause between polls the stamp says when in that pause, if it lies within.
        """
        stamp_s = self._stamp_s()
        if not self._clock or stamp_s is None:
            return self._now if self._clock else stamp_s
        by_stamp = self._now - (time.time() - stamp_s)
        return by_stamp if self._before <= by_stamp <= self._now else self._now

    def poll(self):
        """Read what was appended. Returns events {kind: phase, phase} and {kind: progress, phase, done, total, percent}."""
        events = []
        if self._clock:
            self._before, self._now = self._now, self._clock()
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if identity != self._identity or status.st_size < self._offset:
                self._restart(identity)
            end = status.st_size
            missed = end - self._offset - 2 * _MOST_BYTES
            if missed > 0:
                self._read(file, self._offset + _MOST_BYTES, events)
                self._restart(identity, end - _MOST_BYTES)
                self._skipping = True  # to the next end of a line
                self.size += missed
            self._read(file, end, events)
        if not self._skipping:  # the newest state of a bar has no end yet
            for _stamp, _rank, text in segments(text_of(self._splitter.rest))[:1]:
                self._progress(progress_bar(text), events)
        return events

    def _read(self, file, end, events):
        """Up to offset END; what is appended meanwhile is for the next poll."""
        file.seek(self._offset)
        while self._offset < end:
            chunk = file.read(min(CHUNK_BYTES, end - self._offset))
            if not chunk:
                break
            self._offset += len(chunk)
            self.size += len(chunk)
            for piece, line_end in self._splitter.feed(chunk):
                if not self._skipping:
                    for segment in segments(text_of(piece)):
                        self._take(*segment, events)
                self._skipping = not line_end

    def _take(self, stamp, rank, text, events):
        if stamp:
            self._stamp, self._rank = stamp, rank
            self.evidence.next_record()
        elif self._progress(progress_bar(text), events):
            return
        rank = self._rank
        torch_rank = _TORCH_RANK.match(text)
        if torch_rank:
            rank = f"rank {torch_rank[1]}"
            if torch_rank[0].endswith(" "):  # a line of a traceback; else torch's own stamp follows
                text = text[torch_rank.end() :]
        elif rank is None or not stamp:
            device = _NCCL_DEVICE.match(text)
            rank = f"device {device[1]}" if device else rank
        line = {"rank": rank, "line": text[:LINE_CAP]}
        self._last.append(line)
        begin = _BEGIN.match(text, 0, LINE_CAP)
        if begin:
            self._enter(begin.lastgroup, events)
        if not _ROUTINE.match(text):
            self._learn(text)
            self.evidence.take(text, line, self.phase)
        elif _SERVES.match(text):
            self.evidence.went_on()

    def _enter(self, phase, events):
        if phase in self._entered:
            return
        self._entered[phase] = self._start_s()
        self.done = self.total = None
        events.append({"kind": "phase", "phase": phase})
        self.evidence.went_on(phase)

    def _progress(self, state, events):
        if state is None:
            return False
        done, total = int(state["done"]), int(state["total"])
        phase = next((phase for phase, regex in _BAR_PHASES if regex.search(state["label"])), self.phase)
        self._enter(phase, events)
        former_phase, former_done, former_total = self._bar
        # Ranks may draw the same bar in turns: only the furthest counts, unless a bar begins anew (a draft model's).
        if (phase, total) != (former_phase, former_total) or done > former_done or done == 0 < former_done:
            self._bar = (phase, done, total)
            if phase == self.phase:
                self.done, self.total = done, total
            percent = round(100 * done / total) if total else None
            events.append({"kind": "progress", "phase": phase, "done": done, "total": total, "percent": percent})
            self.evidence.went_on()
        return True

    def _learn(self, text):
        for name, regex, convert in FACTS:
            found = regex.search(text)
            if found and not (name in FIRST_WORDS and self.facts[name]):
                self.facts[name] = convert(next(group for group in found.groups() if group is not None))
        end = _PHASE_END.match(text)
        elapsed = end and _ELAPSED.search(text, end.end())
        if elapsed:  # a rank's draft model takes its time after its target model
            ranks = self._elapsed.setdefault(end.lastgroup, {})
            ranks[self._rank] = ranks.get(self._rank, 0.0) + float(elapsed[1])

    def finish(self):
        """Read to the end, and take the last line although it has no end. Returns events like poll()."""
        events = self.poll()
        rest, self._splitter.rest = self._splitter.rest, b""
        if rest and not self._skipping:
            for segment in segments(text_of(rest)):
                self._take(*segment, events)
            self._skipping = True  # should the line go on after all
        return events

    def last_lines(self):
        """[{rank, line}]: the last lines that are no progress bars, the newest last."""
        return list(self._last)


def whole(path):
    """A LogReader that has read a finished log; its phases are timed by the log's own stamps."""
    reader = LogReader(path, _clock=None)
    reader.finish()
    return reader

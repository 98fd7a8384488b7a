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

from .log_lines import CHUNK_BYTES, LINE_CAP, Splitter, progress_bar, segments, text_of
from .signatures import BARS, BENIGN, BY_ID, PHASE_BEGINS, PHASE_ENDS, SIGNATURES

_FATAL_CAP = 50
_LAST_CAP = 20
_BLOCK_CAP = 12

_TORCH_RANK = re.compile(r"\[rank(\d+)\]:")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:: .*)?$")
_ELAPSED = re.compile(r"elapsed[=:] ?(\d+(?:\.\d+)?)")
# Lines that come by the thousand and can say nothing fatal: statistics, access log, NCCL's trace (but for the line with its version).
_ROUTINE = re.compile(r"Decode batch|Prefill batch|INFO:|[^ ]+ \[\d+\] NCCL INFO (?!NCCL version)")
_BEGIN = re.compile("(?:INFO: +)?(?:" + "|".join(f"(?P<{name}>{regex})" for name, regex in PHASE_BEGINS) + ")")
_PHASE_END = re.compile("|".join(f"(?P<{name}>{regex})" for name, regex in PHASE_ENDS))
_BAR_PHASES = [(phase, re.compile(regex)) for phase, regex in BARS]
_TIMING = re.compile(r"(\w+)=(\d+(?:\.\d+)?)")
_FACTS = [
    (name, re.compile(regex), convert)
    for name, regex, convert in (
        ("nccl", r"using nccl==(\d+(?:\.\d+)+)|NCCL version (\d+(?:\.\d+)+)", str),
        ("sglang", r"sglang(?:==| version:? )v?(\d+\.\d+\.\d+[\w.+]*)", str),
        ("tp_size", r"[(,] ?tp_size=(\d+)", int),
        ("model_path", r"ServerArgs\(model_path='([^']*)'", str),
        ("max_total_num_tokens", r"\bmax_total_num_tokens=(\d+), ", int),
        ("custom_all_reduce", r"\bdisable_custom_all_reduce=(True|False)", lambda text: text == "False"),
        ("custom_all_reduce", r"(Custom ?[Aa]ll-?[Rr]educe\w* is disabled .*)", str),
        ("custom_all_reduce", r"(Setup Custom allreduce failed .*)", str),
        ("startup_timings", r"Engine startup timings \(s\): (.*)", lambda text: {k: float(v) for k, v in _TIMING.findall(text)}),
        ("drained", r"Gracefully exiting\.\.\. Remaining number of requests (0)\.", lambda text: True),
    )
]
_SEARCHED = [signature for signature in SIGNATURES if not signature.uncaught]


class LogReader:
    """Follows one log. All attributes say what was read up to the last poll.

    phase: name of the latest phase entered; phases: [{name, seconds}], seconds None where not known; done, total: the bar of this
    phase, or None; size: bytes read so far (growth is progress); facts {nccl, sglang, tp_size, model_path, max_total_num_tokens,
    custom_all_reduce, startup_timings, drained}, None where the log does not say. custom_all_reduce is False when turned off by its
    flag, the log's sentence when SGLang turned it off, else True. fatal: [{rank, line}], candidates only, the newest last. benign:
    how many lines look like errors and are none.
    """

    def __init__(self, path, *, _clock=time.monotonic):
        self.path = path
        self.size = 0
        self.done = self.total = None
        self.facts = dict.fromkeys((name for name, _regex, _convert in _FACTS))
        self.benign = 0
        self.blocks = {}  # signature id -> {groups, lines}: its first occurrence
        self._fatal = deque(maxlen=_FATAL_CAP)
        self._last = deque(maxlen=_LAST_CAP)
        self._clock = _clock
        self._before = self._now = _clock() if _clock else None
        self._entered = {"spawn": self._now}
        self._elapsed = {}  # phase -> rank -> seconds
        self._bar = (None, None, None)  # phase, done, total
        self._restart(None)

    def _restart(self, identity):
        self._identity = identity
        self._offset = 0
        self._splitter = Splitter()
        self._skipping = False  # within the tail of a piece beyond the cap
        self._rank = self._stamp = None
        self._open = None  # the block that takes the next unstamped lines
        self._head = False  # the message at hand began with "... hit an exception"
        self._traceback = False
        self._excused = False
        self._record = 0

    @property
    def phase(self):
        return next(reversed(list(self._entered)))

    @property
    def fatal(self):
        return list(self._fatal)

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
            file.seek(self._offset)
            for chunk in iter(lambda: file.read(CHUNK_BYTES), b""):
                self._offset += len(chunk)
                self.size += len(chunk)
                for piece, end in self._splitter.feed(chunk):
                    if not self._skipping:
                        for segment in segments(text_of(piece)):
                            self._take(*segment, events)
                    self._skipping = not end
        if not self._skipping:  # the newest state of a bar has no end yet
            for _stamp, _rank, text in segments(text_of(self._splitter.rest))[:1]:
                self._progress(progress_bar(text), events)
        return events

    def _take(self, stamp, rank, text, events):
        if stamp:
            self._stamp, self._rank = stamp, rank
            self._open = None
            self._head = self._traceback = self._excused = False
            self._record += 1
        elif self._progress(progress_bar(text), events):
            return
        torch_rank = _TORCH_RANK.match(text)
        line = {"rank": f"rank {torch_rank[1]}" if torch_rank else self._rank, "line": text[:LINE_CAP]}
        self._last.append(line)
        begin = _BEGIN.match(text)
        if begin:
            self._enter(begin.lastgroup, events)
        if _ROUTINE.match(text):
            return
        self._learn(text)
        self._judge(text, line, stamped=bool(stamp))

    def _enter(self, phase, events):
        if phase in self._entered:
            return
        self._entered[phase] = self._start_s()
        self.done = self.total = None
        events.append({"kind": "phase", "phase": phase})
        if phase == "ready_line":  # what came before was survived
            self.blocks = {name: block for name, block in self.blocks.items() if BY_ID[name][1].outlives_ready}

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
        return True

    def _learn(self, text):
        for name, regex, convert in _FACTS:
            found = regex.search(text)
            if found:
                self.facts[name] = convert(next(group for group in found.groups() if group is not None))
        end = _PHASE_END.match(text)
        elapsed = end and _ELAPSED.search(text, end.end())
        if elapsed:  # a rank's draft model takes its time after its target model
            ranks = self._elapsed.setdefault(end.lastgroup, {})
            ranks[self._rank] = ranks.get(self._rank, 0.0) + float(elapsed[1])

    def _judge(self, text, line, *, stamped):
        """Keep what may tell the cause: signatures, and the exception line that ends a traceback."""
        harmless = next((excuses for regex, excuses in BENIGN if regex.search(text)), None)
        if harmless is not None:
            self.benign += 1
            self._excused = harmless
            return
        if self._excused:
            if self._traceback and not text[0].isspace():
                self._excused = self._traceback = False
            else:
                self._traceback = self._traceback or text.startswith("Traceback (")
            return
        if self._open is not None and not stamped and len(self._open["lines"]) < _BLOCK_CAP:
            self._open["lines"].append(line)
        if "server_args=" in text:
            return
        for signature in _SEARCHED:
            found = signature.regex.search(text)
            if found:
                self._fatal.append(dict(line))
                if signature.id not in self.blocks:
                    self._note(signature.id, found.groupdict(), line)
        self._head = self._head or " hit an exception" in text
        if "Traceback (most recent call last)" in text:
            self._traceback = True
        elif self._traceback and not text[0].isspace():
            self._traceback = False
            if _EXCEPTION.match(text):
                self._note_exception(text, line)

    def _note(self, name, groups, line):
        self.blocks[name] = self._open = {"groups": groups, "lines": [line], "record": self._record}

    def _note_exception(self, text, line):
        self._fatal.append(dict(line))
        first = self.blocks.get("scheduler_exception")
        if not self._head:
            self._note("exception", {"error": text[:LINE_CAP]}, line)  # of those the last counts
        elif first is None or first["record"] == self._record:  # the last of a chain, but of the first scheduler
            self._note("scheduler_exception", {"error": text[:LINE_CAP]}, line)

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

    def decode_lines(self, since):
        """Decode statistics logged after `since` (a former `size`): [{running, cuda_graph, gen_tok_s, queue, accept_length, rank}].

        Fields that the line does not have are None. Read from the file anew, so nothing piles up in memory.
        """
        rows = []
        start = max(0, since - (self.size - self._offset))
        with open(self.path, "rb") as file:
            whole = True
            if start:
                file.seek(start - 1)
                whole = file.read(1) in b"\r\n"
            splitter = Splitter()
            for chunk in iter(lambda: file.read(CHUNK_BYTES), b""):
                for piece, end in splitter.feed(chunk):
                    if whole and b"Decode batch" in piece:
                        found = segments(text_of(piece))
                        rows += [_decode_row(rank, text) for _stamp, rank, text in found if text.startswith("Decode batch")]
                    whole = bool(end)
        return rows


def _decode_row(rank, text):
    fields = dict(field.split(": ", 1) for field in text.rstrip(",").split(", ") if ": " in field)

    def number(name, convert):
        try:
            return convert(fields[name])
        except (KeyError, ValueError):
            return None

    graph = next((value for name, value in fields.items() if name.endswith(" graph")), None)  # cuda, cpu, npu graph
    return {
        "running": number("#running-req", int),
        "cuda_graph": None if graph is None else graph == "True",
        "gen_tok_s": number("gen throughput (token/s)", float),
        "queue": number("#queue-req", int),
        "accept_length": number("accept len", float),
        "rank": rank,
    }


def whole(path):
    """A LogReader that has read a finished log; its phases are timed by the log's own stamps."""
    reader = LogReader(path, _clock=None)
    reader.finish()
    return reader

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NCCL's own log, one file a process: how a server is made to write it, and what it proves of each rank.

Wordings: NCCL 2.18 to 2.32 (src/misc/param.cc, init.cc, graph/connect.cc, graph/tuning.cc, enqueue.cc and the strings of libnccl.so).
Each rank logs what it reads and its channels; the tuning tables and each collective are logged by rank 0 of a communicator alone.
"""

from __future__ import annotations

import contextlib
import os
import re

from . import files

SUBSYSTEMS = "INIT,ENV,GRAPH,TUNING"  # from 2.30 on one unknown word discards the whole list
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
LONGEST_LINE = 1 << 16
MOST_BYTES = 16 << 20  # of a file: what is read and set up stands at its beginning, and a minute of millions of lines tells no more
MOST_LINES_HELD = 4096
MOST = {"settings": 512, "lines": 20, "communicators": 16, "transports": 32, "collectives": 1024}


def environment(directory, given):
    """{NAME: value} that makes every process of a server log to a file of its own in DIRECTORY (which it must be able to write to).

    GIVEN {NAME: value}: all that the server has anyway, sitecustomize's settings included. {} when it asks for a log itself: `declined`.
    """
    if declined(given):
        return {}
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": SUBSYSTEMS, "NCCL_DEBUG_FILE": os.path.join(directory, "nccl.%h.%p")}


def declined(given):
    """Why NCCL's log is not captured, a sentence; None when it can be."""
    own = [f"{name}={given[name]}" for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS") if given.get(name)]
    return f"NCCL's log is not captured: the server has {' and '.join(own)} of its own." if own else None


def read(directory):
    """{pid: capture} of all files in DIRECTORY; {} when there is none. Raises OSError when a file cannot be read.

    A capture:
      version          "2.28.9+cuda13.0", None on other ranks than 0
      settings         {NAME: value} that NCCL says it took from the environment, a conf file or an environment plugin
      invalid          [line] where NCCL says that it did not take a value as it was given
      warnings         [text of an NCCL WARN line]
      communicators    [{rank, ranks, complete, channels {coll, collnet, nvls, p2p, p2p_per_peer}, p2p_chunk_bytes}]
      rank, ranks, complete, channels, p2p_chunk_bytes   of the largest communicator, complete ones first
      max_threads      {algorithm: {protocol: threads}} without those that do not exist
      algorithms       {function: {protocols [...], algorithms [...]}} left enabled; {} when neither NCCL_ALGO nor NCCL_PROTO is set
      transports       {"P2P/CUMEM": connections}
      collectives      [{function, bytes [least, most], algorithm, protocol, channels, count}], sizes folded by powers of two;
                       algorithm is "Symmetric" or "Copy Engine", protocol and channels None, where NCCL went past its algorithms
    """
    processes = {}
    with contextlib.suppress(FileNotFoundError):
        for entry in sorted(os.scandir(directory), key=lambda one: one.name):
            if entry.is_file(follow_symlinks=False):
                _read_file(entry.path, processes)
    return {pid: process.capture() for pid, process in processes.items()}


def read_file(path):
    """`read` for one file, which may hold the lines of several processes."""
    processes = {}
    _read_file(path, processes)
    return {pid: process.capture() for pid, process in processes.items()}


def summary(capture):
    """What a capture says in short, for a trial's result.

    {version, ranks, channels, p2p_chunk_bytes, transports [name], collectives {"AllReduce Ring LL": {bytes, channels [least, most],
    count, threads}}}
    """
    collectives = {}
    for row in capture["collectives"]:
        name = " ".join(filter(None, (row["function"], row["algorithm"], row["protocol"])))
        threads = capture["max_threads"].get(row["algorithm"], {}).get(row["protocol"])
        said = collectives.setdefault(name, {"bytes": row["bytes"], "channels": None, "count": 0, "threads": threads})
        said["bytes"] = _span(said["bytes"] + row["bytes"])
        said["channels"] = _span((said["channels"] or []) + [row["channels"]]) if row["channels"] else said["channels"]
        said["count"] += row["count"]
    return {
        "version": capture["version"],
        "ranks": capture["ranks"],
        "channels": capture["channels"].get("coll"),
        "p2p_chunk_bytes": capture["p2p_chunk_bytes"],
        "transports": sorted(capture["transports"]),
        "collectives": collectives,
    }


def _span(numbers):
    return [min(numbers), max(numbers)]


# lines


_PREFIX = re.compile(r"(?:\[[^\]]*\] )?\S+?:(\d{1,10}):(\d{1,10}) \[-?\d+\] (.*)")
_CHANNELS = re.compile(r"(\d+) (coll|collnet|nvls|p2p) channels( per peer)?")
_COMMUNICATOR = re.compile(r"comm 0x\w+ rank (\d+) n[rR]anks (\d+) .*- Init (START|COMPLETE)")
_COLLECTIVE = re.compile(
    r"(?:(\w+)(?: \[([\w ]+)\])?: )?(\d+) Bytes -> "
    r"(?:Algo (\w+) proto (\w+)(?:.*\{(\d+)\.\.(\d+)\})?|Kernel \w+ nchannels (\d+)|)"
)
_ENABLED = re.compile(r" *(Function|Broadcast|Reduce|AllGather|ReduceScatter|AllReduce) \|([^|/]+)\|([^|/]+)$")
_NO_COMMUNICATOR = {"rank": None, "ranks": None, "complete": False, "channels": {}, "p2p_chunk_bytes": None}
_NAMES = {name.lower(): name for name in ALGORITHMS + PROTOCOLS}


def _read_file(path, processes):
    """Adds what a file says to PROCESSES {pid: _Process}. Equal lines are counted before they are looked at: NCCL writes millions."""
    held, pid = {}, None
    with open(path, "rb", opener=files.plain) as file:
        for line in iter(lambda: file.readline(LONGEST_LINE) if file.tell() < MOST_BYTES else b"", b""):
            if not line.endswith(b"\n"):  # cut off: what it says may be half of a number
                continue
            if b" Bytes -> " in line:
                held[line] = held.get(line, 0) + 1
                if len(held) > MOST_LINES_HELD:
                    _take_held(held, processes)
                continue
            text = line.decode(errors="replace").rstrip()
            found = _PREFIX.match(text)
            if found:
                pid = int(found[1])
                with contextlib.suppress(ValueError):  # garbage: a number of thousands of digits
                    processes.setdefault(pid, _Process()).line(found[2], found[3])
            elif pid is not None:
                processes[pid].continued(text)
    _take_held(held, processes)


def _take_held(held, processes):
    for line, count in held.items():
        found = _PREFIX.match(line.decode(errors="replace"))
        said = found and _COLLECTIVE.search(found[3])
        if said:
            with contextlib.suppress(ValueError):
                processes.setdefault(int(found[1]), _Process()).collective(said, count)
    held.clear()


class _Process:
    """What the lines of one process have said so far."""

    def __init__(self):
        self.version, self.settings, self.invalid, self.warnings, self.transports = None, {}, [], [], {}
        self.max_threads, self.algorithms, self.communicators, self.rows = {}, {}, [], {}
        self._open, self._table, self._enabled = {}, [], None  # {thread: communicator not yet complete}; columns of the tables

    def line(self, thread, text):
        for word, pattern, take in _LINES:
            if word in text:
                found = pattern.search(text)
                if found:
                    take(self, thread, found)
                    return

    def continued(self, text):
        """A line without prefix: of the table that says what NCCL_ALGO and NCCL_PROTO leave enabled."""
        found = _ENABLED.fullmatch(text)
        if not found:
            return
        cells = [part.split() for part in found.groups()[1:]]
        if found[1] == "Function":
            self._enabled = cells
        elif self._enabled and [len(part) for part in cells] == [len(part) for part in self._enabled]:
            protocols, algorithms = ([name for name, cell in zip(*pair) if cell != "0"] for pair in zip(self._enabled, cells))
            self.algorithms[found[1]] = {"protocols": protocols, "algorithms": algorithms}

    def collective(self, found, count):
        function, kind, size, algorithm, protocol, low, high, kernel_channels = found.groups()
        channels = int(high) - int(low) + 1 if high else int(kernel_channels) if kernel_channels else None
        algorithm = kind or _known(algorithm, ALGORITHMS)
        key = (function, algorithm, _known(protocol, PROTOCOLS), channels, int(size).bit_length())
        if key in self.rows or len(self.rows) < MOST["collectives"]:
            row = self.rows.setdefault(key, [int(size), int(size), 0])
            row[:] = min(row[0], int(size)), max(row[1], int(size)), row[2] + count

    def capture(self):
        left = [one for one in self._open.values() if "ranks" in one or "channels" in one]
        told = [{**_NO_COMMUNICATOR, **one} for one in (self.communicators + left)[: MOST["communicators"]]]
        for one in told:
            one["channels"] = one["channels"] or ({"coll": one["rings"]} if "rings" in one else {})
            one.pop("rings", None)
        main = max(told, key=lambda one: (one["complete"] and one["ranks"] > 1, one["ranks"] or 0), default=_NO_COMMUNICATOR)
        rows = sorted(self.rows.items(), key=lambda item: [str(part) for part in item[0][:3]] + [item[1][0], item[0][3] or 0])
        return {
            "version": self.version, "settings": self.settings, "invalid": self.invalid, "warnings": self.warnings, **main,
            "communicators": told, "max_threads": self.max_threads, "algorithms": self.algorithms, "transports": self.transports,
            "collectives": [{"function": function, "bytes": [least, most], "algorithm": algorithm, "protocol": protocol,
                             "channels": channels, "count": count}
                            for (function, algorithm, protocol, channels, _bits), (least, most, count) in rows],
        }  # fmt: skip

    # what single lines say: (thread, match)

    def _setting(self, _thread, found):
        if found[1] in self.settings or len(self.settings) < MOST["settings"]:
            self.settings[found[1]] = re.sub(r"^(-?\d+)\.$", r"\1", found[2])  # the integer path ends its line with a dot

    def _warning(self, _thread, found):
        if len(self.warnings) < MOST["lines"]:
            self.warnings.append(found[1])

    def _invalid(self, _thread, found):
        if len(self.invalid) < MOST["lines"]:
            self.invalid.append(found[0])

    def _version(self, _thread, found):
        self.version = found[1]

    def _init(self, thread, found):
        known = {"rank": int(found[1]), "ranks": int(found[2])}
        if found[3] == "START":
            self._open[thread] = known
        elif len(self.communicators) < MOST["communicators"]:
            self.communicators.append({**self._open.pop(thread, {}), **known, "complete": True})

    def _of_communicator(self, thread):
        return self._open.setdefault(thread, {})

    def _channels(self, thread, found):
        counts = {kind + ("_per_peer" if per_peer else ""): int(count) for count, kind, per_peer in _CHANNELS.findall(found[0])}
        self._of_communicator(thread)["channels"] = counts

    def _rings(self, thread, found):
        self._of_communicator(thread)["rings"] = int(found[1])

    def _chunk(self, thread, found):
        self._of_communicator(thread)["p2p_chunk_bytes"] = int(found[1])

    def _transport(self, _thread, found):
        if found[1] in self.transports or len(self.transports) < MOST["transports"]:
            self.transports[found[1]] = self.transports.get(found[1], 0) + 1

    def _columns(self, _thread, found):
        names = [cell.split("/") for cell in found[1].replace(" ", "").strip("|").split("|")]
        if all(len(name) == 2 for name in names):  # Tree/LL in every cell: before 2.24
            self._table = [(_known(algorithm, ALGORITHMS), _known(protocol, PROTOCOLS)) for algorithm, protocol in names]
        else:
            self._table = [(_known(name[0], ALGORITHMS), protocol) for name in names for protocol in PROTOCOLS]

    def _threads(self, _thread, found):
        for (algorithm, protocol), cell in zip(self._table, found[1].replace(" ", "").strip("|").split("|")):
            if cell.isdecimal() and int(cell):
                self.max_threads.setdefault(algorithm, {})[protocol] = int(cell)


def _known(word, names):
    """One spelling for what NCCL writes as Ring, RING or 1, COLLNET_DIRECT or CollNetDirect. An unknown word as it is."""
    if word is not None and word.isdecimal():
        return names[int(word)] if int(word) < len(names) else word
    return word and _NAMES.get(word.replace("_", "").lower(), word)


# (a word of the line, its pattern, what takes it); the first pattern that matches
_LINES = tuple((word, re.compile(pattern), take) for word, pattern, take in (
    (" set by environment to ", r"\b(NCCL_\w+) set by environment to (.*)", _Process._setting),
    (" NCCL WARN ", r" NCCL WARN (.*)", _Process._warning),
    ("nvalid ", r"Invalid .*NCCL_.*", _Process._invalid),
    ("User asked for", r"User asked for a m.*", _Process._invalid),
    (" is too ", r"NCCL_\w+ .*is too .*", _Process._invalid),
    (" coll channels", r"\d+ coll channels.*", _Process._channels),
    ("- Init ", _COMMUNICATOR.pattern, _Process._init),
    (" via ", r"Channel \d+.* -> .* via (\w+(?:/\w+)?)", _Process._transport),
    ("Channel ", r"Channel \d+/(\d+) :(?: +\d+)+ *$", _Process._rings),
    ("P2P Chunksize", r"P2P Chunksize set to (\d+)", _Process._chunk),
    ("NCCL version ", r"NCCL version (\S+)", _Process._version),
    ("Algorithm ", r"NCCL INFO +Algorithm +\|(.*)", _Process._columns),
    ("Latency/AlgBw", r"Latency/AlgBw +\|(.*)", _Process._columns),
    ("Max NThreads", r"Max NThreads +\|(.*)", _Process._threads),
))  # fmt: skip

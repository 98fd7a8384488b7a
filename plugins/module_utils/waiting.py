# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the launch to the first answer, and no longer than a server gets on. The watcher costs at most 1 % of a core."""

from __future__ import annotations

import time

from . import gpus, log_cap, readiness, sockets

CHECK_INTERVAL_S = 0.5
LOOK_INTERVAL_S = 1.0  # between looks at the whole tree, at least
LOOK_INTERVAL_MOST_S = 10.0
COST_SHARE = 0.005  # of a core for these looks: on a host with thousands of processes a scan of /proc takes long


class Hung(Exception):
    """No progress for longer than the stall time: the seconds, and what was asked last."""

    def __init__(self, silent_s, problem):
        super().__init__(silent_s, problem)
        self.silent_s, self.problem = silent_s, problem


class Refused(Exception):
    """Not this trial's fault: a summary and an advice."""

    def __init__(self, summary, advice):
        super().__init__(summary, advice)
        self.summary, self.advice = summary, advice


def until_ready(server, reader, prober, *, port, settings, check, report):
    """What the server answered (readiness.ask). Raises Died, Hung, Refused, or what CHECK raises.

    The launcher and known members are watched all the time, by descriptors that tell of their end; the whole tree, which costs a scan
    of /proc, is looked at now and then. REPORT gets what the log tells.
    """
    progress = readiness.Progress(time.monotonic())
    memory = gpus.MemoryWatch()
    look_due, port_is_ours, silent_s = 0.0, False, 0.0
    while True:
        check()
        server.note_children()
        server.check()
        moment = time.monotonic()
        for event in reader.poll():
            progress.note(moment)
            report(**event)
        if moment >= look_due or (not port_is_ours and sockets.is_open(port)):
            before_s = time.thread_time()
            tree = server.look()
            if not port_is_ours:
                owner = readiness.whose_port(port, tree)
                if owner == "foreign" and owner == readiness.whose_port(port, server.look()):  # not just opened, nor just closed
                    raise Refused(f"port {port} in use by a server that is not this trial's", "Stop it, or set tune_port: 0.")
                port_is_ours = owner == "ours"
            # Our own probes make the server write lines once it listens: from then on only phases in the log count.
            silent_s = progress.feed(readiness.sample(tree, 0 if port_is_ours else reader.size, memory.poll()), moment)
            look_due = moment + look_interval_s(time.thread_time() - before_s)
            log_cap.punch(server.log_path, cap_bytes=settings["log_cap_bytes"])
        if port_is_ours:
            answer = prober.poll()
            if answer is not None:
                server.look()  # so that every rank that answers is known
                return answer
        if silent_s > settings["stall_timeout_s"]:
            raise Hung(silent_s, prober.last_problem if port_is_ours else "its port is closed")
        server.wait(CHECK_INTERVAL_S)


def look_interval_s(cost_s):
    """Seconds until the next look at the whole tree, when the last one took COST_S of CPU time."""
    return min(max(LOOK_INTERVAL_S, cost_s / COST_SHARE), LOOK_INTERVAL_MOST_S)


class Stall:
    """While a server is measured: `check` raises Hung when neither an answer nor a line of its log came for the stall time."""

    def __init__(self, log_path, settings):
        self._log_path, self._stall_timeout_s, self._cap_bytes = log_path, settings["stall_timeout_s"], settings["log_cap_bytes"]
        self._size = 0
        self.note()

    def note(self):
        """Something came."""
        self._last = time.monotonic()

    def check(self):
        size = log_cap.size_of(self._log_path)
        if size != self._size:
            self._size = size
            log_cap.punch(self._log_path, cap_bytes=self._cap_bytes)
            self.note()
        silent_s = time.monotonic() - self._last
        if silent_s > self._stall_timeout_s:
            raise Hung(silent_s, "it answered before, and no more")

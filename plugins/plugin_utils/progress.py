# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan's events as lines for a person who waits: whole lines, few of them. Pure but for the clock it is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

FIGURES = frozenset(("ready", "workload", "died"))  # events whose line rests on what a server did
PHASES = {"commit": "putting it in force", "production start": "starting the production server"}
SIMULATED = "  [SIMULATED]"
QUIET_S = 2.0  # at least this long between two lines of the same phase


class Narrator:
    """Turns events into lines. `step_count` is the number of launches planned."""

    def __init__(self, host: str, step_count: int, *, simulated: bool = False) -> None:
        self.prefix = f"{host}: "
        self.suffix = SIMULATED if simulated else ""
        self.step_count = step_count
        self._quiet_until = 0.0
        self._begun: tuple[str, float, float] = ("", 0.0, 0.0)  # phase that is counted, when it began, fraction done then

    def lines(self, event: Mapping[str, Any]) -> Iterator[str]:
        """What to print for EVENT: none or one line, without a line break."""
        text = getattr(self, f"on_{event['kind']}", lambda _event: None)(event)
        if text:
            yield self.prefix + text + (self.suffix if event["kind"] in FIGURES else "")

    def on_step(self, event: Mapping[str, Any]) -> str:
        self._quiet_until = event["t"] + QUIET_S
        what = "fills the caches, not counted" if event["discard"] else f"block {event['block']}"
        return f"start {event['index'] + 1}/{self.step_count} {event['arm']} ({what}), log {event['log']}"

    def on_phase(self, event: Mapping[str, Any]) -> str | None:
        if event["phase"] in ("ready_line", "stop"):  # words in a log, and what the next line says anyway
            return None
        return self._in_passing(event, f"  {PHASES.get(event['phase'], event['phase'].replace('_', ' '))}")

    def on_progress(self, event: Mapping[str, Any]) -> str | None:
        done, total = event.get("done"), event.get("total")
        if not total:
            return None
        fraction, moment = done / total, event["t"]
        if self._begun[0] != event["phase"]:
            self._begun = (event["phase"], moment, fraction)
        _phase, begun, first = self._begun
        text = f"  {event['phase'].replace('_', ' ')} {done}/{total}, {100 * fraction:.0f} %"
        if fraction > first and moment - begun > QUIET_S:
            text += f", {duration((1 - fraction) * (moment - begun) / (fraction - first))} left"
        return self._in_passing(event, text)

    def on_workload(self, event: Mapping[str, Any]) -> str | None:
        return self._in_passing(event, f"  {event['name']}: {event['done']}/{event['total']} requests")

    def on_ready(self, event: Mapping[str, Any]) -> str:
        self._quiet_until = event["t"] + QUIET_S
        self.suffix = SIMULATED if event.get("simulated") else self.suffix
        return f"  ready after {event['seconds']:.1f} s"

    def on_died(self, event: Mapping[str, Any]) -> str:
        who = event["role"] if event["role"].startswith(("sglang::", "a ")) else f"the {event['role']}"
        return f"  {who} is gone: {event['summary'] or 'no message'}; log {event['log']}"

    def on_held(self, event: Mapping[str, Any]) -> str:
        return f"{event['unit']} is drained, stopped and held until the end"

    def trial(self, result: Mapping[str, Any]) -> str:
        """The line for a finished trial."""
        self._begun = ("", 0.0, 0.0)
        rows = [
            f"{row['name']} {row['decode_tok_s']:.1f} tok/s" if row.get("decode_tok_s") else f"{row['name']} gave no figure"
            for row in result.get("workloads") or []
        ]
        if result["outcome"] != "ready":
            rows = [f"{result['outcome']}: {(result.get('cause') or {}).get('summary', 'no cause found')}; log {result['log']}"]
        held = (result.get("ended") or {}).get("held")
        if held:
            rows.append(f"NOT given back: {_held(held)}")
        return f"{self.prefix}  {', '.join(rows) or result['outcome']}{self.suffix}"

    def _in_passing(self, event: Mapping[str, Any], text: str) -> str | None:
        """TEXT, unless something was said less than QUIET_S ago: nobody reads a line every tenth of a second."""
        if event["t"] < self._quiet_until:
            return None
        self._quiet_until = event["t"] + QUIET_S
        return text


def _held(held: Mapping[str, Any]) -> str:
    """What a stopped server left behind, and who has it now."""
    memory = [f"{more / (1 << 30):.1f} GiB of {uuid}" for uuid, more in held["bytes"].items()]
    users = [f"{user['name']} (pid {user['pid']})" for user in held["by"]]
    return ", ".join(memory + ["the port"] * (not held["port_free"])) + (f"; the GPUs are used by {', '.join(users)}" if users else "")


def duration(seconds: float) -> str:
    """3 min, 45 s."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

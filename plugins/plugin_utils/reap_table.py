# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What reap.yml shows: a row for each process that has a GPU, what was done about it, and what is left to do."""

from __future__ import annotations

from collections.abc import Sequence

from . import tables

_ALIVE = ("serving", "loading")  # of these the row says all
_ALONE = (*_ALIVE, "foreign")


def report(hosts: Sequence[dict], *, width: int = 80, encoding: str | None = None, only_say: bool = False) -> str:
    """The whole text.

    Hosts: {host, place (who was asked, of which container), found: result of gpu_worker or None, problem: str or None}; `only_say`: check
    mode, nothing was signalled.
    """
    show = tables.printer(encoding)
    rows, notes = [], []
    for host in hosts:
        found = host["found"] or {}
        reaped = {(one["pid"], one["title"]): one for one in found.get("reaped", ())}
        left = {(one["pid"], one["title"]): one for one in found.get("left", ())}
        for worker in found.get("workers", ()):
            key = (worker["pid"], worker["title"])
            rows.append(
                [
                    show(host["host"]),
                    show(worker["pid"]),
                    show(worker["class"]),
                    show(worker["program"] if worker["role"] in (None, "launcher") else worker["title"]),
                    "-" if worker["memory_mib"] is None else f"{worker['memory_mib']:.0f}",
                    _done(worker["class"], reaped.get(key), only_say),
                ]
            )
            why = (left.get(key) or {}).get("why") or worker["reason"]
            advice = (left.get(key) or {}).get("advice") or worker["advice"]
            lines = [] if worker["class"] in _ALIVE else tables.labelled("why", show(why), width)
            notes.append(lines + (tables.labelled("advice", show(advice), width) if advice else []))
    header = ["host", "pid", "class", "process", "GPU MiB", "done"]
    lines = tables.grid(header, rows, width, cut=(0, 3), right=(1, 4), notes=notes) if rows else []
    for host in hosts:
        lines += [""] if lines else []
        lines += _of_host(host, show, width, only_say)
    return tables.joined(lines)


def _done(group: str, reaped: dict | None, only_say: bool) -> str:
    if reaped is None:
        return "left alone" if group in _ALONE else "still there"
    if only_say:
        return "would be ended"
    return f"ended ({reaped['ended_by']})" if reaped["ended_by"] else "still there"


def _of_host(host: dict, show, width: int, only_say: bool) -> list[str]:
    """What is to say of the host as a whole: in one sentence what was done, then what only a person can do."""
    name, found = show(host["host"]), host["found"] or {}
    lines = [f"{name}: {show(host['place'])}"]
    texts = []
    if not host["problem"]:
        number = len(found.get("reaped", ()))
        would = "would be ended" if only_say else "ended"
        texts.append(("done", f"{number} of {len(found.get('workers', ()))} processes {would}" if number else "nothing to end"))
        if found.get("released_after_s") is not None:
            texts.append(("memory", f"back after {found['released_after_s']:.1f} s"))
    for gpu in found.get("wedged", ()):
        texts.append(("wedged", f"GPU {gpu['index']}: {gpu['memory_used_mib']:.0f} MiB that no process has. {gpu['advice']}"))
    texts += [("note", text) for text in found.get("notes", ())]
    seen = found.get("seen") or {}
    if seen.get("complete") is False:
        texts.append(("unseen", seen["why"]))
    if host["problem"]:
        texts.append(("failed", host["problem"]))
    return lines + [line for label, text in texts for line in tables.labelled(label, show(text), width)]

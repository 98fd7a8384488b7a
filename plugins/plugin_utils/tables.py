# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plain-text tables at the end of a playbook: at most `width` columns, ASCII where the terminal knows no UTF-8."""

from __future__ import annotations

import codecs
import itertools
import locale
import shutil
import textwrap
from collections.abc import Callable, Sequence

_GLUE = "\u00a0"  # a space at which a cell must not be wrapped; printed as a space
_BREAK_AFTER = "_=,/:-."  # where a word that is wider than its column is cut, if it can be chosen
_ASCII = str.maketrans({"…": "..", "–": "-", "—": "-", "−": "-", "µ": "u", "μ": "u", "×": "x", "≥": ">=", "≤": "<="})


def results_table(rows: Sequence[dict], *, width: int = 80, encoding: str | None = None) -> str:
    """What was measured, one block a row: the figures, then what was done, why, the log and the next command.

    Rows: `{host, factor, baseline_tok_s, candidate_tok_s, ratio, low, high, starts: [n_baseline, n_candidate], verdict, reason,
    done, proof, output, warnings: [str], log, simulated, next}`; all but host, factor and verdict may be missing or None. `ratio, low,
    high` are candidate / baseline. SIMULATED stands in the verdict of each simulated row and in a line under the table. Only a log path
    or a command that is wider than the table exceeds `width`: both are there to be copied. `encoding` defaults to the locale's.
    """
    if not rows:
        return "No host was measured.\n"
    show = printer(encoding)
    header = ["host", "factor", "baseline tok/s", "candidate tok/s", "change (interval)", "starts", "verdict"]
    cells = [
        [
            show(row["host"]),
            show(row["factor"]),
            _speed(row.get("baseline_tok_s")),
            _speed(row.get("candidate_tok_s")),
            _change(row, show("…")),
            "+".join(str(count) for count in row.get("starts") or []) or "-",
            show(row["verdict"]) + (" SIMULATED" if row.get("simulated") else ""),
        ]
        for row in rows
    ]
    notes = [
        [line for name in ("done", "reason", "proof", "output") if row.get(name) for line in labelled(name, show(row[name]), width)]
        + [line for text in row.get("warnings") or () for line in labelled("warn", show(text), width)]
        + [f"  {name + ':':<7} {show(row[name])}" for name in ("log", "next") if row.get(name)]
        for row in rows
    ]
    lines = grid(header, cells, width, cut=(0, 1), right=(2, 3), notes=notes)
    simulated = dict.fromkeys(show(row["host"]) for row in rows if row.get("simulated"))
    if simulated:
        text = f"SIMULATED: {', '.join(simulated)} ran a stand-in engine. Its figures say nothing about a real server."
        lines += ["", *textwrap.wrap(text, width)]
    return joined(lines)


def status_table(rows: Sequence[dict], *, width: int = 80, encoding: str | None = None) -> str:
    """Who runs what: rows `{host, who, since, step, phase, lease_s}`; `lease_s` is what is left of the lease, in seconds."""
    if not rows:
        return "No run is in progress.\n"
    show = printer(encoding)
    cells = [
        [show(row.get(name)) for name in ("host", "who", "since", "step", "phase")]
        + ["-" if row.get("lease_s") is None else f"{row['lease_s']:.0f}{_GLUE}s"]
        for row in rows
    ]
    return joined(grid(["host", "who", "since", "step", "phase", "lease"], cells, width, cut=(0, 1, 3, 4), right=(5,)))


def versions_table(rows: Sequence[dict], *, width: int = 80, encoding: str | None = None) -> str:
    """Known-good versions: rows `{version, date, by, label, current: bool}`; the one in force is marked with an asterisk."""
    if not rows:
        return "No version of known-good is recorded.\n"
    show = printer(encoding)
    cells = [
        ["*" if row.get("current") else "", str(row["version"]), *(show(row.get(name)) for name in ("date", "by", "label"))] for row in rows
    ]
    lines = grid(["", "version", "date", "by", "label"], cells, width, cut=(3, 4), right=(1,))
    return joined([*lines, "", "* in force"])


def grid(
    header: list[str],
    rows: list[list[str]],
    width: int,
    *,
    cut: Sequence[int],
    right: Sequence[int],
    notes: Sequence[list[str]] = (),
) -> list[str]:
    """Lines of a table whose cells are wrapped so that it is at most `width` wide.

    Columns in `cut` may be cut within words, those in `right` are flush right; `notes[i]` follow row i.
    """
    widths = _widths(header, rows, width, cut)
    justify = [str.rjust if column in right else str.ljust for column in range(len(header))]

    def laid_out(row: list[str]) -> list[str]:
        wrapped = [_wrap(cell, size) for cell, size in zip(row, widths, strict=True)]
        lines = itertools.zip_longest(*wrapped, fillvalue="")
        return [" ".join(put(part, size) for put, part, size in zip(justify, line, widths, strict=True)).rstrip() for line in lines]

    lines = [*laid_out(header), " ".join("-" * size for size in widths)]
    for number, row in enumerate(rows):
        lines += [*laid_out(row), *(notes[number] if notes else [])]
    return lines


def _widths(header: list[str], rows: list[list[str]], width: int, cut: Sequence[int]) -> list[int]:
    """Widths of the columns: cells whole if they fit, else cut where that costs least: between words first, then in words."""
    columns = list(zip(*rows, strict=True))
    heads = [max(map(len, title.split(" "))) for title in header]
    sizes = [max(head, *map(len, column)) for head, column in zip(heads, columns, strict=True)]
    words = [max(len(word) for cell in column for word in cell.split(" ")) for column in columns]
    for least in (words, [8 if column in cut else size for column, size in enumerate(words)]):
        while sum(sizes) + len(sizes) - 1 > width:
            spare = [size if size > max(head, floor) else 0 for size, head, floor in zip(sizes, heads, least, strict=True)]
            if not any(spare):
                break
            widest = spare.index(max(spare))
            lines = (line for cell in columns[widest] for line in _wrap(cell, sizes[widest] - 1))
            sizes[widest] = max(heads[widest], *map(len, lines))  # what it uses then, which may be less
    return sizes


def _wrap(cell: str, size: int) -> list[str]:
    lines = [""]
    for word in cell.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) <= size:
            lines[-1] += " " + word
            continue
        lines.append(word)
        while len(lines[-1]) > size:
            rest = lines[-1]
            cut = max((rest.rfind(mark, size // 3, size) + 1 for mark in _BREAK_AFTER), default=0) or size
            lines[-1:] = [rest[:cut], rest[cut:]]
    return lines[1:]


def labelled(name: str, text: str, width: int) -> list[str]:
    """TEXT as wrapped lines below a row, NAME in front."""
    return textwrap.wrap(text, width, initial_indent=f"  {name + ':':<7} ", subsequent_indent=" " * 10)


def _change(row: dict, to: str) -> str:
    """As in +6.1 % (+5.2 … +7.0): percent of the baseline, with the interval."""
    if row.get("ratio") is None:
        return "-"
    ratio, low, high = (None if row.get(name) is None else f"{_percent(row[name]):+.1f}" for name in ("ratio", "low", "high"))
    return f"{ratio}{_GLUE}%" + (f" ({low}{_GLUE}{to}{_GLUE}{high})" if low and high else "")


def _percent(ratio: float) -> float:
    return round(100 * (ratio - 1), 1) + 0.0  # + 0.0 makes -0.0 a plain 0


def _speed(tok_s: float | None) -> str:
    return "-" if tok_s is None else f"{tok_s:.1f}"


def terminal_width() -> int:
    """Columns for a table: the terminal's, at least 80 and at most 120."""
    return max(80, min(120, shutil.get_terminal_size((80, 24)).columns))


def printer(encoding: str | None) -> Callable[[object], str]:
    """What makes of a value one line without control characters (reasons may quote a server's log) that the terminal can show."""
    utf8 = codecs.lookup(encoding or locale.getpreferredencoding(False)).name in ("utf-8", "utf-8-sig")

    def show(value: object) -> str:
        text = " ".join("".join(char if char.isprintable() else " " for char in str("" if value is None else value)).split()) or "-"
        return text if utf8 else text.translate(_ASCII).encode("ascii", "replace").decode("ascii")

    return show


def joined(lines: list[str]) -> str:
    """LINES as one text, with the spaces that no cell was to be wrapped at."""
    return "\n".join(lines).replace(_GLUE, " ") + "\n"

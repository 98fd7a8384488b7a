# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the tests' own modules are, and the table of what was seen."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests" / "unit")]

SEEN = []


def pytest_terminal_summary(terminalreporter):
    for name, trial in SEEN:
        ended, cause = trial["ended"] or {}, trial["cause"] or {}
        how = f"by {ended.get('by')}, exit {ended.get('exit')}, {ended.get('seconds')} s" if ended else "never started"
        terminalreporter.write_line(f"{name:34} {trial['outcome'] or 'cut off':8} {how:42} {cause.get('summary', '-')}")

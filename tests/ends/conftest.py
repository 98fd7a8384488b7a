# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One container for all tests of a session, and the table of what they measured."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "collections"))

ROWS = []


@pytest.fixture(scope="session")
def host(tmp_path_factory):
    """A container that serves; removed at the end unless RINGMASTER_ENDS_KEEP is set."""
    if os.geteuid() != 0 or not shutil.which("lxc-start"):
        pytest.skip("needs root and LXC (tests/lab/lxc.py install)")
    from harness import Host

    made = Host(f"rm-test-ends-{os.getpid()}", tmp_path_factory.mktemp("ends"))
    try:
        made.install()
        yield made
    finally:
        if not os.environ.get("RINGMASTER_ENDS_KEEP"):
            made.remove()


@pytest.fixture
def measured():
    """Rows (end, point, seconds until nothing is left and known-good is back, outcome, exit status of the run) for the closing table."""
    return ROWS


def pytest_terminal_summary(terminalreporter):
    """Each row; then each kind of end over all of them, and over those of earlier rounds that RINGMASTER_ENDS_RECORD names a file of."""
    for end, point, seconds, outcome, code in ROWS:
        terminalreporter.write_line(f"{end:17} {point:10} over after {seconds:5.1f} s   {outcome}, playbook exit {code}")
    record, rows = os.environ.get("RINGMASTER_ENDS_RECORD"), ROWS
    if record:
        with open(record, "a+") as file:
            file.writelines(json.dumps(row) + "\n" for row in ROWS)
            file.seek(0)
            rows = [json.loads(line) for line in file]
    by_end = {}
    for end, _point, seconds, *_rest in rows:
        by_end.setdefault(end, []).append(seconds)
    for end, found in by_end.items():
        figures = f"{min(found):5.1f} {statistics.median(found):5.1f} {max(found):5.1f}"
        terminalreporter.write_line(f"{end:17} {len(found):3} times, least, median, most: {figures} s")

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`check` in a tree of its own, with a `make` that plays the steps."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHECK = Path(__file__).with_name("check")
# Says when it begins and ends; `bad` fails; `stay` takes a minute in a child of its own, as pytest below a shell does, and tells of SIGINT.
MAKE = r"""#!/bin/bash
[[ $2 == setup-dev ]] && exit
name=$2${3:+-${3#SCENARIOS=}}
echo "$name begins"; echo "begin $name" >>times
if [[ $name == stay ]]; then
    python3 -c 'import time
try:
    print("stays", flush=True); time.sleep(60)
except KeyboardInterrupt:
    open("cleaned", "w").close()'
else
    sleep 0.6
fi
[[ $name == unit ]] && echo "= 7 passed in 0.60s =" >.cache/unit.log
echo "$name ends"; echo "end $name" >>times
[[ $name != bad* ]]
"""


@pytest.fixture
def tree(tmp_path):
    """A clone with nothing but `check`, and what it calls."""
    lab = tmp_path / "tests" / "lab"
    lab.mkdir(parents=True)
    shutil.copy(CHECK, lab)
    (tmp_path / "bin").mkdir()
    for path, text in ((lab / "lxc.py", "#!/bin/sh\n"), (tmp_path / "bin" / "make", MAKE)):
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    return tmp_path


def start(tree, *steps, **environment):
    given = {"PATH": f"{tree}/bin:{os.environ['PATH']}", "LANES": "2", "CI": "", **environment}
    words = [sys.executable, tree / "tests" / "lab" / "check", *steps]
    return subprocess.Popen(words, cwd=tree, env={**os.environ, **given}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(tree, *steps, **environment):
    """(exit status, what it printed without seconds, its time line apart)."""
    child = start(tree, *steps, **environment)
    said, _ = child.communicate(timeout=60)
    return child.returncode, re.sub(r"\b\d+ s\b", "N s", said)


def most_at_once(tree):
    running, most = 0, 0
    for line in (tree / "times").read_text(encoding="utf-8").splitlines():
        running += 1 if line.startswith("begin") else -1
        most = max(most, running)
    return most


@pytest.mark.skipif(os.geteuid() != 0, reason="molecule is skipped then")
@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_steps_run_in_lanes_and_none_is_printed_into_another(tree, lanes):
    status, said = run(tree, "lint", "unit", "molecule:nccl", "sanity", LANES=str(lanes))
    assert status == 0, said
    assert most_at_once(tree) == lanes
    for name in ("lint", "unit", "molecule-nccl", "sanity"):
        assert f"{name} begins\n{name} ends\n" in said
    assert said.endswith(
        "\n= 7 passed in 0.60s =\npassed: lint N s, unit N s, molecule:nccl N s, sanity N s; failed: none; skipped: none\n"
    )


def test_all_run_whatever_fails_and_the_first_begin_first(tree):
    status, said = run(tree, "bad", "lint", "bad-too", "unit")
    assert status == 1
    assert said.endswith("passed: lint N s, unit N s; failed: bad, bad-too; skipped: none\n")
    begun = [line for line in (tree / "times").read_text(encoding="utf-8").splitlines() if line.startswith("begin")]
    assert (sorted(begun[:2]), sorted(begun[2:])) == (["begin bad", "begin lint"], ["begin bad-too", "begin unit"])


def test_what_wants_the_machine_for_itself_runs_last_and_alone(tree):
    status, said = run(tree, "lint", "unit", "--", "measures", "bad")
    assert status == 1
    assert said.endswith("passed: lint N s, unit N s, measures N s; failed: bad; skipped: none\n")
    times = (tree / "times").read_text(encoding="utf-8").splitlines()
    assert (sorted(times[:4]), times[4:]) == (
        ["begin lint", "begin unit", "end lint", "end unit"],
        ["begin measures", "end measures", "begin bad", "end bad"],
    )


@pytest.mark.parametrize(("ci", "status"), [("", 0), ("true", 1)])
def test_what_is_skipped_fails_in_ci(tree, ci, status):
    for name in ("sleep", "python3"):
        (tree / "bin" / name).symlink_to(shutil.which(name))
    code, said = run(tree, "lint", "ends", "molecule:nccl", CI=ci, PATH=f"{tree}/bin")  # no apt-get
    why = "not root" if os.geteuid() else "not Debian or Ubuntu"
    assert code == status
    assert said.endswith(f"passed: lint N s; failed: none; skipped: ends ({why}), molecule:nccl ({why})\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_however_it_ends_what_it_began_ends_in_good_order(tree, number):
    child = start(tree, "stay", "lint", "unit")
    log = tree / ".cache" / "check" / "stay.log"
    deadline = time.monotonic() + 30
    while not (log.exists() and "stays" in log.read_text(encoding="utf-8")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    child.send_signal(number)
    child.communicate(timeout=30)  # the guard has its output open, too, until nothing is left
    assert child.returncode != 0
    assert (tree / "cleaned").exists()
    assert [path for path in Path("/proc").glob("[0-9]*/cwd") if _is(path, tree)] == []


def _is(link, folder):
    try:
        return link.samefile(folder)
    except OSError:
        return False

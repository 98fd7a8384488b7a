# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real virtual environment with a small package, and diffs for it."""

from __future__ import annotations

import difflib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ansible_collections.ringmaster.gpu.plugins.module_utils import patched_environment

ROOT = Path(__file__).resolve().parents[2]
X = "".join(f"line_{number} = {number}\n" for number in range(1, 31))
Y = "def gate(major):\n    return major in (9, 10)\n\n\ndef other():\n    return 1\n"
START = {
    "toy/__init__.py": "", "toy/x.py": X, "toy/sub/y.py": Y, "toy/data.txt": "a\nb\n",
    "toy-1.2.3.dist-info/METADATA": "Metadata-Version: 2.1\nName: toy\nVersion: 1.2.3\n",
}  # fmt: skip


def make_venv(folder):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder


class Environment:
    """A copy of VENV in FOLDER with the package toy 1.2.3 (files START), each file a hard link to one in a cache, as uv makes them."""

    def __init__(self, venv, folder):
        self.path, self.cache = folder / "env", folder / "cache"
        shutil.copytree(venv, self.path, symlinks=True)
        for name, text in START.items():
            for root in (self.cache, self.site):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.cache / name).write_text(text)
            os.link(self.cache / name, self.site / name)

    @property
    def site(self):
        (site,) = self.path.glob("lib/python3*/site-packages")
        return site

    def read(self, name):
        return (self.site / name).read_text()

    def write(self, name, text):
        """As an editor does, which writes a new file."""
        (self.site / name).unlink(missing_ok=True)
        (self.site / name).write_text(text)

    def files(self):
        """{path: bytes} of everything below site-packages and the records."""
        roots = (self.site / "toy", self.path / patched_environment.FOLDER)
        return {str(path): path.read_bytes() for root in roots for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc"}

    def change(self, *patches, exclusive=False, check_mode=False):
        result = patched_environment.change(str(self.path), [item(**each) for each in patches], exclusive, check_mode)
        assert not list(self.path.rglob(".ringmaster-*"))
        return result

    def record(self, name):
        return json.loads((self.path / patched_environment.FOLDER / f"{name}.json").read_text())

    def imports(self, expression):
        """What a server would get: EXPRESSION after `from toy import x; from toy.sub import y`, by way of bytecode where there is some."""
        code = f"from toy import x; from toy.sub import y; print({expression})"
        command = [self.path / "bin/python", "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=True, env={"LANG": "C.UTF-8"}).stdout.strip()


def item(name, diff=None, state="present", package="toy", versions=()):
    return {"name": name, "diff": diff, "state": state, "package": package, "versions": list(versions)}


def diff(name, before, after, lines=3):
    """A unified diff of one file; None is no file."""
    old, new = ((text or "").splitlines(keepends=True) for text in (before, after))
    names = ("/dev/null" if before is None else f"a/{name}", "/dev/null" if after is None else f"b/{name}")
    return "".join(difflib.unified_diff(old, new, *names, n=lines))


def line(number, text, base=X):
    """(diff, result) of a change of line NUMBER of x.py as BASE has it."""
    old = f"line_{number} = {number}\n"
    assert old in base
    return diff("toy/x.py", base, base.replace(old, text)), base.replace(old, text)


GATE = diff("toy/sub/y.py", Y, Y.replace("(9, 10)", "(9, 10, 12)"))
FIVE, X_FIVE = line(5, "line_5 = 'five'\n")
TEN, X_TEN = line(10, "line_10 = 'ten'\nline_10b = 1\n")
ON_FIVE, X_ON_FIVE = line(6, "line_6 = 'six'\n", X_FIVE)  # its context has what FIVE made
MANY = FIVE + GATE + diff("toy/new/z.py", None, "z = 1\n") + diff("toy/data.txt", "a\nb\n", None)

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings a lab directory to what the role wants: `install.py WANTED_JSON [--check]`, the stand-in's files as JSON on stdin.

One process instead of a task for each file: the role runs before every trial of the lab, and forty file tasks take ten seconds.
Prints {"changed": [what was or would be done], "error": "" or a sentence}; exit 1 with an error. Standard library, Python 3.9 to 3.13.
"""

from __future__ import annotations

import compileall
import fcntl
import json
import os
import pathlib
import shutil
import sys
import venv


class LabError(Exception):
    """What is wrong and what to do, for the user."""


def check_writable(lab_dir: pathlib.Path) -> None:
    """LabError unless the directory, or the nearest one above that exists, can be written."""
    existing = next(one for one in (lab_dir, *lab_dir.parents) if one.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise LabError(f"lab_dir {lab_dir}: {existing} is not a directory that this user can write. Set lab_dir to one that is.")


def reset_state(state_dir: pathlib.Path, check: bool) -> list:
    """Removes the state directory; LabError while a supervisor holds its lock, or when it does not look like a state directory."""
    if not state_dir.is_dir() or not any(state_dir.iterdir()):
        return []
    known = {"lock", "journal.json", "known-good", "plans", "trials", "site", "bin"}
    if not known & {one.name for one in state_dir.iterdir()}:
        raise LabError(f"lab_reset: {state_dir} holds nothing of Ringmaster's, so it stays. Check ringmaster_state_dir.")
    lock = state_dir / "lock"
    if lock.exists():
        with lock.open("r+") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                try:
                    held = "by {who} since {since}".format(**json.loads(lock.read_text()))
                except (ValueError, KeyError):
                    held = "by another run"
                raise LabError(f"lab_reset: {state_dir} is in use {held}. Wait for that run, or end it with abort.yml.") from None
    if not check:
        shutil.rmtree(state_dir)
    return [f"{state_dir} removed"]


def make_venv(directory: pathlib.Path, check: bool) -> list:
    """An interpreter environment without pip, of the Python that runs this."""
    python = directory / "bin" / "python"
    wanted = f"version = {'.'.join(map(str, sys.version_info[:3]))}"
    config = directory / "pyvenv.cfg"
    if python.exists() and config.exists() and wanted in config.read_text():
        return []
    if not check:
        venv.create(directory, clear=directory.exists(), symlinks=True, with_pip=False)
    return [f"{directory} made"]


def sync_files(root: pathlib.Path, files: dict, check: bool) -> list:
    """Writes {relative path: text} under root where content differs; in directories it fills, files it does not know are removed."""
    changed = []
    for name, text in sorted(files.items()):
        path = root / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        changed.append(f"{path} written")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for parent in sorted({(root / name).parent for name in files} - {root}):
        for path in sorted(parent.iterdir()) if parent.is_dir() else []:
            if path.is_file() and str(path.relative_to(root)) not in files:
                changed.append(f"{path} removed")
                if not check:
                    path.unlink()
    return changed


def install(wanted: dict, files: dict, check: bool) -> list:
    """Does all of it, in order; the list of what was done."""
    lab_dir = pathlib.Path(wanted["lab_dir"])
    check_writable(lab_dir)
    changed = reset_state(pathlib.Path(wanted["state_dir"]), check) if wanted["reset"] else []
    environment, model = lab_dir / "venv", pathlib.Path(wanted["model_path"])
    changed += make_venv(environment, check)
    site = environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    done = sync_files(site, files, check)
    if done and not check:
        compileall.compile_dir(site / "sglang", quiet=2)
    config = json.dumps({"architectures": ["SimulatedForCausalLM"], "model_type": "simulated"}, indent=1) + "\n"
    lab = json.dumps(wanted["model"], indent=1, sort_keys=True) + "\n"
    return changed + done + sync_files(model.parent, {f"{model.name}/config.json": config, f"{model.name}/lab.json": lab}, check)


def main() -> int:
    answer = {"changed": [], "error": ""}
    try:
        answer["changed"] = install(json.loads(sys.argv[1]), json.load(sys.stdin), "--check" in sys.argv)
    except LabError as error:
        answer["error"] = str(error)
    except OSError as error:
        answer["error"] = f"lab_dir {json.loads(sys.argv[1])['lab_dir']}: {error}. Set lab_dir to a directory that this user can write."
    print(json.dumps(answer))
    return 1 if answer["error"] else 0


if __name__ == "__main__":
    raise SystemExit(main())

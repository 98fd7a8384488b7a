# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Source patches on a virtual environment: all files of all patches change, or none does.

Below ENVIRONMENT/ringmaster-patches there is a record for each patch that is on, NAME.json, with the diff itself, and while files change
journal.json, which holds what they were: whoever finds it puts that back first.

Files are replaced by new ones and never written in place: uv makes them hard links to its cache, and every other environment has the same.
"""

from __future__ import annotations

import base64
import contextlib
import difflib
import fcntl
import glob
import json
import os
import stat
import subprocess

from . import environment_users, files, nccl_site, source_patches
from .errors import RingmasterError

FOLDER = "ringmaster-patches"
JOURNAL = "journal.json"
_TIMEOUT_S = 60.0
_ASK = """
import importlib.metadata, json, sys
found = {}
for name in json.load(sys.stdin):
    try:
        one = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        continue
    found[name] = {"version": str(one.version), "root": str(one.locate_file(""))}
print(json.dumps(found))
"""
_COMPILE = """
import base64, json, sys
problem = None
for path, content in json.load(sys.stdin).items():
    try:
        compile(base64.b64decode(content), path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        problem = "%s: %s" % (path, error)
        break
print(json.dumps(problem))
"""


def _ask(environment, code, question):
    """What CODE, run by the interpreter of ENVIRONMENT, prints as JSON about QUESTION. No package of it is imported."""
    python = os.path.join(environment, "bin", "python")
    try:
        done = subprocess.run(
            [python, "-I", "-B", "-W", "ignore", "-c", code],
            input=json.dumps(question), capture_output=True, encoding="utf-8", timeout=_TIMEOUT_S, check=False, cwd="/",
        )  # fmt: skip
        return json.loads(done.stdout.rpartition("\n")[0].rpartition("\n")[2])
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        found = getattr(error, "strerror", None) or (f"exit {done.returncode}" if isinstance(error, ValueError) else str(error))
        raise RingmasterError(f"{python} does not answer: {found}.", f"Is {environment} a virtual environment? Build it first.") from error


@contextlib.contextmanager
def _lock(environment):
    """Hold ENVIRONMENT: two runs would each put back what the other writes."""
    descriptor = os.open(environment, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise RingmasterError(f"Another run is patching {environment}.", "Wait for it.") from None
    finally:
        os.close(descriptor)


# --- reading --------------------------------------------------------------------------------------------------------


def read(root, path):
    """The bytes of the regular file PATH below ROOT, None when there is none. Raises RingmasterError where a link leads elsewhere."""
    full = root
    for part in path.split("/"):
        full = os.path.join(full, part)
        try:
            mode = os.lstat(full).st_mode
        except FileNotFoundError:
            return None
        if stat.S_ISLNK(mode):
            remedy = "Build the environment with files of its own (uv's link mode hardlink or copy)."
            raise RingmasterError(f"{full} is a link, so a patch would change something outside of the environment.", remedy)
    if not stat.S_ISREG(mode):
        raise RingmasterError(f"{full} is no regular file.", "Mend the path in the diff.")
    return files.content(full)


def records(environment, former=None):
    """The records of ENVIRONMENT, from the bottom. FORMER {path: bytes or None}: what some files will be once a journal is put back."""
    folder = os.path.join(environment, FOLDER)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    paths = {os.path.join(folder, name) for name in names if name.endswith(".json") and name != JOURNAL}
    contents = {path: files.content(path) for path in paths}
    contents.update({path: data for path, data in (former or {}).items() if os.path.dirname(path) == folder})
    found = [_record(path, data) for path, data in contents.items() if data is not None]
    return sorted(found, key=lambda record: record["order"])


def _record(path, data):
    try:
        record = json.loads(data)
        if set(record) >= source_patches.RECORD_KEYS:
            return record
    except (ValueError, TypeError):
        pass
    raise RingmasterError(f"{path} is not what Ringmaster wrote there.", "Build the environment again.")


# --- writing --------------------------------------------------------------------------------------------------------


def change(environment, wanted, exclusive, check_mode, rehearse=False):
    """Bring the patches of ENVIRONMENT to WANTED, or only work out what would change. The module's result.

    REHEARSE works it out for an environment that is not to be changed either, so it does not matter who runs out of it.
    """
    given, environment = environment, os.path.realpath(environment)
    if not os.path.isdir(environment):
        raise RingmasterError(f"{given} is no folder on this host.", "Give a virtual environment; build it first.")
    with _lock(environment):
        return _change(environment, wanted, exclusive, check_mode or rehearse, rehearse)


def _change(environment, wanted, exclusive, check_mode, rehearse):
    journal_path = os.path.join(environment, FOLDER, JOURNAL)
    journal, former = files.read_json(journal_path), {}
    if journal is not None and not (isinstance(journal, dict) and {"before", "folders"} <= set(journal)):
        raise RingmasterError(f"{journal_path} is not what Ringmaster wrote there.", "Build the environment again.")
    if journal is not None:
        rehearse or environment_users.refuse(environment)
        if check_mode:
            former = {each["path"]: None if each["content"] is None else base64.b64decode(each["content"]) for each in journal["before"]}
        else:
            _put_back(journal_path, journal)
    if not check_mode:
        _remove_strays(os.path.dirname(journal_path))
    recorded = records(environment, former)
    packages = sorted({item["package"] for item in [*wanted, *recorded]})
    installed = _ask(environment, _ASK, packages) if packages else {}
    for each in installed.values():
        each["root"] = os.path.realpath(each["root"])
    installed = {name: each for name, each in installed.items() if each["root"].startswith(os.path.join(environment, ""))}

    def look(root, path):
        full = os.path.join(root, path)
        return former[full] if full in former else read(root, path)

    plan = source_patches.plan(recorded, wanted, exclusive, installed, look)
    changes = {os.path.join(*key): contents for key, contents in plan.contents.items()}
    modes = {os.path.join(*key): mode for key, mode in plan.modes.items()}
    if changes:
        rehearse or environment_users.refuse(environment)
        sources = {path: base64.b64encode(after).decode() for path, (_before, after) in changes.items() if after and path.endswith(".py")}
        problem = _ask(environment, _COMPILE, sources) if sources else None
        if problem:
            raise RingmasterError(f"What the patches make is no Python: {problem}.", "Nothing was changed. Mend the diff.")
    writes = {path: after for path, (_before, after) in changes.items()}
    writes.update(_record_writes(os.path.join(environment, FOLDER), recorded, plan.records))
    if writes and not check_mode:
        _write(journal_path, writes, modes, {each["root"] for each in installed.values()})
    listed = {item["name"] for item in wanted}
    offsets = {record["name"]: {one["path"]: one["offset"] for one in record["files"] if one["offset"]} for record in plan.records}
    return {
        "changed": bool(writes or journal),
        "patches": source_patches.in_force(plan.records),
        **plan.notes,
        "unlisted": [record["name"] for record in recorded if record["name"] not in listed],
        "offsets": {name: off for name, off in offsets.items() if off},
        "files": sorted(changes),
        "undone": journal is not None,
        "diff": [{"prepared": _shown(path, *sides)} for path, sides in sorted(changes.items())],
    }


def _record_writes(folder, recorded, wanted):
    """{path: bytes or None} of the records that differ."""
    before, after = ({one["name"]: one for one in records} for records in (recorded, wanted))
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    texts = {name: json.dumps(after[name], sort_keys=True, indent=1) + "\n" for name in names if name in after}
    return {os.path.join(folder, f"{name}.json"): texts[name].encode() if name in texts else None for name in names}


def _write(journal_path, writes, modes, roots):
    """Carry out WRITES {path: bytes or None}, all or none."""
    files.make_directory(os.path.dirname(journal_path))
    before = {path: files.snapshot(path) for path in writes}
    journal = {"format": 1, "before": list(before.values()), "folders": _missing_folders(writes)}
    files.write_json(journal_path, journal)
    try:
        for path, content in writes.items():
            if content is None:
                files.remove(path)
            else:
                files.make_directory(os.path.dirname(path))
                files.write_atomic(path, content, mode=before[path].get("mode", modes.get(path, 0o644)))
            nccl_site.remove_stale_bytecode(path)  # a .pyc of a source of the same size and second would win over the new one
            if content is None and os.path.dirname(path) != os.path.dirname(journal_path):
                _remove_empty(os.path.dirname(path), roots)
        wrong = [path for path, content in writes.items() if files.content(path) != content]
        if wrong:
            raise RingmasterError(f"{wrong[0]} does not read as it was written.", "Look at the disk; all was put back.")
    except BaseException:
        _put_back(journal_path, journal)
        raise
    files.remove(journal_path)


def _missing_folders(paths):
    """Folders above PATHS that are not there, the deepest first."""
    missing = set()
    for path in paths:
        folder = os.path.dirname(path)
        while not os.path.isdir(folder):
            missing.add(folder)
            folder = os.path.dirname(folder)
    return sorted(missing, key=len, reverse=True)


def _remove_empty(folder, roots):
    """Folders that lost their last file go, as they do with git: an empty one is still a package to Python."""
    with contextlib.suppress(OSError):
        while folder not in roots:
            os.rmdir(folder)
            folder = os.path.dirname(folder)


def _put_back(journal_path, journal):
    """Make every file what it was before the change that JOURNAL tells. Safe to repeat at any point."""
    for former in journal["before"]:
        files.restore(former)
        nccl_site.remove_stale_bytecode(former["path"])
    for folder in {os.path.dirname(former["path"]) for former in journal["before"]}:
        _remove_strays(folder)
    for folder in journal["folders"]:
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    files.remove(journal_path)


def _remove_strays(folder):
    """What a run that was killed had not yet renamed into place."""
    for stray in glob.glob(os.path.join(glob.escape(folder), ".ringmaster-*")):
        os.unlink(stray)


def _shown(path, before, after):
    """The change of a file for a person."""
    texts = [(content or b"").decode(errors="backslashreplace").splitlines(keepends=True) for content in (before, after)]
    names = [os.devnull if content is None else path for content in (before, after)]
    return "".join(line if line.endswith("\n") else line + "\n" for line in difflib.unified_diff(*texts, *names))

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which source patches are on an environment and which are to be, worked out in memory: nothing is written here.

The patches of an environment are a stack: each is made for what those below it left. All recorded ones are taken away in memory, from the
top, and the wanted ones put on from the bottom; what then differs from the disk is to be written. So a changed order, a changed diff and
a patch that goes from the middle need no cases of their own.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from .errors import RingmasterError
from .unified_diff import Mismatch, apply_all, reverse, state
from .unified_diff_parse import parse

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
RECORD_KEYS = frozenset(("name", "order", "package", "version", "sha256", "diff", "files"))
_VERSION = re.compile(r"(\d+(?:\.\d+)*)(?:(a|b|rc)(\d+))?(?:\.post(\d+))?(?:\.dev(\d+))?(?:\+[A-Za-z0-9._-]+)?")
_FINAL, _NO_DEV = (3, 0), float("inf")
_BOUND = re.compile(r"(>=|<=|==|!=|<|>)\s*(\S+)")


class Plan(NamedTuple):
    """`contents` {path: (bytes or None before, after)} of the files that change, `modes` {path: mode} of those that are created, `records`
    of what is on in the end, `notes` {applied, removed, adopted, gone: [name], foreign: [path]}."""

    contents: dict
    modes: dict
    records: list
    notes: dict


def digest(data):
    """SHA-256 of text or bytes; None of a file that is not there."""
    return None if data is None else hashlib.sha256(data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data).hexdigest()


# --- versions -------------------------------------------------------------------------------------------------------


def _version(text):
    """What PEP 440 orders by: (release, pre-release, post-release, development release)."""
    match = _VERSION.fullmatch(text)
    if not match:
        raise RingmasterError(f"{text!r} is no version.", "Write it as 0.5.16, 0.5.16rc1 or 0.5.16.post1.")
    release, letter, pre, post, dev = match.groups()
    numbers = [int(part) for part in release.split(".")]
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    stage = (-1, 0) if dev and post is None else _FINAL
    if letter:
        stage = ("a", "b", "rc").index(letter), int(pre)
    return numbers, stage, -1 if post is None else int(post), _NO_DEV if dev is None else int(dev)


def suits(version, bounds):
    """Whether VERSION is within all BOUNDS (">=0.5.15", "<0.5.19"), as pip reads them: <0.5.19 leaves out 0.5.19rc1, too."""
    found = _version(version)
    for bound in bounds:
        match = _BOUND.fullmatch(bound.strip())
        if not match:
            raise RingmasterError(f"versions: {bound!r} is no bound.", 'Write bounds as ">=0.5.15", with >=, <=, ==, !=, < or >.')
        sign, other = match.group(1), _version(match.group(2))
        is_final = other[1] == _FINAL and other[3] == _NO_DEV
        before_release = is_final and (found[0], found[2]) == (other[0], other[2]) and (found[1] != _FINAL or found[3] != _NO_DEV)
        after_release = found[:2] == other[:2] and found[2] >= 0 and other[2] < 0
        holds = {
            ">=": found >= other,
            "<=": found <= other,
            "==": found == other,
            "!=": found != other,
            "<": found < other and not before_release,
            ">": found > other and not after_release,
        }[sign]
        if not holds:
            return False
    return True


# --- the stack ------------------------------------------------------------------------------------------------------


def check(wanted):
    """Raise RingmasterError unless the list WANTED [{name, state, diff, package, versions}] can be meant."""
    names = [item["name"] for item in wanted]
    for item in wanted:
        if not NAME.fullmatch(item["name"]) or item["name"] == "journal":
            raise RingmasterError(f"A patch cannot be named {item['name']!r}.", "Use letters, digits, dots, dashes; it names a file.")
        if names.count(item["name"]) > 1:
            raise RingmasterError(f"Patch {item['name']} is listed twice.", "Give each a name of its own.")
        if item["state"] == "present" and not item["diff"]:
            raise RingmasterError(f"Patch {item['name']} is to be present and has no diff.", "Give patch (a file) or diff (text).")


def stack(recorded, wanted, exclusive):
    """What is to be on, from the bottom: the present ones of WANTED in its order and, unless EXCLUSIVE, each recorded one that is not
    listed above the one that it is above now."""
    result = [item for item in wanted if item["state"] == "present"]
    listed, below = {item["name"] for item in wanted}, None
    for record in recorded:
        names = [item["name"] for item in result]
        if record["name"] not in listed and not exclusive:
            result.insert(names.index(below) + 1 if below else 0, record)
            names.append(record["name"])
        below = record["name"] if record["name"] in names else below
    return result


class _Tree:
    """The files as READ(root, path) finds them, and as they become."""

    def __init__(self, read):
        self._read, self.before, self.now, self.modes = read, {}, {}, {}

    def look(self, root, patches):
        for path in (patch.path for patch in patches):
            if (root, path) not in self.before:
                self.before[root, path] = self.now[root, path] = self._read(root, path)
        return {patch.path: self.now[root, patch.path] for patch in patches}

    def is_package(self, root, folder):
        return self._read(root, f"{folder}/__init__.py") is not None

    def change(self, root, contents):
        self.now.update({(root, path): content for path, content in contents.items()})


def plan(recorded, wanted, exclusive, installed, read):
    """The Plan that brings RECORDED (from the bottom) to WANTED. INSTALLED {package: {version, root}}; READ(root, path): bytes or None."""
    check(wanted)
    tree, notes = _Tree(read), {key: [] for key in ("applied", "removed", "adopted", "gone", "foreign")}
    for record in reversed(recorded):
        _take_away(tree, record, _place(record, installed), notes)
    known = {record["name"]: record for record in recorded}
    for item in reversed(wanted):
        if item["name"] not in known and item["diff"] and item["package"] in installed:
            _adopt(tree, item, installed[item["package"]], notes)
    records = []
    for item in stack(recorded, wanted, exclusive):
        records.append(_put_on(tree, item, [record["name"] for record in records], _place(item, installed)))
    still = {record["name"]: record["sha256"] for record in records}
    for name, record in known.items():
        if still.get(name) != record["sha256"] and name not in notes["gone"]:
            notes["removed"].append(name)
    for name, sha256 in still.items():
        is_on = name in notes["adopted"] or (name in known and name not in notes["gone"] and known[name]["sha256"] == sha256)
        if not is_on:
            notes["applied"].append(name)
    contents = {key: (tree.before[key], tree.now[key]) for key in tree.before if tree.before[key] != tree.now[key]}
    return Plan(contents, {key: mode for key, mode in tree.modes.items() if key in contents}, records, notes)


def _place(item, installed):
    if item["package"] not in installed:
        remedy = "Name the package as pip lists it; one of the base interpreter does not count, others use it, too."
        raise RingmasterError(f"Patch {item['name']}: {item['package']} is not installed in the environment itself.", remedy)
    return installed[item["package"]]


def _parsed(item):
    try:
        return parse(item["diff"])
    except RingmasterError as error:
        raise RingmasterError(f"Patch {item['name']}: {error.what}", error.remedy) from error


def _neither(item, place, patches, contents):
    """The error that a patch is neither in the files nor out of them: the first line that keeps it from being either."""
    words = []
    for sense, files in (("put on", patches), ("taken away", [reverse(patch) for patch in patches])):
        try:
            apply_all(contents, files)
        except Mismatch as error:
            words.append(f"It cannot be {sense}: {error.what}")
    remedy = "Somebody changed these files: put back the package's own (build the environment again), then run again."
    return RingmasterError(f"Patch {item['name']} is neither wholly in {place['root']} nor wholly out of it. {' '.join(words)}", remedy)


def _take_away(tree, record, place, notes):
    """Undo RECORD in TREE. A change of somebody else in the same file stays, as long as it leaves the patch's own lines alone."""
    patches = _parsed(record)
    undo = [reverse(patch) for patch in patches]
    contents = tree.look(place["root"], patches)
    found = {path: digest(content) for path, content in contents.items()}
    after, before, offsets = ({each["path"]: each[key] for each in record["files"]} for key in ("after", "before", "offset"))
    if found != after:
        if found == before:
            notes["gone"].append(record["name"])
            return
        notes["foreign"] += [f"{place['root']}/{path}" for path in found if found[path] not in (after.get(path), before.get(path))]
    try:
        tree.change(place["root"], apply_all(contents, undo, offsets)[0])
    except Mismatch:
        if state(contents, patches) != "absent":
            raise _neither(record, place, patches, contents) from None
        notes["gone"].append(record["name"])


def _adopt(tree, item, place, notes):
    """Undo in TREE what ITEM changes where somebody has put it on by hand."""
    if not suits(place["version"], item["versions"]):
        return  # one that is to be absent from another version is; one that is to be present is refused later
    patches = _parsed(item)
    contents = tree.look(place["root"], patches)
    found = state(contents, patches)
    if found == "unclear":
        raise RingmasterError(
            f"Patch {item['name']} reads as put on and as not put on.", "Give its diff more lines of context (git diff -U10)."
        )
    if found == "present":
        tree.change(place["root"], apply_all(contents, [reverse(patch) for patch in patches])[0])
        notes["adopted" if item["state"] == "present" else "removed"].append(item["name"])
    elif found == "neither" and item["state"] == "absent":
        raise _neither(item, place, patches, contents)


def _refuse_misplaced(tree, item, root, path):
    """A repository may have its packages in a folder of its own, python/sglang/: a file that is made there would have no effect."""
    folders = path.split("/")[:-1]
    for at, folder in enumerate(folders):
        if tree.is_package(root, folder):
            if at:
                beside = "/".join(folders[:at])
                raise RingmasterError(
                    f"Patch {item['name']}: {path} is a path of its repository; {folder}/ is in {root} itself.",
                    f"Nothing was changed. Make the diff with `git diff --relative={beside}`.",
                )
            return


def _put_on(tree, item, below, place):
    """Apply ITEM in TREE, above the patches named BELOW; its record."""
    if not suits(place["version"], item.get("versions") or ()):
        bounds = ", ".join(item["versions"])
        remedy = "Make one for this version and widen its versions, or say state: absent."
        raise RingmasterError(f"Patch {item['name']} is for {item['package']} {bounds}; installed is {place['version']}.", remedy)
    patches = _parsed(item)
    contents = tree.look(place["root"], patches)
    for path in (path for path, content in contents.items() if content is None):
        _refuse_misplaced(tree, item, place["root"], path)
    try:
        after, offsets = apply_all(contents, patches)
    except Mismatch as error:
        others = f" with {', '.join(below)} on it" if below else ""
        remedy = f"Nothing was changed. Make the diff for {item['package']} {place['version']}{others}."
        raise RingmasterError(f"Patch {item['name']} does not fit {item['package']} {place['version']}: {error.what}", remedy) from error
    tree.change(place["root"], after)
    tree.modes.update({(place["root"], patch.path): patch.mode for patch in patches if patch.kind == "create"})
    files = [
        {"path": path, "before": digest(contents[path]), "after": digest(after[path]), "offset": offsets[path]} for path in sorted(after)
    ]
    return {
        "format": 1, "name": item["name"], "order": len(below) + 1, "package": item["package"], "version": place["version"],
        "sha256": digest(item["diff"]), "diff": item["diff"], "files": files,
    }  # fmt: skip


def in_force(records):
    """What a configuration says of the patches that are on: [{name, sha256 of the diff, package, version}], from the bottom."""
    return [{key: record[key] for key in ("name", "sha256", "package", "version")} for record in records]

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What apt would do for a set of packages that belong together, before it does it. Changes nothing.

A driver is thirty packages of one version. Asking apt for one of them in a version leaves the others to whatever is newest, so the set is
pinned by a preferences file; here the file is tried before it is written.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import tempfile
from contextlib import contextmanager

from . import apt_room
from .apt_run import LEAVE, attempt, refusal, run

PREFERENCES = "/etc/apt/preferences.d"
# "Inst NAME [from] (to Origin:... [amd64]) []" and "Remv NAME [from]"; Purg instead where the host's apt has APT::Get::Purge
_STEP = re.compile(r"(Inst|Remv|Purg) (\S+)(?: \[([^]]*)\])?(?: \((\S+))?")
_VERSION_ROW = re.compile(r" (?:\*\*\*|   ) (\S+)(?: -?\d+)?(?: \(phased .*\))?")


def parse_steps(text):
    """[{name, action (install, change, remove), before, after}] of what `apt-get -s` prints."""
    steps = []
    for match in filter(None, map(_STEP.match, text.splitlines())):
        word, name, before, after = match.groups()
        action = "remove" if word != "Inst" else "change" if before else "install"
        steps.append({"name": name, "action": action, "before": before, "after": after if word == "Inst" else None})
    return steps


def parse_policy(text):
    """{package: [versions, the installed one too]} of what `apt-cache policy` prints; one that others only mention has none."""
    known, current = {}, None
    for line in text.splitlines():
        if line and not line.startswith(" "):
            current = known.setdefault(line.rstrip(":"), [])
        elif current is not None and (match := _VERSION_ROW.fullmatch(line)):
            current.append(match[1])
    return known


def parse_installed(text):
    """[{name, version, held}] of lines 'name TAB version TAB want TAB status'; `name` has an architecture where dpkg needs one."""
    rows = [line.split("\t") for line in text.splitlines() if line.count("\t") == 3]
    return [{"name": name, "version": version, "held": want == "hold"} for name, version, want, status in rows if status == "installed"]


def matches(name, patterns):
    """Whether a package's name, less its architecture, is one of the shell patterns."""
    return any(fnmatch.fnmatchcase(name.partition(":")[0], pattern) for pattern in patterns)


def choose(wanted, known, installed):
    """(what to hand to apt-get, [those that are unknown]) for WANTED: 'NAME', 'NAME=VERSION', or 'A | B', the first of which there is.

    KNOWN: parse_policy's. INSTALLED: names. An alternative that is installed wins; a version may end in *.
    """
    specs, unknown = [], []
    for item in wanted:
        alternatives = [word.strip() for word in item.split("|")]
        there = [word for word in alternatives if _is_there(word, known)]
        there.sort(key=lambda word: word.partition("=")[0] not in installed)
        specs += there[:1]
        unknown += [] if there else [item]
    return specs, unknown


def _is_there(word, known):
    name, equals, version = word.partition("=")
    return any(fnmatch.fnmatchcase(one, version) for one in known.get(name, [])) if equals else bool(known.get(name))


def names(wanted):
    """All package names in WANTED."""
    return [word.strip().partition("=")[0] for item in wanted for word in item.split("|")]


def judge(steps, installed, forbidden, removable):
    """[reasons] against a plan that apt would carry out: what goes and is none of REMOVABLE, what comes or stays and is FORBIDDEN."""
    reasons = [
        f"it would remove {step['name']} {step['before']}"
        for step in steps
        if step["action"] == "remove" and not matches(step["name"], removable)
    ]
    return reasons + [
        f"{name} would be installed" for name in forbidden if name in (row["name"].partition(":")[0] for row in after(steps, installed))
    ]


def after(steps, installed):
    """[{name, version, held}] once STEPS are done; what is new is not held."""
    rows = {row["name"]: row for row in installed}
    bare = {name.partition(":")[0]: name for name in rows}
    for step in steps:
        name = step["name"] if step["name"] in rows else bare.get(step["name"], step["name"])
        if step["action"] == "remove":
            rows.pop(name, None)
        else:
            rows[name] = {"name": name, "version": step["after"], "held": rows.get(name, {}).get("held", False)}
    return [rows[name] for name in sorted(rows)]


def installed_packages():
    """parse_installed's of this host."""
    return parse_installed(run("dpkg-query", "-W", "-f", "${binary:Package}\\t${Version}\\t${db:Status-Want}\\t${db:Status-Status}\\n"))


def versions_like(wanted):
    """["NAME VERSION", ...] that there are in place of WANTED: of its name, else of names that differ from it in numbers only."""
    found = []
    for name in names(wanted):
        bones = re.sub(r"\d+", "0", name)
        twins = [other for other in run("apt-cache", "pkgnames", re.split(r"\d", name)[0]).split() if re.sub(r"\d+", "0", other) == bones]
        asked = [name] if name in twins else sorted(twins)
        known = parse_policy(run("apt-cache", "policy", *asked)) if asked else {}
        found += [f"{other} {version}" for other in asked for version in known.get(other, [])]
    return list(dict.fromkeys(found))


def plan(wanted, members, version="", forbidden=(), preferences="", preferences_file=None, places=apt_room.PLACES, folder=PREFERENCES):
    """{specs, unknown, there, steps, bytes, conflicts, installed, after} for WANTED; nothing is changed.

    members: patterns of the packages that belong together: `installed` and `after` are of them, and of these alone may some go.
    version: the one that installed members get where there is such a one; it may end in *. They have to be named, for apt leaves a held
    package alone that is not. forbidden: names that are taken away where they are, and must not come. preferences: text that is to be in
    force as `preferences_file`, which need not be there yet. `unknown` is what apt does not know, and `there` which versions it knows
    instead; then `steps` is empty, nothing was tried. places: where room is needed for what comes.
    """
    installed = installed_packages()
    here = {row["name"].partition(":")[0] for row in installed}
    result = {"specs": [], "unknown": [], "there": [], "steps": [], "conflicts": [], "bytes": {"download": 0, "install": 0}}
    if wanted:
        with _preferences(preferences, preferences_file, folder) as options:
            moving = sorted({name for name in here if version and matches(name, members)} - {*names(wanted), *forbidden})
            known = parse_policy(run("apt-cache", *options, "policy", *names(wanted), *moving))
            result["specs"], result["unknown"] = choose(wanted, known, here)
            result["specs"] += choose([f"{name}={version}" for name in moving], known, here)[0]
            if result["unknown"]:
                result["there"] = versions_like(result["unknown"])
            else:
                words = ["-s", *LEAVE, "install"]
                away = [f"{name}-" for name in forbidden if name in here]  # apt's way to say: and remove that
                code, text = attempt("apt-get", *options, *words, *result["specs"], *away)
                result["steps"] = parse_steps(text) if code == 0 else []
                result["conflicts"] = judge(result["steps"], installed, forbidden, members) if code == 0 else [refusal(text)]
            if result["steps"]:
                result["bytes"] = apt_room.needed(result["specs"], result["steps"], options)
                result["conflicts"] += apt_room.missing(result["bytes"], places)
    result["installed"] = [row for row in installed if matches(row["name"], members)]
    result["after"] = [row for row in after(result["steps"], installed) if matches(row["name"], members)]
    return result


@contextmanager
def _preferences(text, path, folder):
    """Options that make apt see TEXT as the file PATH, without writing it where other runs of apt would see it, too."""
    if not text:
        yield []
        return
    with tempfile.TemporaryDirectory(prefix="ringmaster-apt-") as place:
        os.chmod(place, 0o755)
        own = os.path.basename(path) if path else "ringmaster.pref"
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            if name != own:
                shutil.copy(os.path.join(folder, name), os.path.join(place, name))
        with open(os.path.join(place, own), "w", encoding="utf-8") as file:
            file.write(text)
        yield ["-o", f"Dir::Etc::preferencesparts={place}"]

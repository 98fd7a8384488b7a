# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The exact version of each package that a metapackage stands for.

A metapackage of NVIDIA's asks for its parts by `>=`: apt takes the newest of each, which may be of a later release. The version that it
names is the one it was made with, so that one is taken, and so on down to the last part.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .apt_plan import installed_packages, matches, parse_policy, versions_like
from .apt_run import attempt, run, stanzas

_RELATION = re.compile(r"([a-z0-9][a-z0-9.+-]*)(?::\w+)?\s*(?:\(\s*(<<|<=|=|>=|>>)\s*([^)\s]+)\s*\))?")


class Need(NamedTuple):
    """A package that is needed: `version` that is named or None, and the version of the one that needs it."""

    name: str
    version: str | None = None
    by: str = ""


def parse_relations(text):
    """[[(name, operator or None, version or None), alternatives ...], ...] of a Depends field."""
    found = [[_RELATION.match(word.strip()) for word in group.split("|")] for group in text.split(",") if group.strip()]
    return [[match.groups() for match in group if match] for group in found]


def parse_needs(text, members):
    """{(package, version): [Need]} of what `apt-cache show` prints, of packages that are MEMBERS only."""
    needs = {}
    for fields, _stanza in stanzas(text, "Package", "Version", "Depends", "Pre-Depends"):
        if "Package" not in fields or "Version" not in fields:
            continue
        groups = parse_relations(f"{fields.get('Pre-Depends', '')},{fields.get('Depends', '')}")
        mine = [next((one for one in group if matches(one[0], members)), None) for group in groups]
        rows = [
            Need(name, version if relation in ("=", ">=") else None, fields["Version"]) for name, relation, version in filter(None, mine)
        ]
        needs.setdefault((fields["Package"], fields["Version"]), rows)
    return needs


def without_revision(version):
    return version.rpartition("-")[0] or version


def pick(need, there, installed, shared, at_least):
    """The version of THERE (newest first) for NEED, or None.

    The one that is named, in its newest revision; without such a one the oldest that is newer. One that no version is named of goes with
    what needs it. A SHARED one that is installed stays when it is new enough: it serves other sets, too.
    """
    if shared and installed in there and (need.version is None or at_least(installed, need.version)):
        return installed
    for wanted in (need.version, need.by):
        exact = [version for version in there if wanted and wanted in (version, without_revision(version))]
        exact += [version for version in there if wanted and without_revision(version) == without_revision(wanted)]
        if exact:
            return exact[0]
        if wanted == need.version and wanted:
            newer = [version for version in there if at_least(version, wanted)]
            return newer[-1] if newer else None
    return installed if installed in there else there[0] if there else None


def closure(wanted, members, shared=(), installed=None):
    """{rows: [{name, version}], others, unknown: [...], there: [...]}: exact versions for WANTED and all MEMBERS that they need.

    wanted: 'NAME=VERSION', where VERSION may be a shell pattern, of which the newest is taken. shared: patterns of members that other sets
    need, too. installed: [{name, version}], what dpkg has where none is given. others: members that are installed and none of these.
    unknown: what apt does not know, and `there` which versions it knows instead.
    """
    here = {row["name"].partition(":")[0]: row["version"] for row in (installed_packages() if installed is None else installed)}
    chosen, unknown = {}, []
    level = [(Need(item.partition("=")[0]), item.partition("=")[2] or "*") for item in wanted]
    while level:
        known = parse_policy(run("apt-cache", "policy", *sorted({need.name for need, _pattern in level})))
        fresh = []
        for need, pattern in level:
            there = [version for version in known.get(need.name, []) if pattern is None or matches_version(version, pattern)]
            is_shared = pattern is None and matches(need.name, shared)
            version = there[0] if pattern and there else pick(need, there, here.get(need.name), is_shared, _at_least) if there else None
            if version is None:
                unknown.append(f"{need.name}={pattern}" if pattern else f"{need.name} ({need.version or 'any version'})")
            elif need.name not in chosen or (need.version and not _at_least(chosen[need.name], need.version)):
                chosen[need.name] = version
                fresh.append(f"{need.name}={version}")
        needs = parse_needs(run("apt-cache", "show", *fresh), members) if fresh else {}
        level = [(need, None) for (name, version), rows in needs.items() if chosen.get(name) == version for need in rows]
    rows = [{"name": name, "version": chosen[name]} for name in sorted(chosen)]
    others = [{"name": name, "version": here[name]} for name in sorted(here) if name not in chosen and matches(name, members)]
    unknown = sorted(set(unknown))
    return {
        "rows": rows,
        "others": others,
        "unknown": unknown,
        "there": versions_like([item.partition(" ")[0] for item in unknown]) if unknown else [],
    }


def matches_version(version, pattern):
    return matches(version.replace(":", "~"), [pattern.replace(":", "~")])  # an epoch is no architecture


def _at_least(version, wanted):
    return attempt("dpkg", "--compare-versions", version, "ge", wanted)[0] == 0

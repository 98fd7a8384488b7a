# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the disk has room for what apt would install. apt itself looks at the downloads only."""

from __future__ import annotations

import os
import re

from .apt_run import LEAVE, attempt, run, stanzas

ARCHIVES = "/var/cache/apt/archives"
PLACES = ("/usr",)
SPARE_BYTES = 64 << 20  # for dpkg's own files, and what others write meanwhile
_URI = re.compile(r"'(\w+)(?:\+\w+)?:[^']*' \S+ (\d+)")


def parse_uris(text):
    """Bytes that would be fetched, by what `apt-get --print-uris` prints; a file of this host stays where it is."""
    return sum(int(size) for kind, size in _URI.findall(text) if kind not in ("file", "copy"))


def parse_sizes(text):
    """{(package, version): bytes once unpacked} of what `apt-cache show` prints."""
    sizes = {}
    for fields, _stanza in stanzas(text, "Package", "Version", "Installed-Size"):
        if "Package" in fields and "Version" in fields:
            sizes[fields["Package"], fields["Version"]] = int(fields.get("Installed-Size") or 0) * 1024
    return sizes


def needed(specs, steps, options=()):
    """{download, install}: bytes that STEPS (apt_plan's) for SPECS fetch, and that they take more than what is there."""
    coming = [(step["name"].partition(":")[0], step["after"]) for step in steps if step["after"]]
    going = [(step["name"].partition(":")[0], step["before"]) for step in steps if step["before"]]
    asked = ["-y", "--print-uris", *LEAVE, "install"]
    uris = attempt("apt-get", *options, *asked, *specs)[1]
    sizes = parse_sizes(run("apt-cache", "show", *(f"{name}={version}" for name, version in coming))) if coming else {}
    here = parse_sizes(run("dpkg-query", "-s", *(name for name, _version in going))) if going else {}
    more = sum(sizes.get(one, 0) for one in coming) - sum(here.get(one, 0) for one in going)
    return {"download": parse_uris(uris), "install": max(0, more)}


def missing(wanted, places):
    """[reasons]: file systems with too little room for WANTED (needed's); each of PLACES may have to take all that is installed."""
    needs = {}
    for path, size in [(ARCHIVES, wanted["download"]), *((place, wanted["install"]) for place in places)]:
        there = _existing(path)
        row = needs.setdefault(os.stat(there).st_dev, {"path": there, "bytes": 0, "download": 0})
        if path == ARCHIVES:
            row["download"] = size
        else:
            row.update(path=there, bytes=max(row["bytes"], size))
    reasons = []
    for row in needs.values():
        total = row["bytes"] + row["download"]
        found = os.statvfs(row["path"])
        free = found.f_bavail * found.f_frsize
        if total and total + SPARE_BYTES > free:
            reasons.append(
                f"{row['path']} has no room: {_mib(total)} MiB and {_mib(SPARE_BYTES)} to spare are needed, {_mib(free)} are free"
            )
    return reasons


def _existing(path):
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def _mib(size):
    return -(-size // (1 << 20))

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which CUDA toolkit /usr/local/cuda stands for.

NVIDIA's packages register each toolkit as an alternative, and one in automatic mode goes to the newest as soon as its first package is
configured, long before it is complete. So the one in force is fixed first, and switched when the new one has answered.
"""

from __future__ import annotations

import os
import re

from . import apt_run
from .errors import RingmasterError

NAME = "cuda"
_RELEASE = re.compile(r"release (\d+\.\d+), V([\d.]+)")


def parse_query(text):
    """{link, status, value, others} of what `update-alternatives --query` prints."""
    head, *blocks = text.split("\n\n")
    fields = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    others = [line.partition(": ")[2] for block in blocks for line in block.splitlines() if line.startswith("Alternative: ")]
    return {"link": fields.get("Link"), "status": fields.get("Status"), "value": fields.get("Value"), "others": others}


def look(link):
    """{target: the toolkit in force or None, manual: whether packages leave it alone, alternatives: [directories], kind} of LINK."""
    kind = "link" if os.path.islink(link) else "directory" if os.path.isdir(link) else "file" if os.path.exists(link) else None
    code, text = apt_run.attempt("update-alternatives", "--query", NAME)
    found = parse_query(text) if code == 0 else {}
    known = found if found.get("link") == link else {}
    target = os.path.realpath(link) if kind == "link" and os.path.isdir(link) else None
    return {
        "target": target,
        "manual": bool(known) and known["status"] == "manual",
        "alternatives": known.get("others", []),
        "kind": kind,
    }


def prove(folder, version, compiler):
    """{release, compiler}: what the toolkit in FOLDER says of itself; RingmasterError when it is another, or does not answer."""
    if not os.path.isdir(folder):
        remedy = "Run this again. If it stays so, the packages of this toolkit put nothing there: see cuda_toolkit_packages."
        raise RingmasterError(f"{folder} is not there.", remedy)
    nvcc = os.path.join(folder, "bin/nvcc")
    if not compiler:  # a set without a compiler
        return {"release": version, "compiler": ""}
    code, text = apt_run.attempt(nvcc, "--version") if os.path.exists(nvcc) else (1, "it is not there")
    match = _RELEASE.search(text)
    if code or not match:
        raise RingmasterError(
            f"{nvcc} does not answer: {' '.join(text.split())[:200]}.",
            "Bring back what `dpkg --verify` misses: apt-get install --reinstall --allow-change-held-packages PACKAGE.",
        )
    if match[1] != version or match[2] != compiler:
        raise RingmasterError(
            f"{nvcc} is of {match[1]}, V{match[2]}, and should be of {version}, V{compiler}.",
            "Something else put it there: remove it, and run this again.",
        )
    return {"release": match[1], "compiler": match[2]}


def fix(link, check=False):
    """{changed, target}: packages no longer move LINK away from the toolkit that is in force."""
    found = look(link)
    if found["kind"] in ("directory", "file"):
        raise RingmasterError(
            f"{link} is a {found['kind']} and no link to one of several toolkits.",
            f"Move it away (mv {link} {link}-by-hand), or set cuda_link to another path.",
        )
    loose = found["target"] is not None and not found["manual"]
    if loose and not check:
        _set(link, found["target"], found["alternatives"])
    return {"changed": loose, "target": found["target"]}


def switch(link, folder, version, compiler, check=False):
    """{changed, target, diff}: LINK stands for FOLDER, which has answered as VERSION."""
    found = look(link)
    changed = found["target"] != folder or not found["manual"]
    if not check:
        prove(folder, version, compiler)
        if changed:
            _set(link, folder, found["alternatives"])
            prove(link, version, compiler)
    diff = {"before": f"{link} -> {found['target']}\n", "after": f"{link} -> {folder}\n"}
    return {"changed": changed, "target": folder, "before": found["target"], "diff": diff if changed else {}}


def _set(link, folder, known):
    if folder not in known:
        number = "".join(re.findall(r"\d+", os.path.basename(folder))) or "1"  # as NVIDIA's own: 128 of cuda-12.8
        apt_run.run("update-alternatives", "--install", link, NAME, folder, number)
    apt_run.run("update-alternatives", "--set", NAME, folder)

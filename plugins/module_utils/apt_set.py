# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages that belong together, brought to where a plan wants them; what was cut off before is completed.

All that is needed is fetched before the first package is unpacked. dpkg itself can go on where it was ended, at whatever point: so the way
out of a power cut, a full disk or a `kill -9` is always the same run again.
"""

from __future__ import annotations

import os
import time

from . import apt_run, files
from .apt_plan import installed_packages, matches
from .errors import RingmasterError

UPDATES = "/var/lib/dpkg/updates"
FETCHED = "/var/lib/apt/periodic"  # where apt's own timers note when they did what; the lists themselves have the server's dates
CUT_OFF = ("half-installed", "unpacked", "half-configured", "triggers-awaited", "triggers-pending")
QUIET = ("-y", *apt_run.LEAVE)
CONFFILES = ("-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold")


def parse_cut_off(text):
    """{package: status} of lines 'name TAB status TAB error flag' that dpkg was ended amid."""
    rows = [line.split("\t") for line in text.splitlines() if line.count("\t") == 2]
    return {name: status for name, status, flag in rows if status in CUT_OFF or flag == "reinstreq"}


def cut_off():
    """{package: status} that dpkg was ended amid; '' stands for its journal, which it has not read again yet."""
    found = parse_cut_off(apt_run.run("dpkg-query", "-W", "-f", "${binary:Package}\\t${db:Status-Status}\\t${db:Status-Eflag}\\n"))
    journal = [name for name in os.listdir(UPDATES) if name.isdigit()] if os.path.isdir(UPDATES) else []
    return {**found, **({"": "journal"} if journal else {})}


def mend(timeout_s, check=False):
    """{changed, found, left}: packages that were amid something, and those that still are, for want of others that are to come."""
    apt_run.wait_until_free(timeout_s)
    found = sorted(name or "dpkg's journal" for name in cut_off())
    if not found or check:
        return {"changed": bool(found), "found": found, "left": found}
    _code, said = apt_run.alone(timeout_s, "dpkg", "--configure", "-a", *_dpkg_options())
    if cut_off():  # half unpacked, or without what it depends on; nothing is taken away for it
        words = [*QUIET, *CONFFILES, "--fix-broken", "--no-remove", "install"]
        _code, said = apt_run.alone(timeout_s, "apt-get", *_locking(timeout_s), *words)
    left = sorted(cut_off())
    return {"changed": True, "found": found, "left": left, "why": apt_run.refusal(said) if left else ""}


def bring(specs, remove, timeout_s):
    """Fetch all, then install SPECS and take REMOVE away. Raises RingmasterError with apt's reason; the next run completes it."""
    words = [*specs, *(f"{name}-" for name in remove)]
    stages = (
        ("fetch", ["--download-only"], "Where apt's lists are older than the repository, fetch them (apt-get update)."),
        ("install", [], "Mend that, and run this again: it goes on where it was ended."),
    )
    for stage, more, remedy in stages:
        code, text = apt_run.alone(timeout_s, "apt-get", *_locking(timeout_s), *QUIET, *CONFFILES, *more, "install", *words)
        if code and stage == "fetch":
            remedy = f"No package was changed. {apt_run.cure(text, remedy)}"
        if code:
            raise RingmasterError(f"apt cannot {stage} {' '.join(specs[:3])} ...: {apt_run.refusal(text)}.", remedy)


def refresh(sources_file, timeout_s):
    """Fetch the lists of packages, those of SOURCES_FILE alone when it is given: what else the host has may be out of reach.

    {missing, advice}: what could not be fetched of all sources, for the host may have some that no longer matter, and what to do about it.
    """
    apt_run.wait_until_free(timeout_s)
    files.remove(fetched_path(sources_file))  # what fails is tried again by the next run
    alone = ["-o", f"Dir::Etc::sourcelist={sources_file}", "-o", "Dir::Etc::sourceparts=/dev/null", "-o", "APT::Get::List-Cleanup=0"]
    if sources_file:
        _forget_directories(alone)
    code, text = apt_run.alone(timeout_s, "apt-get", *(alone if sources_file else []), "--error-on=any" if sources_file else "-q", "update")
    if code:
        raise RingmasterError(
            f"apt cannot fetch the lists of {sources_file or 'its sources'}: {apt_run.refusal(text)}.",
            apt_run.cure(text),
        )
    failed = [line[2:].strip() for line in text.splitlines() if line.startswith("W: Failed to fetch")]
    if not failed:
        files.write_atomic(fetched_path(sources_file), b"", mode=0o644)
    return {"missing": failed, "advice": apt_run.cure(text) if failed else ""}


def fetched_path(sources_file):
    return os.path.join(FETCHED, f"{os.path.basename(sources_file or 'ringmaster')}-stamp")


def are_fresh(sources_file, max_age_s):
    """Whether refresh() has fetched the lists of SOURCES_FILE within MAX_AGE_S; not by a clock that has been set back since."""
    try:
        return 0 <= time.time() - os.stat(fetched_path(sources_file)).st_mtime < max_age_s
    except FileNotFoundError:
        return False


def _forget_directories(alone):
    """apt takes a repository of the same date, or an earlier one, for the one it knows; another bundle in a directory may be of that."""
    _code, text = apt_run.attempt("apt-get", *alone, "indextargets", "--format", "$(URI) $(FILENAME)")
    for _uri, _space, path in (line.partition(" ") for line in text.splitlines() if line.startswith("file:")):
        for name in ("Packages", "Release"):
            files.remove(path[: -len("Packages")] + name)


def hold(members, timeout_s, check=False):
    """{packages that are held now and were not} of those installed that are MEMBERS."""
    loose = [row["name"] for row in installed_packages() if matches(row["name"], members) and not row["held"]]
    if loose and not check:
        code, text = apt_run.alone(timeout_s, "apt-mark", "hold", *loose)
        if code:
            raise RingmasterError(f"apt-mark cannot hold {', '.join(loose[:3])} ...: {apt_run.refusal(text)}.", "Run this again.")
    return loose


def settle(specs, remove, members, timeout_s, check=False):
    """{changed, held, installed}: bring(), then hold(); nothing of MEMBERS may be left amid something."""
    if (specs or remove) and not check:
        bring(specs, remove, timeout_s)
    held = hold(members, timeout_s, check)
    left = {} if check else {name: status for name, status in cut_off().items() if matches(name, members)}
    if left:
        raise RingmasterError(
            f"{', '.join(f'{name} ({status})' for name, status in sorted(left.items()))}: dpkg has not completed them.",
            "Look at `dpkg --configure -a`, mend what it says, and run this again.",
        )
    return {"changed": bool(specs or remove or held), "held": held, "installed": specs}


def _locking(timeout_s):
    return ("-o", f"DPkg::Lock::Timeout={int(timeout_s)}")


def _dpkg_options():
    return ("--force-confdef", "--force-confold")

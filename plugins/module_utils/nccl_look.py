# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NCCL as a running server has it: library, sitecustomize, configuration files, and the value of each variable on each rank.

What a worker shows of itself is *proven*; what follows from its launcher's environment and the sitecustomize that it imports is
*inferred*; where neither can be seen it is *unknown*.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import pwd
import re
import shutil
import time

from . import files, nccl_log, nccl_site, procfs, proof, server_trees
from .errors import RingmasterError

_CHUNK_BYTES = 1 << 20
_CLOCK_S = 1.0  # how exact a process's start is known as a date
_PYTHON_HANGS = ("RINGMASTER_WITNESS", "PYTHONINSPECT")  # the first writes files, the second waits for a terminal
_VERSION = re.compile(r"libnccl\.so\.(\d+\.\d+\.\d+)$|nvidia_nccl_cu\d+-(\d+(?:\.\d+)+)\.dist-info")


def interpreter(tree):
    """The Python of a server's root process as its command names it (a venv's keeps its link), or None where that cannot be told."""
    root, words = tree.root.pid, tree.command
    if server_trees.namespace(root, "mnt") != server_trees.namespace("self", "mnt"):
        return None
    environment = procfs.environment(root) or {}
    with contextlib.suppress(OSError):
        program = os.readlink(f"/proc/{root}/exe")
        named = words[0] if words else ""
        if "/" in named:
            found = os.path.join(os.readlink(f"/proc/{root}/cwd"), named)
        else:
            found = shutil.which(named, path=environment.get("PATH", os.defpath))
        return found if found and os.path.realpath(found) == os.path.realpath(program) else program
    return None


def identity(pid):
    """subprocess's arguments to run as the user of PID: {} when that is who we are."""
    status = os.stat(f"/proc/{pid}")
    if os.geteuid() != 0 or status.st_uid == 0:
        return {}
    return {"user": status.st_uid, "group": status.st_gid, "extra_groups": []}


def python_flags(words):
    """Those options of the interpreter in the command WORDS that decide which site it has."""
    end = next((index for index, word in enumerate(words[1:], 1) if word == "-m" or not word.startswith("-")), len(words))
    return [word for word in words[1:end] if re.fullmatch(r"-[EIPSs]+", word)]


def site(python, environment, *, flags=(), since=None, who=None, timeout_s=5.0):
    """What sitecustomize does in PYTHON started with FLAGS and ENVIRONMENT, by asking that interpreter.

    Returns {path, ours, chained, values {NAME: what it sets}, changed (since the wall-clock time SINCE), problem}.
    """
    answer = {"path": None, "ours": None, "chained": None, "values": {}, "changed": None, "problem": None}
    if python is None:
        return {**answer, "problem": "its interpreter cannot be asked from here"}
    try:
        asked = {name: value for name, value in environment.items() if name not in _PYTHON_HANGS}
        found = nccl_site.probe(python, environment=asked, flags=flags, identity=who, timeout_s=timeout_s)
    except RingmasterError as error:
        return {**answer, "problem": str(error)}
    path = found["site_real"]
    content = None
    with contextlib.suppress(RingmasterError):
        content = files.content(path) if path else None
    changed = None
    if since is not None and content is not None:
        changed = os.stat(path).st_mtime > since + _CLOCK_S
    answer.update(
        path=path,
        ours=nccl_site.is_ours(content) if content is not None else None,
        chained=found["chained"],
        values={name: value for name, value in sorted(found["nccl"].items()) if environment.get(name) != value},
        changed=changed,
    )
    return answer


def conf_files(environment, *, root="/", uid=0):
    """[{path, values {NAME: value}, problem}] of the configuration files that NCCL reads, the strongest first; those that are there.

    NCCL_CONF_FILE, or ~/.nccl.conf when that is unset, then /etc/nccl.conf; a variable that is in the environment beats them all.
    ~ is the account's home up to NCCL 2.29 and $HOME from 2.30 on: both are listed.
    """
    given = environment.get("NCCL_CONF_FILE")
    homes = [environment.get("HOME")]
    with contextlib.suppress(KeyError):
        homes.append(pwd.getpwuid(uid).pw_dir)
    paths = [given] if given else [os.path.join(home, ".nccl.conf") for home in dict.fromkeys(filter(None, homes))]
    found = []
    for path in dict.fromkeys([*paths, "/etc/nccl.conf"]):
        try:
            with open(os.path.join(root, path.lstrip("/")), encoding="utf-8", errors="replace") as file:
                found.append({"path": path, "values": parse_conf(file.read()), "problem": None})
        except FileNotFoundError:
            if path == given:
                found.append({"path": path, "values": {}, "problem": "NCCL_CONF_FILE names it, but it is not there"})
        except OSError as error:
            found.append({"path": path, "values": {}, "problem": error.strerror})
    return found


def parse_conf(text):
    """{NAME: value} of the NCCL variables in one: nothing is trimmed, `#` comments in the first column only, the first of two counts."""
    values = {}
    for line in text.splitlines():
        name, sign, value = line.partition("=")
        if sign and line.startswith("NCCL_"):
            values.setdefault(name, value[:1023])
    return values


def effective(tree, environment, found_site, conf):
    """{title: {NAME: {value, source, proof, certainty}}} for the schedulers of TREE; {"*": ...} for a rank of which nothing is known.

    ENVIRONMENT is the launcher's, {} where it cannot be read; FOUND_SITE of `site`, CONF of `conf_files`.
    """
    given = environment or {}
    witness_directory = given.get("RINGMASTER_WITNESS")
    witnesses = proof.read_witnesses(witness_directory) if witness_directory else {}
    ranks = tree.schedulers()
    seen = proof.effective(
        ranks, tree.root.pid, witnesses, configured=found_site["values"], given=given, captures=_captures(given)
    )
    assumed = _assumed(tree, environment, found_site)
    for title, values in seen.items():
        shown = {name: {**value, "certainty": "proven"} for name, value in values.items() if name != "*"}
        seen[title] = {**assumed, **shown} if "*" in values else shown
        if "*" not in seen[title]:
            for file in conf:
                for name, value in file["values"].items():
                    row = {"value": value, "source": "conf file", "proof": file["path"], "certainty": "inferred"}
                    seen[title].setdefault(name, row)
    return seen


def _captures(given):
    """NCCL's own log, where a trial of ours captures it."""
    path = given.get("NCCL_DEBUG_FILE")
    if path and given.get("RINGMASTER_WITNESS"):
        with contextlib.suppress(OSError):
            return nccl_log.read(os.path.dirname(path))
    return {}


def _assumed(tree, environment, found_site):
    if environment is None or found_site["problem"]:
        return {"*": {"value": None, "source": "unknown", "proof": None, "certainty": "unknown"}}
    row = {"proof": None, "certainty": "inferred"}
    values = {name: {**row, "value": value, "source": "environment"} for name, value in environment.items() if name.startswith("NCCL_")}
    certainty = "unknown" if found_site["changed"] else "inferred"
    for name, value in found_site["values"].items():
        values[name] = {**row, "value": value, "source": "sitecustomize", "certainty": certainty}
    symmetric = "--enable-symm-mem" in tree.command
    nvls = symmetric or "--enable-nccl-nvls" in tree.command
    for name, wanted in (("NCCL_CUMEM_ENABLE", symmetric), ("NCCL_NVLS_ENABLE", nvls)):  # the launcher, before it starts its workers
        if wanted or name not in values:
            values[name] = {**row, "value": str(int(wanted)), "source": "sglang"}
    return dict(sorted(values.items()))


def library(pid, purelib=None, *, deadline=None):
    """{path, version, sha256, certainty} of the libnccl that PID has loaded (proven), or would load from PURELIB (inferred).

    DEADLINE (time.monotonic) ends the hashing, None asks for no hash: a library has 300 MB.
    """
    answer = {"path": None, "version": None, "sha256": None, "certainty": "unknown"}
    root, path, certainty = f"/proc/{pid}/root", _mapped(pid), "proven"
    if path is None:
        installed = sorted(glob.glob(os.path.join(purelib or "/nonexistent", "nvidia", "nccl*", "lib", "libnccl.so*")))
        if not installed:
            return answer
        root, path, certainty = "/", installed[0], "inferred"
    package = os.path.join(root, path.lstrip("/").rpartition("/nvidia/")[0], "nvidia_nccl_cu*.dist-info") if "/nvidia/" in path else ""
    names = [os.path.basename(os.path.realpath(os.path.join(root, path.lstrip("/")))), *map(os.path.basename, sorted(glob.glob(package)))]
    versions = [found[1] or found[2] for found in map(_VERSION.search, names) if found]
    answer.update(path=path, version=versions[0] if versions else None, certainty=certainty)
    if deadline is not None:
        answer["sha256"] = _sha256(os.path.join(root, path.lstrip("/")), deadline)
    return answer


def _mapped(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            path = line.split(maxsplit=5)[-1].strip()
            if os.path.basename(path).startswith("libnccl.so"):
                return path
    return None


def _sha256(path, deadline):
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""):
                digest.update(chunk)
                if time.monotonic() > deadline:
                    return None
    except OSError:
        return None
    return digest.hexdigest()


def look(tree, *, timeout_s, with_hash=False):
    """{python, site, conf, effective, library} of one server TREE (server_trees.Tree), as the functions above give them."""
    deadline = time.monotonic() + timeout_s
    root = tree.root.pid
    environment = None if tree.kind == "orphans" else procfs.environment(root)
    python = None if tree.kind == "orphans" else interpreter(tree)
    try:
        who = identity(root)
        uid = os.stat(f"/proc/{root}").st_uid
    except OSError:  # it has just ended
        who, uid, python = {}, os.geteuid(), None
    started = time.time() - server_trees.age_s(tree.root)
    found = site(python, environment or {}, flags=python_flags(tree.command), since=started, who=who, timeout_s=timeout_s)
    if environment is None:
        found["problem"] = found["problem"] or "its environment cannot be read: run the play with `become: true`"
    seen = {"python": python, "site": found, "conf": conf_files(environment or {}, root=f"/proc/{root}/root", uid=uid)}
    loaded = next(iter(tree.schedulers().values()), tree.root).pid
    purelib = _purelib(python)
    return {**seen, "effective": ranks(tree, seen), "library": library(loaded, purelib, deadline=deadline if with_hash else None)}


def ranks(tree, seen):
    """The effective values of the schedulers that TREE has, where SEEN is what `look` saw of its launcher."""
    environment = None if tree.kind == "orphans" else procfs.environment(tree.root.pid)
    return effective(tree, environment, seen["site"], seen["conf"])


def _purelib(python):
    """The site-packages beside the interpreter PYTHON, without asking it."""
    prefix = os.path.dirname(os.path.dirname(python or "/nonexistent/bin/python"))
    return next(iter(glob.glob(os.path.join(prefix, "lib", "python3.*", "site-packages"))), None)


def of_interpreter(python, *, timeout_s):
    """The same of the interpreter PYTHON, without a server: {python, site, conf, library}."""
    deadline = time.monotonic() + timeout_s
    return {
        "python": python,
        "site": site(python, {}, timeout_s=timeout_s),
        "conf": conf_files({"HOME": os.path.expanduser("~")}, uid=os.geteuid()),
        "library": library(os.getpid(), _purelib(python), deadline=deadline),
    }

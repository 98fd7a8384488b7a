# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A bundle on the host that uses it: what is missing, whether it is whole, and the stamp that says so, written last."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess

from . import bundle_files, bundle_unpack, files
from .errors import RingmasterError

STAMP = "complete.json"
SITE_ARCHIVE = "site.tar.xz"
SLACK_BYTES = 64 << 20  # what a file system needs beside the files


def look(text, where, folder, source="", verify=False, python=""):
    """What the bundle of the manifest TEXT (read from WHERE) lacks in FOLDER; nothing is changed.

    source: a directory on this host that has the bundle, instead of what would be copied into FOLDER. verify: read all files again,
    although the stamp says that they were whole. Raises RingmasterError for a bundle that is not for this host, and when there is no room.
    Returns {complete, path, missing (paths, relative), missing_bytes}.
    """
    manifest = bundle_files.parse(text, where)
    refuse_others(manifest, this_host(manifest.get("python") or "", python))
    path = folder if manifest["parts"] or not source else source
    state = {"complete": False, "path": path, "missing": [], "missing_bytes": 0, "manifest": manifest}
    if _stamped(manifest, text, path, folder) and not (verify and bundle_files.faults(path, manifest["files"])):
        return {**state, "complete": True}
    rows = bundle_files.carried(manifest)
    wrong = bundle_files.faults(source or folder, rows)
    if source:
        if wrong:
            raise _damaged(source, wrong, "Bring the bundle there again; bundle_remote_path is left as it is.")
    elif manifest["parts"] and not bundle_files.faults(folder, manifest["files"]):
        wrong = {}  # unpacked, and the parts are gone: only the stamp is missing
    state["missing"] = [row["path"] for row in rows if row["path"] in wrong]
    state["missing_bytes"] = sum(row["bytes"] for row in rows if row["path"] in wrong)
    bundle_files.want_room(folder, state["missing_bytes"] + _unpack_bytes(manifest, folder) + SLACK_BYTES, "bundle_remote_dir")
    return state


def complete(text, where, folder, source="", verify=False, python="", keep_parts=False):
    """Verify what was copied into FOLDER (or is in SOURCE), unpack it, write the stamp. Returns look's, with `changed`."""
    state = look(text, where, folder, source, verify, python)
    manifest = state["manifest"]
    if state["complete"]:
        return {**state, "changed": False}
    if state["missing"]:
        wrong = bundle_files.faults(folder, [row for row in bundle_files.carried(manifest) if row["path"] in state["missing"]])
        raise _damaged(folder, wrong, "Run again: what is not whole is copied again.")
    path = state["path"]
    if manifest["parts"] and bundle_files.faults(folder, manifest["files"]):
        bundle_unpack.unpack([os.path.join(source or folder, row["path"]) for row in manifest["parts"]], manifest["files"], folder)
    if _has_site(manifest):
        bundle_unpack.unpack_tree(os.path.join(path, SITE_ARCHIVE), _site(manifest, folder))
    for name, content in ((bundle_files.MANIFEST, text), (bundle_files.SUMS, sums(manifest["files"]))):
        if path == folder:
            files.write_atomic(os.path.join(folder, name), content.encode(), mode=0o644)
    if path == folder:
        _remove_strangers(folder, manifest)
    os.sync()  # what was copied must not be lost by a power cut that the stamp survives
    stamp = {"manifest": manifest_digest(text), "path": path, "files": bundle_files.stamp_rows(path, manifest["files"])}
    stamp["site"] = bundle_unpack.tree_seen(_site(manifest, folder)) if _has_site(manifest) else None
    files.write_json(os.path.join(folder, STAMP), stamp, mode=0o644)
    if manifest["parts"] and not keep_parts:
        shutil.rmtree(os.path.join(folder, os.path.dirname(bundle_files.PARTS)), ignore_errors=True)
    return {**state, "complete": True, "changed": True}


def prepare(folder, state):
    """The directories that the missing files go to; a stamp of something else is taken away first. Returns whether one was made."""
    files.remove(os.path.join(folder, STAMP)) if os.path.isdir(folder) else None
    places = sorted({os.path.join(folder, os.path.dirname(path)).rstrip("/") for path in state["missing"]} | {folder})
    absent = [place for place in places if not os.path.isdir(place)]
    for place in absent:
        files.make_directory(place)
    return bool(absent)


def sums(rows):
    """Text of SHA256SUMS for ROWS."""
    return "".join(f"{row['sha256']}  {row['path']}\n" for row in rows)


def manifest_digest(text):
    """What the stamp knows a manifest by."""
    return hashlib.sha256(text.encode()).hexdigest()


def refuse_others(manifest, host):
    """Raises RingmasterError naming both when MANIFEST is for another machine, distribution or Python than HOST has."""
    words = []
    for key, name in (("machine", "machine"), ("distribution", "distribution")):
        if manifest.get(key) and manifest[key] != host[key]:
            words.append(f"{name} {manifest[key]}, this host is {host[key]}")
    if manifest.get("python") and manifest["python"] not in host["pythons"]:
        words.append(f"Python {manifest['python']}, this host has {', '.join(host['pythons']) or 'none'}")
    if words:
        name = manifest["name"]
        raise RingmasterError(
            f"Bundle {name} is for {'; '.join(words)}.",
            "Make one for this host (bundle_machine, bundle_distribution, bundle_python), or name an interpreter that it is for in "
            "sglang_base_python.",
        )


def this_host(wanted_python="", python=""):
    """{machine, distribution ('debian12'), pythons (minor versions, with the one WANTED if it is there)} of this host."""
    release = {}
    for line in (files.content("/etc/os-release") or b"").decode(errors="replace").splitlines():
        name, _sign, value = line.partition("=")
        release[name] = value.strip("\"'")
    number = release.get("VERSION_ID", "").replace(".", "") if release.get("ID") == "ubuntu" else release.get("VERSION_ID", "")
    names = [python] if python else [f"python{wanted_python}", "/usr/bin/python3", f"/usr/local/bin/python{wanted_python}"]
    found = {version for version in map(_version, names) if version} if wanted_python else set()
    return {"machine": platform.machine(), "distribution": release.get("ID", "") + number, "pythons": sorted(found)}


def _version(name):
    path = shutil.which(name)
    if not path:
        return ""
    try:
        done = subprocess.run([path, "-V"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    match = re.match(r"Python (\d+\.\d+)", done.stdout)
    return match[1] if match else ""


def _stamped(manifest, text, path, folder):
    stamp = files.read_json(os.path.join(folder, STAMP), {})
    site = bundle_unpack.tree_seen(_site(manifest, folder)) if _has_site(manifest) else None
    now = {"manifest": manifest_digest(text), "path": path, "files": bundle_files.stamp_rows(path, manifest["files"]), "site": site}
    return stamp == now and None not in now["files"].values()


def _unpack_bytes(manifest, folder):
    """Bytes that unpacking writes, less those that are there; a slim bundle's tree is counted by what its archive was made of."""
    unpacked = sum(row["bytes"] for row in manifest["files"]) if manifest["parts"] else 0
    there = 0
    for row in manifest["files"] if manifest["parts"] else ():
        path = os.path.join(folder, row["path"])
        there += min(row["bytes"], os.stat(path).st_size) if os.path.isfile(path) else 0
    return unpacked - there + (manifest["sglang"].get("site_bytes", 0) if _has_site(manifest) else 0)


def _has_site(manifest):
    return bool((manifest.get("sglang") or {}).get("site"))


def _site(manifest, folder):
    return os.path.join(folder, manifest["sglang"]["site"])


def _remove_strangers(folder, manifest):
    """Away with files of another bundle that had this name: they would be taken for packages of this one."""
    known = {row["path"] for row in manifest["files"]}
    for place in {os.path.dirname(path) for path in known} - {""}:
        for name in os.listdir(os.path.join(folder, place)):
            if f"{place}/{name}" not in known and os.path.isfile(os.path.join(folder, place, name)):
                files.remove(os.path.join(folder, place, name))


def _damaged(folder, wrong, remedy):
    shown = ", ".join(f"{path} ({what})" for path, what in sorted(wrong.items())[:3])
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return RingmasterError(f"{folder}: {shown}{more} is not what the manifest says.", remedy)

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A bundle's manifest, and whether the files that it names are there and whole. Where bundles are made and where they are used."""

from __future__ import annotations

import hashlib
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor

from .errors import RingmasterError
from .files import free_bytes

FORMAT = 1
MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
PARTS = "parts/bundle.tar."
BLOCK = 1 << 20
_KEYS = {"name": str, "profile": str, "machine": str, "files": list, "parts": list}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


def sha256(path):
    """Of the file at PATH; other threads go on meanwhile."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def size(count):
    """COUNT bytes for people: '58.0 MiB'."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def parse(text, where):
    """The manifest in TEXT (bytes or str). Raises RingmasterError when it is none, or names files outside of the bundle."""
    remedy = "Make the bundle again (bundle.yml), or name another one."
    try:
        manifest = json.loads(text)
        number = manifest["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise RingmasterError(f"{where} is no manifest of a bundle: {error!r}.", remedy) from error
    if number != FORMAT:
        raise RingmasterError(f"{where} has format {number!r}; this version of Ringmaster reads format {FORMAT}.", remedy)
    wrong = [key for key, kind in _KEYS.items() if not isinstance(manifest.get(key), kind)]
    rows = [] if wrong else [*manifest["files"], *manifest["parts"]]
    wrong += [repr(row) for row in rows if not _is_row(row)]
    if not wrong and not _NAME.fullmatch(manifest["name"]):
        wrong.append("name")
    wrong += [] if _is_sglang(manifest.get("sglang")) else ["sglang"]
    if wrong or not rows:
        raise RingmasterError(f"{where} is damaged: {', '.join(wrong[:3]) or 'it names no file'}.", remedy)
    return manifest


def _is_sglang(part):
    """Whether PART is nothing or tells of an SGLang, as bundle.yml writes it."""
    if not isinstance(part, dict):
        return part is None
    paths = [part.get("lock"), *([part["site"]] if part.get("site") else [])]
    return all(isinstance(part.get(key), str) for key in ("version", "cuda")) and all(map(_is_path, paths))


def _is_path(path):
    """Whether PATH is one below the bundle."""
    return isinstance(path, str) and "\0" not in path and all(piece not in ("", ".", "..") for piece in path.split("/"))


def _is_row(row):
    if not isinstance(row, dict) or not isinstance(row.get("bytes"), int):
        return False
    return _is_path(row.get("path")) and bool(re.fullmatch("[0-9a-f]{64}", str(row.get("sha256"))))


def carried(manifest):
    """The rows of what lies in the bundle's directory: its parts when it was split, else its files."""
    return manifest["parts"] or manifest["files"]


def row(root, path):
    """The manifest's row of the file PATH below ROOT."""
    whole = os.path.join(root, path)
    return {"path": path, "bytes": os.stat(whole).st_size, "sha256": sha256(whole)}


def fault(root, wanted):
    """What is wrong with the file of the row WANTED below ROOT ('missing', 'cut off', 'damaged'), or '' when nothing is."""
    path = os.path.join(root, wanted["path"])
    try:
        found = os.stat(path).st_size
        if found != wanted["bytes"]:
            return f"{found} bytes instead of {wanted['bytes']}"
        return "" if sha256(path) == wanted["sha256"] else "damaged"
    except (FileNotFoundError, NotADirectoryError):
        return "missing"


def faults(root, rows, at_once=4):
    """{path: what is wrong} of ROWS below ROOT."""
    with ThreadPoolExecutor(at_once) as pool:
        return {wanted["path"]: what for wanted, what in zip(rows, pool.map(lambda wanted: fault(root, wanted), rows)) if what}


def stamp_rows(root, rows):
    """{path: [bytes, mtime_ns]} of ROWS below ROOT as they are now; None for one that is not there."""
    return {wanted["path"]: _seen(os.path.join(root, wanted["path"])) for wanted in rows}


def _seen(path):
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return [status.st_size, status.st_mtime_ns]


def want_room(path, needed, variable):
    """Raises RingmasterError naming VARIABLE when fewer than NEEDED bytes are free at PATH."""
    free = free_bytes(path)
    if free < needed:
        raise RingmasterError(
            f"{path} has {size(free)} free, and {size(needed)} are needed.", f"Free some, or set {variable} to a place on another disk."
        )

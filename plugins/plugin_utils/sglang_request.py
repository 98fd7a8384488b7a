# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What role sglang is asked for, checked on the controller before any host is touched. Everything that is wrong is told at once."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.ringmaster.gpu.plugins.module_utils import environments_lock, source_patches, unified_diff_parse
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.module_utils.redaction import redact
from ansible_collections.ringmaster.gpu.plugins.module_utils.server_command import flag_name

from . import environment_file, given, resolve, role_arguments, sglang_flags, sglang_shapes

LOCKS = Path(__file__).resolve().parents[2] / "roles/sglang/files/locks"
VERSION = re.compile(r"\d+(\.\d+)+((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?", re.ASCII)
CUDA = re.compile(r"[1-9]\d\.\d+", re.ASCII)

Options = Mapping[str, Any]


def check(options: Options, read: Callable[[str], tuple[str, str]], known: Mapping[str, Any]) -> dict[str, Any]:
    """{problems, flags, notes, checked, secret, lock (its path), patches_suffix} of OPTIONS, variables as `options_of` gives them.

    READ gives (path, text) of a file on the controller, and raises RingmasterError. KNOWN may have `names` of the flags of a version that
    is not on record, the flags that tune.yml has `kept` on the host, and the `manifest` of the bundle.
    """
    found: dict[str, Any] = {"problems": _versions(options), "lock": None, "versions": {}}
    if found["problems"]:
        return found  # all else goes by them
    for part in (_flags, _environment, _source, _patches):
        try:
            found.update(part(options, read, known, found))
        except RingmasterError as error:
            found["problems"].append(str(error))
    return found


def options_of(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(the role's options, each of its type, out of VALUES {variable: what it is}; sentences on those that are not)."""
    ambiguous = [text for name in ("sglang_version", "sglang_cuda") if (text := given.ambiguous(values.get(name), name))]
    options, problems = role_arguments.typed(role_arguments.specification("sglang"), values)
    return options, [*ambiguous, *(problems or sglang_shapes.problems(options))]


def _versions(options: Options) -> list[str]:
    version, cuda = options["sglang_version"], options["sglang_cuda"]
    wrong = []
    if not VERSION.fullmatch(version):
        wrong.append(f"sglang_version: '{version}' is no version of SGLang. Set it in the inventory, such as 0.5.16.")
    if not CUDA.fullmatch(cuda):
        meant = re.search(r"(?<!\d)([1-9]\d)\.?(\d+)", cuda, re.ASCII)  # cu128, 12.8.2
        words = f'Write it as "{meant[1]}.{meant[2]}", in quotes.' if meant else f"This role has locks for {_locks()}."
        wrong.append(f"sglang_cuda: '{cuda}' is no version of CUDA. {words}")
    return wrong


def _locks() -> str:
    return ", ".join(sorted(path.stem for path in LOCKS.glob("*-cu*.txt")))


def _flags(options: Options, _read: Any, known: Mapping[str, Any], _found: Any) -> dict[str, Any]:
    version, flags = options["sglang_version"], resolve.as_mapping("sglang_flags", options["sglang_flags"])
    table = sglang_flags.known(version) or {name: {} for name in known.get("names") or ()}
    if not table:
        return {"flags": flags, "notes": [], "checked": False, "secret": redact(flags) != flags}
    if kept := sglang_flags.check_kept(known.get("kept") or {}, version, table):
        what = f"What tune.yml keeps on this host does not go with this SGLang: {' '.join(kept)}"
        raise RingmasterError(what, "Go back with rollback.yml first, then switch, then measure again.")
    checked = sglang_flags.check(flags, version, table)
    if checked["errors"]:
        raise RingmasterError(" ".join(checked["errors"]))
    return {"flags": checked["flags"], "notes": checked["notes"], "checked": True, "secret": redact(checked["flags"]) != checked["flags"]}


def _environment(options: Options, _read: Any, _known: Any, _found: Any) -> dict[str, Any]:
    environment_file.text(resolve.as_mapping("sglang_environment", options["sglang_environment"]), "sglang_environment")
    return {}


def _source(options: Options, read: Callable[[str], tuple[str, str]], known: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Lock file or bundle: of this SGLang."""
    version, cuda = options["sglang_version"], options["sglang_cuda"]
    if options["sglang_source"] == "bundle":
        if not known.get("manifest"):
            return {}
        _suits(known["manifest"], version, cuda)
        return {"notes": [*found.get("notes", []), *_slim(known["manifest"], options, found.get("flags", {}))]}
    own = options["sglang_lock"]
    ours = LOCKS / f"{version}-cu{cuda.replace('.', '')}.txt"
    if not own and not ours.is_file():
        what = f"sglang_version {version} for sglang_cuda {cuda}: there is no lock file for that. This role has {_locks()}."
        raise RingmasterError(what, "Choose of those, or make one (README of role sglang) and name it in sglang_lock.")
    try:
        path, text = read(own or str(ours))
    except RingmasterError as error:
        raise RingmasterError(f"sglang_lock: {error.what}", error.remedy) from error
    try:
        locked = environments_lock.parse(text)
    except RingmasterError as error:
        raise RingmasterError(f"sglang_lock: {path}: {error.what}", error.remedy) from error
    has = locked["versions"].get("sglang", ["no SGLang"])[0]
    if has.partition("+")[0] != version:
        what = f"sglang_lock: {path} has {has}, and sglang_version is {version}."
        raise RingmasterError(what, "Set one of the two." if own else "The lock was altered.")
    return {"lock": path, "versions": locked["versions"]}


def _suits(manifest: Mapping[str, Any], version: str, cuda: str) -> None:
    has = manifest.get("sglang")
    if not has:
        raise RingmasterError(f"The bundle {manifest['name']} has no SGLang.", "Make one with sglang_version (bundle.yml).")
    if (has["version"], has["cuda"]) != (version, cuda):
        what = f"The bundle {manifest['name']} has SGLang {has['version']} for CUDA {has['cuda']}"
        remedy = "Set these two, or name another bundle in bundle_dir."
        raise RingmasterError(f"{what}, and sglang_version is {version}, sglang_cuda {cuda}.", remedy)


def _slim(manifest: Mapping[str, Any], options: Options, flags: Mapping[str, Any]) -> list[str]:
    """Notes on FLAGS that a slim bundle was not made for. Raises RingmasterError when one is left to SGLang: it takes what is not there."""
    flags = {flag_name(name): value for name, value in flags.items()}
    wanted = manifest["sglang"].get("flags") or {}
    missing = ", ".join(f"{name}: {value}" for name, value in wanted.items() if name not in flags)
    what = f"The bundle {manifest['name']} is slim"
    if missing and options["sglang_service"] and options["sglang_model_path"]:
        raise RingmasterError(f"{what} and lacks what SGLang takes by itself.", f"Add to sglang_flags: {missing}.")
    others = [name for name, value in wanted.items() if flags.get(name, value) != value]
    return [f"{what} and made for --{name}={wanted[name]}; sglang_flags has {flags[name]}." for name in others]


def _patches(options: Options, read: Callable[[str], tuple[str, str]], _known: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """Of the patches that are to be on, all but whether they fit, which the files on the host decide."""
    versions = {**found["versions"], "sglang": [options["sglang_version"]]}
    try:
        items = [_with_diff(item, read) for item in options["sglang_patches"]]
        source_patches.check(items)
        items = [item for item in items if item["state"] == "present"]
        for item in items:
            _patch(item, versions, bool(found["versions"]))
    except RingmasterError as error:
        raise RingmasterError(f"sglang_patches: {error.what}", error.remedy) from error
    said = json.dumps([[item[key] for key in ("name", "package", "versions", "diff")] for item in items])
    return {"patches_suffix": f"-p{hashlib.sha256(said.encode()).hexdigest()[:8]}" if items else ""}


def _with_diff(item: Mapping[str, Any], read: Callable[[str], tuple[str, str]]) -> dict[str, Any]:
    if item["patch"] and item["diff"]:
        raise RingmasterError(f"Patch {item['name']} has both patch (a file) and diff (text).", "Give one of them.")
    if not item["patch"] or item["state"] == "absent":
        return dict(item)
    try:
        return {**item, "diff": read(item["patch"])[1]}
    except RingmasterError as error:
        raise RingmasterError(f"Patch {item['name']}: {error.what}", error.remedy) from error


def _patch(item: Mapping[str, Any], versions: Mapping[str, list[str]], complete: bool) -> None:
    """Raise RingmasterError where ITEM is no diff, or one for another version; VERSIONS of all packages where that is COMPLETE."""
    try:
        unified_diff_parse.parse(item["diff"])
    except RingmasterError as error:
        raise RingmasterError(f"Patch {item['name']}: {error.what}", error.remedy) from error
    have = versions.get(environments_lock.normal(item["package"]), [])
    if complete and not have:
        raise RingmasterError(f"Patch {item['name']}: {item['package']} is not in the lock file.", "Mend package of that patch.")
    if have and not any(source_patches.suits(one, item["versions"]) for one in have):
        what = f"Patch {item['name']} is for {item['package']} {', '.join(item['versions'])}; to be installed is {' or '.join(have)}."
        raise RingmasterError(what, "Make one for this version and widen its versions, or say state: absent.")

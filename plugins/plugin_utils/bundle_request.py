# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a bundle is asked to be, checked."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.ringmaster.gpu.plugins.module_utils import environments_lock
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

from . import bundle_lock, bundle_names
from .bundle_target import Target, python_of

MAKER = 1  # raised when the same request gives other files
PROFILES = ("full", "slim")
WORK, NEW = ".work", "new"  # below bundle_dir while a bundle is made


@dataclasses.dataclass(frozen=True)
class Request:
    """folder: where it is made. wheels: {version, cuda, lock (name), text} or None. slim: {host, carry_anyway} or None.
    debs: {of_cuda, version, driver_version, toolkit, wanted, preferences, repositories, status} or None.
    part_bytes: 0 leaves the files as they are.
    """

    folder: Path
    name: str
    target: Target
    wheels: Mapping[str, Any] | None
    debs: Mapping[str, Any] | None
    slim: Mapping[str, Any] | None
    part_bytes: int

    @property
    def building(self) -> Path:
        """Where it is until it is whole."""
        return self.folder / WORK / NEW

    @property
    def profile(self) -> str:
        return "slim" if self.slim else "full"

    def digest(self) -> str:
        """Of everything that decides what is in it."""
        value = {**dataclasses.asdict(self), "folder": "", "maker": MAKER}
        return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def read(given: Mapping[str, Any]) -> Request:
    """GIVEN: the options of module bundle. Raises RingmasterError naming the variable."""
    if not given["directory"]:
        raise RingmasterError("bundle_dir is not set.", "Name the directory that the bundle is made in: -e bundle_dir=/srv/bundles/one.")
    if given["profile"] not in PROFILES:
        raise RingmasterError(f"bundle_profile is '{given['profile']}'.", f"Known: {', '.join(PROFILES)}.")
    debs, wheels, slim = _debs(given), _wheels(given), None
    if not debs and not wheels:
        raise RingmasterError(
            "Nothing is asked for.", "Give sglang_version and sglang_cuda for wheels, cuda_version and cuda_driver_version for packages."
        )
    if given["profile"] == "slim":
        slim = _slim(given, wheels)
    python = given["python"] or python_of(given["distribution"])
    target = Target(given["machine"], python if wheels else "", given["distribution"])
    return Request(
        folder=Path(given["directory"]).expanduser().absolute(),
        name=_name(given, wheels, debs, slim, target),
        target=target,
        wheels=wheels,
        debs=debs,
        slim=slim,
        part_bytes=_part_bytes(given["part_mib"], slim),
    )


def _part_bytes(mib: Any, slim: Any) -> int:
    try:
        number = float(mib)
    except (TypeError, ValueError):
        number = -1
    if not (number == 0 or 0.001 <= number <= 1 << 20):
        raise RingmasterError(f"bundle_part_mib is '{mib}'.", "Give the size of a part in MiB, such as 58, or 0 for no parts.")
    if slim and not number:
        raise RingmasterError("bundle_part_mib is 0.", "A slim bundle comes in parts: leave it out for 58 MiB, or give another size.")
    return round(number * (1 << 20))


def _wheels(given: Mapping[str, Any]) -> dict[str, Any] | None:
    if not given["sglang_version"] and not given["lock"]:
        return None
    if not given["lock"]:
        raise RingmasterError(
            f"There is no lock for sglang_version '{given['sglang_version']}' and sglang_cuda '{given['sglang_cuda']}'.",
            f"There are: {', '.join(given['locks']) or 'none'}. Or make one and name it with sglang_lock.",
        )
    if not re.fullmatch(r"\d+\.\d+", given["sglang_cuda"]):
        raise RingmasterError(f"sglang_cuda is '{given['sglang_cuda']}'.", 'Give it in quotes, such as "13.0".')
    lock = Path(given["lock"])
    text = _text("sglang_lock", lock)
    pins, _options = bundle_lock.parse(text, lock.name)
    try:
        python = environments_lock.parse(text)["python"]  # as role sglang will on the host, which refuses some of what pip takes
    except RingmasterError as error:
        raise RingmasterError(f"sglang_lock: {lock.name}: {error.what}", error.remedy) from error
    return {
        "version": _sglang_version(given["sglang_version"], pins, lock.name),
        "cuda": given["sglang_cuda"],
        "lock": f"locks/{lock.name}",
        "python": python,
        "text": text,
        "index_url": given["index_url"],
        "uv": _text("bundle_uv_lock", Path(given["uv_lock"])) if given["uv_lock"] and given["profile"] == "full" else "",
    }


def _sglang_version(asked: str, pins: list[bundle_lock.Pin], lock: str) -> str:
    """The version that is ASKED, or the one that the lock has when none is."""
    there = sorted({pin.public_version for pin in pins if pin.name == "sglang"})
    if not there:
        raise RingmasterError(f"{lock} has no sglang.", "Name a lock of SGLang in sglang_lock, or leave it out.")
    if asked and asked not in there:
        raise RingmasterError(f"sglang_version is {asked}, and {lock} has {' and '.join(there)}.", "Set sglang_version or sglang_lock.")
    return asked or there[0]


def _debs(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Those for CUDA, and where the distribution is known those that SGLang needs of it."""
    cuda, driver = given["cuda_version"], given["cuda_driver_version"]
    of_cuda = bool(cuda or driver or given["packages"] or given["kernel"])
    if of_cuda and not given["distribution"]:
        raise RingmasterError("bundle_distribution is not set.", "Say which one the packages are for, such as debian12.")
    toolkit = [] if given["packages"] else bundle_names.toolkit(given)
    wanted = [*(given["packages"] or [*bundle_names.packages(given), *given["system_packages"]])]
    if not given["distribution"] or not (toolkit or wanted):
        return None
    repositories = [*(given["repositories"] or Target(given["machine"], "", given["distribution"]).repositories())]
    if given["repository_url"]:
        url = bundle_names.repository(given["repository_url"], given["distribution"], given["machine"])
        repositories.append({"url": url, "suites": "/", "components": "", "key": given["repository_key"]})
    for row in repositories:
        if not row.get("url") or not row.get("key"):
            raise RingmasterError(
                f"A repository lacks its url or key: {row}.", "See bundle_repositories, cuda_repository_url, cuda_repository_key."
            )
    return {
        "of_cuda": of_cuda,
        "version": cuda,
        "driver_version": driver,
        "toolkit": toolkit,
        "wanted": wanted,
        "preferences": bundle_names.preferences(driver, given["driver_members"]),
        "repositories": repositories,
        "status": _text("bundle_dpkg_status", Path(given["dpkg_status"])) if given["dpkg_status"] else "",
    }


def _slim(given: Mapping[str, Any], wheels: Any) -> dict[str, Any]:
    if not wheels:
        raise RingmasterError("bundle_profile is slim, but no sglang_version is given.", "A slim bundle is one of SGLang's packages.")
    if not given["host_packages"]:
        raise RingmasterError(
            "bundle_profile is slim, but bundle_host_packages is not set.",
            "Name a file with what the host has: `pip list --format=freeze`.",
        )
    return {"host": _text("bundle_host_packages", Path(given["host_packages"])), "carry_anyway": [*given["carry_anyway"]]}


def _text(variable: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        sought = "A relative path is sought beside the playbook and in the working directory, each time in files/ first."
        raise RingmasterError(
            f"{variable}: cannot read {path}: {getattr(error, 'strerror', None) or 'it is no text'}.", "" if path.is_absolute() else sought
        ) from error


def _name(given: Mapping[str, Any], wheels: Any, debs: Any, slim: Any, target: Target) -> str:
    words = [
        wheels and f"sglang-{wheels['version']}",
        wheels and wheels["cuda"] and f"cu{wheels['cuda'].replace('.', '')}",
        slim and "slim",
        debs and debs["version"] and f"cuda-{debs['version']}",
        debs and debs["driver_version"] and f"driver-{debs['driver_version']}",
        target.python and f"python{target.python}",
        target.distribution,
        target.machine,
    ]
    name = given["name"] or "-".join(word for word in words if word)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name):
        raise RingmasterError(f"bundle_name is '{name}'.", "Letters, digits, dot, dash, plus and underline: it becomes a directory.")
    return name


def pins(request: Request) -> tuple[list[bundle_lock.Pin], list[str]]:
    """(what the target needs of the lock, and uv's own; options for pip)."""
    if not request.wheels:
        return [], []
    environment = request.target.marker_environment
    found, options = bundle_lock.parse(request.wheels["text"], request.wheels["lock"])
    python, allowed = request.target.python, request.wheels["python"]
    if not any(environments_lock.allows(allowed, f"{python}.{patch}") for patch in (0, 99)):  # which patch level is not known
        what = f"bundle_python is {python}, and {request.wheels['lock']} is for {allowed}."
        raise RingmasterError(what, "Set bundle_python to another Python of the host.")
    chosen = bundle_lock.of_target(found, environment, request.wheels["lock"])
    if not chosen:
        raise RingmasterError(
            f"{request.wheels['lock']} has nothing for Python {request.target.python} on {request.target.machine}.",
            "See bundle_python and bundle_machine.",
        )
    if request.wheels["uv"]:
        tool, more = bundle_lock.parse(request.wheels["uv"], "bundle_uv_lock")
        names = {pin.name for pin in chosen}
        chosen += [pin for pin in bundle_lock.of_target(tool, environment, "bundle_uv_lock") if pin.name not in names]
        options += more
    if request.wheels["index_url"]:
        options += ["--index-url", request.wheels["index_url"]]
    return sorted(chosen, key=lambda pin: pin.name), options

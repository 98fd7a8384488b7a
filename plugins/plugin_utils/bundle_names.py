# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The names of NVIDIA's packages, by the data of role cuda: a bundle has what that role would install."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

ROLE = Path(__file__).resolve().parents[2] / "roles" / "cuda"
NVIDIA = "nvidia"  # as cuda_repository_url
_REPOSITORY = "https://developer.download.nvidia.com/compute/cuda/repos/{distribution}/{machine}/"
_CUDA = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
_DRIVER = re.compile(r"\d+\.\d+(\.\d+)?(-[0-9A-Za-z.+~]+)?")


@lru_cache(maxsize=1)
def role() -> dict[str, Any]:
    """Role cuda's variables as they are written."""
    return {
        name: value
        for file in ("defaults", "vars")
        for name, value in yaml.safe_load((ROLE / file / "main.yml").read_text(encoding="utf-8")).items()
    }


def family(distribution: str) -> str:
    return "Ubuntu" if distribution.startswith("ubuntu") else "Debian"


def repository(url: str, distribution: str, machine: str) -> str:
    """cuda_repository_url, which may be 'nvidia' for NVIDIA's own."""
    return _REPOSITORY.format(distribution=distribution, machine=role()["_cuda_machines"][machine]) if url == NVIDIA else url


def packages(given: Mapping[str, Any]) -> list[str]:
    """What to ask apt for: a driver with what builds its module, headers of a kernel; versions that are whole as such.

    GIVEN: {distribution, cuda_driver_version, kernel_module, kernel, driver_packages, build_packages}.
    """
    return [*_driver(given), *_headers(given["kernel"])]


def toolkit(given: Mapping[str, Any]) -> list[str]:
    """What a toolkit is begun with, 'NAME=PATTERN'. GIVEN: {cuda_version, toolkit_packages}."""
    version = given["cuda_version"]
    match = _CUDA.fullmatch(version)
    if version and not match:
        raise RingmasterError(f"cuda_version is '{version}'.", 'Give it in quotes, such as "13.0" or "13.0.2".')
    if not match:
        return []
    names = given["toolkit_packages"] or [f"cuda-toolkit-{match[1]}-{match[2]}"]
    return [name if "=" in name else f"{name}={version}{'-*' if match[3] else '.*'}" for name in names]


def toolkit_members() -> tuple[list[str], list[str]]:
    """(patterns of all toolkits' packages, patterns of those that several toolkits share)."""
    return role()["cuda_toolkit_members"], role()["_cuda_toolkit_shared"]


def _driver(given: Mapping[str, Any]) -> list[str]:
    version = given["cuda_driver_version"]
    if not version:
        return []
    if not _DRIVER.fullmatch(version):
        raise RingmasterError(f"cuda_driver_version is '{version}'.", 'Give a whole version in quotes, such as "580.105.08".')
    branch = version.split(".")[0]
    rows = role()["_cuda_names"][family(given["distribution"])]
    mine = given["driver_packages"] or next(row for row in rows if int(row["from"]) <= int(branch))
    module = "proprietary" if given["kernel_module"] == "proprietary" else "open"  # auto: the GPUs of the host are not known here
    names = [name.replace("@", branch) for name in mine[module]]
    return [*(f"{name}={_any_revision(version)}" for name in names), *given["build_packages"]]


def _headers(kernel: str) -> list[str]:
    if not kernel:
        return []
    of = ["proxmox-headers", "pve-headers"] if kernel.endswith("-pve") else ["linux-headers"]
    return [" | ".join(f"{name}-{kernel}" for name in of)]


def _any_revision(version: str) -> str:
    return version if "-" in version else f"{version}-*"


def preferences(driver: str, members: Iterable[str]) -> str:
    """The whole driver at one version: its packages ask for each other by `>=`, and apt would take the newest."""
    return f"Package: {' '.join(members)}\nPin: version {_any_revision(driver)}\nPin-Priority: 1001\n" if driver else ""

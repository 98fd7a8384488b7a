# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""apt in a world of its own: it sees the repositories and the installed packages of another host, and touches nothing of this machine."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ansible_collections.ringmaster.gpu.plugins.module_utils import apt_closure, apt_plan, apt_run
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

UPDATE_TIMEOUT_S = 1800.0
DOWNLOAD_TIMEOUT_S = 6 * 3600.0
# 'URI' NAME SIZE ALGORITHM:SUM
_URI = re.compile(r"'([^']+)' (\S+) (\d+)(?: SHA256:([0-9a-f]{64}))?")


class Deb(NamedTuple):
    """One file that apt would fetch."""

    name: str
    bytes: int
    sha256: str


def parse_uris(text: str) -> list[Deb]:
    """Of what `apt-get --print-uris` prints; one without SHA256 has '' there."""
    return [Deb(match[2], int(match[3]), match[4] or "") for match in map(_URI.match, text.splitlines()) if match]


def source(row: Mapping[str, str], architecture: str) -> str:
    """A deb822 source for one of `bundle_repositories`; apt leaves files where they are, unless asked to copy them."""
    url = re.sub(r"^file:", "copy:", row["url"])
    lines = {"Types": "deb", "URIs": url, "Suites": row.get("suites") or "/", "Components": row.get("components") or ""}
    lines |= {"Architectures": architecture, "Signed-By": os.path.abspath(os.path.expanduser(row["key"]))}
    return "".join(f"{name}: {value}\n" for name, value in lines.items() if value)


def _few(words: list[str], between: str) -> str:
    return between.join([*words[:4], *([f"and {len(words) - 4} more"] if len(words) > 4 else [])])


class World:
    """apt below PLACE for a host of ARCHITECTURE with REPOSITORIES ({url, suites, components, key}) and a preferences file."""

    def __init__(self, place: Path, architecture: str, repositories: Iterable[Mapping[str, str]], preferences: str = "") -> None:
        for program in ("apt-get", "apt-cache", "dpkg-deb"):
            if not shutil.which(program):
                raise RingmasterError(
                    f"The controller has no {program}: packages for Debian and Ubuntu can be fetched on one of these only.",
                    "Make the bundle on a Debian or Ubuntu machine or in a container of one, or leave out bundle_distribution, "
                    "cuda_version and cuda_driver_version for a bundle of wheels.",
                )
        self.archives = place / "archives"
        self._status = place / "status"
        sources, pins = place / "sources", place / "preferences"
        for folder in (sources, pins):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        for folder in (place / "lists" / "partial", self.archives / "partial"):
            folder.mkdir(parents=True, exist_ok=True)
        for number, row in enumerate(repositories):
            if not os.path.isfile(os.path.expanduser(row["key"])):
                raise RingmasterError(
                    f"The key of {row['url']} is not on the controller: {row['key']}.",
                    "Mend cuda_repository_key where it is NVIDIA's; the distribution's comes with its keyring (debian-archive-keyring, "
                    "ubuntu-keyring), others with bundle_repositories. Without bundle_distribution wheels can be had alone.",
                )
            (sources / f"{number}.sources").write_text(source(row, architecture), encoding="utf-8")
        if preferences:
            (pins / "bundle").write_text(preferences, encoding="utf-8")
        options = {
            "Dir::State::lists": place / "lists",
            "Dir::State::status": self._status,
            "Dir::State::extended_states": place / "extended",
            "Dir::Cache": place,
            "Dir::Cache::archives": self.archives,
            "Dir::Etc::sourceparts": sources,
            "Dir::Etc::preferencesparts": pins,
            **dict.fromkeys((f"Dir::Etc::{name}" for name in ("sourcelist", "preferences", "trusted", "trustedparts")), "/dev/null"),
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Sandbox::User": "root",
            "APT::Install-Recommends": "false",
            "APT::Update::Error-Mode": "any",
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
            "Acquire::ForceHash": "SHA256",  # else --print-uris names the weakest one
            "Acquire::AllowInsecureRepositories": "false",
            "Debug::NoLocking": "1",
        }
        self._options = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        self._config = place / "apt.conf"
        self._config.write_text("".join(f'{name} "{value}";\n' for name, value in options.items()), encoding="utf-8")

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Programs of apt that cannot be given options see this world, too; the machine's apt.conf.d still has the last word here."""
        former = os.environ.get("APT_CONFIG")
        os.environ["APT_CONFIG"] = str(self._config)
        try:
            yield
        finally:
            os.environ.pop("APT_CONFIG") if former is None else os.environ.update(APT_CONFIG=former)

    def _run(self, what: str, *command: str, timeout_s: float = apt_run.TIMEOUT_S, remedy: str = "") -> str:
        code, text = apt_run.attempt(command[0], *self._options, *command[1:], timeout_s=timeout_s)
        if code:
            raise RingmasterError(f"{what}: {_few(apt_run.refusal(text).split('; '), '; ').rstrip('.')}.", remedy)
        return text

    def update(self) -> None:
        """Fetch the lists of packages; they are signed with the key that was named, or it is an error."""
        self._status.write_text("", encoding="utf-8")
        self._run("The lists of packages cannot be fetched", "apt-get", "update", timeout_s=UPDATE_TIMEOUT_S)

    def install_status(self, text: str) -> None:
        """Take for installed what TEXT, a host's dpkg status file, says."""
        self._status.write_text(text, encoding="utf-8")

    def choose(self, wanted: list[str]) -> list[str]:
        """WANTED ('NAME', 'NAME=VERSION', 'A | B') as apt takes it. Raises RingmasterError naming what no repository has."""
        known = apt_plan.parse_policy(self._run("apt-cache", "apt-cache", "policy", *apt_plan.names(wanted)))
        specs, unknown = apt_plan.choose(wanted, known, set())
        if unknown:
            there = "; ".join(f"{name}: {', '.join(known.get(name) or ['none'])}" for name in apt_plan.names(unknown))
            raise RingmasterError(
                f"No repository has {', '.join(unknown)} (versions there: {there}).",
                "See cuda_version, cuda_driver_version, sglang_packages, bundle_packages, cuda_repository_url.",
            )
        return specs

    def exact(self, wanted: list[str], members: list[str], shared: list[str]) -> list[str]:
        """All packages of a set, each at the version that WANTED ('NAME=PATTERN') names, as role cuda pins them.

        Its metapackage asks for them by `>=`, so apt would take the newest. Raises RingmasterError naming what no repository has.
        """
        with self._entered():
            found = apt_closure.closure(wanted, members, shared, installed=[])
        if found["unknown"]:
            raise RingmasterError(
                f"No repository has {', '.join(found['unknown'])} (there: {', '.join(found['there']) or 'nothing like it'}).",
                "See cuda_version, cuda_toolkit_packages, cuda_repository_url.",
            )
        return [f"{row['name']}={row['version']}" for row in found["rows"]]

    def fetches(self, specs: list[str]) -> list[Deb]:
        """What an installation of SPECS would fetch."""
        words = ("apt-get", "--print-uris", "-q", "-y", "install", *specs)
        remedy = "See bundle_distribution and bundle_repositories, and bundle_dpkg_status for what the host has."
        return parse_uris(self._run(f"{_few(specs, ', ')} cannot be installed", *words, remedy=remedy))

    def download(self, specs: list[str]) -> None:
        """Fetch that into `archives`; what is there stays, and of what is there in part the rest is fetched."""
        self._run("Packages cannot be fetched", "apt-get", "-q", "-y", "--download-only", "install", *specs, timeout_s=DOWNLOAD_TIMEOUT_S)

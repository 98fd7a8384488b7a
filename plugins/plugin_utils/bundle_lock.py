# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lock file (pip's requirements with hashes), and what of it one target needs."""

from __future__ import annotations

import dataclasses
import re
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from ansible_collections.ringmaster.gpu.plugins.module_utils.environments_lock import SOURCES
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

try:
    from packaging import markers, requirements, utils
except ImportError:  # it comes with ansible-core; ansible-test's own environments are without
    markers = requirements = utils = None

_HASH = re.compile(r"\s--hash[= ]sha256:([0-9a-f]{64})(?=\s|$)")
_OTHER_HASH = re.compile(r"\s--hash[= ]\S+")


@dataclasses.dataclass(frozen=True)
class Pin:
    """One line of a lock: one version of one package, and the files that may be it."""

    name: str
    version: str
    sha256: frozenset[str]
    url: str = ""
    marker: str = ""

    @property
    def public_version(self) -> str:
        """Without what a builder adds to it ('+cu130'); of a URL that of the wheel there, '' when it is none."""
        if not self.url:
            return self.version.partition("+")[0]
        try:
            return utils.parse_wheel_filename(unquote(PurePosixPath(urlsplit(self.url).path).name))[1].public
        except utils.InvalidWheelFilename:
            return ""

    def line(self) -> str:
        """For pip, without the marker: that was asked already, and pip would ask for the interpreter that it runs on."""
        what = f"{self.name} @ {self.url}" if self.url else f"{self.name}=={self.version}"
        return " ".join([what, *(f"--hash=sha256:{value}" for value in sorted(self.sha256))])

    def is_named(self, file_name: str) -> bool:
        """Whether a wheel of that name is this version of this package."""
        try:
            name, version, _build, _tags = utils.parse_wheel_filename(file_name)
        except utils.InvalidWheelFilename:
            return False
        return name == self.name and (self.version == "" or str(version) == self.version)


def parse(text: str, where: str) -> tuple[list[Pin], list[str]]:
    """(pins, options for pip that say where packages are) of a lock. Raises RingmasterError naming the line that is no such thing."""
    pins, options = [], []
    for line in _lines(text):
        if line.startswith("-"):
            if line.split("=")[0].split()[0] not in SOURCES:
                raise RingmasterError(f"{where}: `{line}` has no place in a lock.", f"Known are {', '.join(SOURCES)}.")
            options += line.split(None, 1)
        else:
            pins.append(_pin(line, where))
    if not pins:
        raise RingmasterError(f"{where} names no package.", "Give a lock with versions and hashes.")
    return pins, options


def _lines(text: str) -> list[str]:
    joined = re.sub(r"\\\r?\n", " ", text)
    return [line for line in (re.sub(r"(^|\s)#.*", "", line).strip() for line in joined.splitlines()) if line]


def _pin(line: str, where: str) -> Pin:
    try:
        requirement = requirements.Requirement(_OTHER_HASH.sub("", line).strip())
    except requirements.InvalidRequirement as error:
        raise RingmasterError(f"{where}: `{line[:80]}` is no requirement: {str(error).splitlines()[0]}.") from error
    found = frozenset(_HASH.findall(line))
    name = utils.canonicalize_name(requirement.name)
    if not found:
        raise RingmasterError(f"{where}: {name} has no sha256.", "Make the lock with hashes (uv pip compile --generate-hashes).")
    exact = [one for one in requirement.specifier if one.operator == "==" and not one.version.endswith("*")]
    if not requirement.url and (len(exact) != 1 or len(requirement.specifier) != 1):
        raise RingmasterError(f"{where}: {name}{requirement.specifier} is no single version.", "A lock says NAME==VERSION.")
    version = utils.canonicalize_version(exact[0].version, strip_trailing_zero=False) if exact else ""
    return Pin(name, version, found, requirement.url or "", str(requirement.marker or ""))


def of_target(pins: list[Pin], environment: dict[str, str], where: str) -> list[Pin]:
    """Those whose marker holds in ENVIRONMENT, by name."""
    chosen: dict[str, Pin] = {}
    for pin in pins:
        if pin.marker and not markers.Marker(pin.marker).evaluate(environment):
            continue
        bare = dataclasses.replace(pin, marker="")  # two markers of one version may both hold
        if chosen.setdefault(pin.name, bare) != bare:
            both = f"{chosen[pin.name].version} and {pin.version}"
            raise RingmasterError(f"{where}: {pin.name} is there as {both} for one target.", "Make the lock again.")
    return [chosen[name] for name in sorted(chosen)]

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host that a bundle is made for, as packages see it: tags of wheels, environment of markers, apt's architecture, repositories."""

from __future__ import annotations

import dataclasses
import re
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

try:
    from packaging import tags, utils
except ImportError:  # it comes with ansible-core; ansible-test's own environments are without
    tags = utils = None

ANY_PYTHON = "3.12"  # of a host whose distribution is not given
DATA = Path(__file__).parent / "data" / "bundle_targets.yml"


@lru_cache(maxsize=1)
def table() -> dict[str, Any]:
    return yaml.safe_load(DATA.read_text(encoding="utf-8"))


def python_of(distribution: str) -> str:
    """The minor version of the Python that DISTRIBUTION has."""
    return table()["distributions"].get(distribution, {}).get("python", ANY_PYTHON)


@dataclasses.dataclass(frozen=True)
class Target:
    """machine: 'x86_64'. python: '3.12', or '' when no wheels are wanted. distribution: 'debian12', or '' for any of the known ones."""

    machine: str
    python: str = ""
    distribution: str = ""

    def __post_init__(self) -> None:
        known = table()
        for name, value, among in (
            ("bundle_machine", self.machine, known["machines"]),
            ("bundle_distribution", self.distribution, known["distributions"]),
        ):
            if value not in among and not (value == "" and name == "bundle_distribution"):
                raise RingmasterError(f"{name} is '{value}'.", f"Known: {', '.join(among)}.")
        if self.python and not re.fullmatch(r"3\.\d+", self.python):
            raise RingmasterError(f"bundle_python is '{self.python}'.", 'Give the minor version of the host\'s Python, in quotes: "3.12".')

    @property
    def architecture(self) -> str:
        """apt's name of the machine."""
        return table()["machines"][self.machine]["architecture"]

    def repositories(self) -> list[dict[str, str]]:
        """The distribution's own, in the words of `bundle_repositories`."""
        rows = table()["distributions"][self.distribution]["repositories"]
        return [{name: value.replace("@archive@", self._archive) for name, value in row.items()} for row in rows]

    @property
    def _archive(self) -> str:
        return table()["distributions"][self.distribution].get("archives", {}).get(self.machine, "")

    @cached_property
    def platforms(self) -> list[str]:
        """Platform tags that run there, the newest first: as new as its C library, or as the oldest one of all known distributions."""
        rows = table()["distributions"]
        glibc = min(row["glibc"] for name, row in rows.items() if self.distribution in ("", name))
        oldest = table()["machines"][self.machine]["oldest_glibc"]
        found = []
        for minor in range(glibc, oldest - 1, -1):
            found.append(f"manylinux_2_{minor}_{self.machine}")
            found += [f"{alias}_{self.machine}" for alias, of in table()["aliases"].items() if of == minor]
        return [*found, f"linux_{self.machine}"]

    @cached_property
    def tags(self) -> frozenset[tags.Tag]:
        version = tuple(int(number) for number in self.python.split("."))
        interpreter = "cp" + "".join(map(str, version))
        return frozenset(
            [*tags.cpython_tags(version, platforms=self.platforms), *tags.compatible_tags(version, interpreter, self.platforms)]
        )

    @property
    def marker_environment(self) -> dict[str, str]:
        """What PEP 508's markers see there; of the Python's patch level the lowest."""
        return {
            "implementation_name": "cpython", "implementation_version": f"{self.python}.0", "os_name": "posix",
            "platform_machine": self.machine, "platform_python_implementation": "CPython", "platform_release": "",
            "platform_system": "Linux", "platform_version": "", "python_full_version": f"{self.python}.0",
            "python_version": self.python, "sys_platform": "linux", "extra": "",
        }  # fmt: skip

    def takes(self, file_name: str) -> bool:
        """Whether the wheel of that name can be installed there."""
        try:
            return not self.tags.isdisjoint(utils.parse_wheel_filename(file_name)[3])
        except utils.InvalidWheelFilename:
            return False

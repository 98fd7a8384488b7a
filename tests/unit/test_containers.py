# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which container and unit a process is in: texts of /proc/PID/cgroup, fixtures of what the tools write."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.ringmaster.gpu.plugins.module_utils import containers

HEX = "0123456789abcdef" * 4
TEXTS = yaml.safe_load((Path(__file__).parent / "data" / "cgroups.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: case["name"])
def test_places(case):
    text = "".join(f"{line}\n" for line in case["text"])
    assert containers.place(text) == containers.Place(*(case.get(name) for name in ("kind", "container", "unit", "cell")))


@pytest.mark.parametrize(
    ("first", "text", "name", "unit"),
    [
        # Docker without a cgroup namespace of its own: everything here shows the same container, which is this machine itself
        (f"0::/docker/{HEX}\n", f"0::/docker/{HEX}\n", None, None),
        (f"0::/docker/{HEX}\n", f"0::/docker/{HEX}/docker/{'f' * 64}\n", "f" * 12, None),
        ("0::/lxc/101/ns/init.scope\n", "0::/lxc/101/ns/system.slice/a.service\n", None, "a.service"),
        ("0::/lxc/101/ns/init.scope\n", "0::/lxc/1010/ns\n", "1010", None),
        ("4:memory:/lxc/101\n1:name=systemd:/\n", "4:memory:/lxc/101/lxc/5\n1:name=systemd:/lxc/5\n", "5", None),
        ("0::/init.scope\n", "0::/lxc/101/ns\n", "101", None),
    ],
)
def test_what_this_machine_is_in_is_not_a_container_of_it(first, text, name, unit):
    found = containers.place(text, containers.root(first))
    assert (found.name, found.unit) == (name, unit)


def test_containers_that_do_not_run(tmp_path):
    for path in ("pve/nodes/one/lxc/101.conf", "pve/nodes/two/lxc/102.conf", "pve/nodes/two/qemu-server/103.conf", "lxc/a/config"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "lxc/empty").mkdir()
    (tmp_path / "pve/lxc").symlink_to("nodes/one/lxc")
    found = containers.configured([str(tmp_path / "lxc"), str(tmp_path / "none")], str(tmp_path / "pve"))
    assert found == {"101": None, "102": "two", "a": None}
    assert containers.configured([], str(tmp_path / "none")) == {}

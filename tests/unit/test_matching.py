# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A play that would do nothing, or that Ansible would stumble over, is refused."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.ringmaster.gpu.plugins.filter.matching import matching

GROUPS = {"all": ["a", "b", "node"], "ungrouped": [], "inference": ["a", "b"], "proxmox": ["node"]}


@pytest.mark.parametrize(("pattern", "limit"), [("inference", ""), ("inference", "b"), ("a:b", "inference"), ("all:!proxmox", "")])
def test_a_pattern_with_hosts_is_given_back(pattern, limit):
    assert matching(pattern, GROUPS, limit) == pattern


@pytest.mark.parametrize(("pattern", "limit"), [("nobody", ""), ("inference", "node"), ("inference:!all", "")])
def test_a_pattern_without_hosts_names_itself_and_the_groups(pattern, limit):
    with pytest.raises(AnsibleFilterError, match="no host matches .*inference, proxmox"):
        matching(pattern, GROUPS, limit)


@pytest.mark.parametrize("serial", [1, "2", "25%", [1, "25%", "100%"]])
def test_serial_as_ansible_takes_it(serial):
    assert matching("inference", GROUPS, "", serial) == "inference"


@pytest.mark.parametrize("serial", ["abc", 0, -1, "", "1.5", [1, "x"], None])
def test_another_serial_is_refused_by_name(serial):
    with pytest.raises(AnsibleFilterError, match="tune_serial"):
        matching("inference", GROUPS, "", serial)

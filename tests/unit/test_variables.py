# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Misspelt variables are found, other people's variables are left alone."""

from __future__ import annotations

import pytest
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.variables import known_variables, misspelt, unknown_variables

KNOWN = {"nccl_channels", "nccl_proto", "nccl_debug", "sglang_python", "sglang_port", "tune_hosts", "tune_allow_downtime"}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("nccl_chanels", "nccl_channels"),
        ("nccl_channel", "nccl_channels"),
        ("nccl_prto", "nccl_proto"),
        ("NCCL_DEBUG", "nccl_debug"),
        ("nccl-channels", "nccl_channels"),
        ("tune_allow_down_time", "tune_allow_downtime"),
        ("sglang_pyhton", "sglang_python"),
        ("sglang_zzz", None),
    ],
)
def test_misspelt(name, nearest):
    assert unknown_variables([name], KNOWN) == [(name, nearest)]


@pytest.mark.parametrize(
    "name",
    ["nccl_channels", "_nccl_chanels", "__tune_result", "ansible_python", "inventory_hostname", "tuned_x", "lab_owner", "cuda_version"],
)
def test_not_ours_or_known(name):
    assert unknown_variables([name], KNOWN) == []


def test_a_prefix_is_ours_once_a_role_uses_it():
    assert unknown_variables(["cuda_verson"], KNOWN | {"cuda_version"}) == [("cuda_verson", "cuda_version")]


def test_nothing_known_flags_nothing():
    assert unknown_variables(["nccl_chanels"], []) == []


def test_sentence():
    assert misspelt("nccl_chanels", "nccl_channels") == "nccl_chanels: no such variable; did you mean nccl_channels?"
    assert misspelt("tune_x", None).startswith("tune_x: no such variable")


def test_known_variables_reads_every_entry_point(tmp_path):
    for role, text in {
        "nccl": "argument_specs:\n  main: {options: {nccl_channels: {type: raw}}}\n  restore: {options: {nccl_state: {type: str}}}\n",
        "lab": "argument_specs:\n  main: {short_description: no options}\n",
        "empty": "---\n",
    }.items():
        (tmp_path / "roles" / role / "meta").mkdir(parents=True)
        (tmp_path / "roles" / role / "meta" / "argument_specs.yml").write_text(text)
    assert known_variables(tmp_path) == {"nccl_channels", "nccl_state"}
    assert known_variables(tmp_path) is known_variables(tmp_path)


def test_known_variables_without_roles(tmp_path):
    assert known_variables(tmp_path) == set()

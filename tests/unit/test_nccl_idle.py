# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings that have no work left, as the catalogue says it."""

from __future__ import annotations

import pytest
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.catalogue import check

NVLINK = {"tp": 8, "link": "NVLink", "custom_all_reduce": False}
PCIE = NVLINK | {"link": "PCIe with P2P"}
LL = {"NCCL_PROTO": "LL"}


@pytest.mark.parametrize(
    ("given", "server", "in_force", "idle"),
    [
        # buffers and threads against protocols
        ({"nccl_buffsize": "16M"}, PCIE, LL, True),
        ({"nccl_buffsize": "16M"}, PCIE, {"NCCL_PROTO": "LL,Simple"}, False),
        ({"nccl_buffsize": "16M"}, PCIE, {"NCCL_PROTO": "^Simple"}, True),
        ({"nccl_buffsize": "16M"}, PCIE, {"NCCL_PROTO": "allreduce:LL"}, False),  # the other collectives have Simple
        ({"nccl_buffsize": "16M"}, PCIE | {"pp": 2}, LL, False),  # send/recv has chunks of an eighth of it
        ({"nccl_buffsize": "16M"}, PCIE | {"ep": 8}, LL, False),
        ({"nccl_buffsize": "16M"}, None, LL, False),
        ({"nccl_buffsize": "16M", "nccl_proto": "LL"}, PCIE, {}, False),  # the protocol is felt
        ({"nccl_buffsize": "unset"}, PCIE, {**LL, "NCCL_BUFFSIZE": "131072"}, True),
        ({"nccl_extra": {"NCCL_LL_BUFFSIZE": 1048576}}, PCIE, {"NCCL_PROTO": "Simple"}, True),
        ({"nccl_extra": {"NCCL_LL_BUFFSIZE": 1048576}}, PCIE, LL, False),
        ({"nccl_extra": {"NCCL_LL128_BUFFSIZE": 7864320}}, PCIE, {"NCCL_PROTO": "^LL128"}, True),
        ({"nccl_extra": {"NCCL_LL128_NTHREADS": 320}}, PCIE, LL, True),
        ({"nccl_nthreads": 256}, PCIE, {"NCCL_PROTO": "LL128"}, True),
        ({"nccl_nthreads": 256}, PCIE, LL, False),
        ({"nccl_nthreads": 256}, PCIE, {}, False),
        # algorithms
        ({"nccl_nvls_enable": 1}, NVLINK, {"NCCL_ALGO": "ring,tree"}, True),
        ({"nccl_nvls_enable": 1}, NVLINK, LL, True),  # NVLS exists with Simple alone
        ({"nccl_nvls_enable": 1}, NVLINK, {}, False),
        ({"nccl_extra": {"NCCL_NVLS_NCHANNELS": 8}}, NVLINK, {}, True),  # SGLang turns NVLS off
        ({"nccl_extra": {"NCCL_NVLS_NCHANNELS": 8}}, NVLINK | {"enable_nccl_nvls": True}, {}, False),
        ({"nccl_extra": {"NCCL_NVLS_NCHANNELS": 8}, "nccl_nvls_enable": 1}, NVLINK, {}, False),
        ({"nccl_extra": {"NCCL_PAT_ENABLE": 0}}, PCIE, {"NCCL_ALGO": "Ring"}, True),
        # links
        ({"nccl_p2p_level": "SYS"}, NVLINK, {}, True),
        ({"nccl_p2p_level": "SYS"}, PCIE, {}, False),
        ({"nccl_p2p_level": "LOC"}, NVLINK, {}, False),
        ({"nccl_p2p_level": "SYS"}, NVLINK, {"NCCL_P2P_LEVEL": "LOC"}, False),
        ({"nccl_p2p_level": "SYS"}, NVLINK | {"link": None}, {}, False),
        ({"nccl_shm_disable": 1}, NVLINK, {}, True),
        ({"nccl_shm_disable": 1}, NVLINK, {"NCCL_P2P_DISABLE": "1"}, False),
        ({"nccl_shm_disable": 1}, PCIE, {}, False),
        ({"nccl_ib_disable": 1}, PCIE, {}, True),
        ({"nccl_ib_disable": 1}, PCIE, {"NCCL_SHM_DISABLE": "1"}, False),
        ({"nccl_ib_disable": 1}, PCIE | {"nnodes": 2}, {}, False),
        ({"nccl_socket_ifname": "eth0"}, PCIE, {}, True),
        ({"nccl_extra": {"NCCL_NET_PLUGIN": "none"}}, PCIE, {}, False),
        # several at once
        ({"nccl_p2p_level": "SYS", "nccl_ib_disable": 1, "nccl_debug": "INFO"}, NVLINK, {}, True),
        ({"nccl_p2p_level": "SYS", "nccl_channels": 2}, NVLINK, {}, False),
        ({"nccl_profile": "story_good"}, NVLINK, {}, False),
        ({"nccl_p2p_level": "SYS", "nccl_algo": "Ring"}, NVLINK | {"enable_deterministic_inference": True}, {}, True),
        ({"nccl_debug": "INFO"}, NVLINK, {}, False),
    ],
)
def test_idle(given, server, in_force, idle):
    checked = check(given, server=server, in_force=in_force, nccl_version="2.28.9", sglang_version="0.5.16")
    assert checked.errors == []
    assert bool(checked.cannot_matter) == idle, (checked.cannot_matter, checked.warnings, checked.notes)
    if idle:
        assert all(factor in checked.cannot_matter for factor in checked.factors)
        assert checked.cannot_matter in checked.warnings


def test_an_idle_setting_among_others_is_worth_a_note():
    checked = check({"nccl_profile": "story_good"}, server=NVLINK, nccl_version="2.28.9")
    assert {note.split()[0] for note in checked.notes if "cannot matter" in note} == {"NCCL_BUFFSIZE", "NCCL_P2P_LEVEL"}
    (buffer_note,) = (note for note in checked.notes if note.startswith("NCCL_BUFFSIZE"))
    assert "Simple (NCCL_ALGO=Ring, NCCL_PROTO=LL, NCCL_NVLS_ENABLE=0)" in buffer_note

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NCCL catalogue against cases: the collected ones (data/nccl_values.yml) and more of the same kinds."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import nccl_names
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.catalogue import FACTOR_VARIABLES, VARIABLES, check, rank_differences
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.nccl_values import nccl_reads, parse_version

CASES = yaml.safe_load((Path(__file__).parent / "data" / "nccl_values.yml").read_text(encoding="utf-8"))
NVLINK_8 = {"tp": 8, "link": "NVLink", "custom_all_reduce": False}
DETERMINISTIC_8 = NVLINK_8 | {"enable_deterministic_inference": True}


def messages(checked):
    return "\n".join(checked.errors + checked.warnings)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['set']} {case.get('server', '')}")
def test_collected_case(case):
    checked = check(case["set"], nccl_version=case.get("nccl"), sglang_version=case.get("sglang"), server=case.get("server"))
    said = messages(checked)
    assert checked.verdict == case["verdict"], said
    for words in case.get("says", ()):
        assert words in said
    if case["verdict"] != "ok":
        assert any(name in said for name in case["set"])
    if "renders" in case:
        assert checked.settings == case["renders"]


def extra(**settings):
    return {"nccl_extra": settings}


# what is set, NCCL version, verdict, words of the message
VALUES = [
    # integers as people write them and as strtoll reads them
    ({"nccl_channels": "010"}, None, "error", ["'010'", "read it as 8"]),
    ({"nccl_channels": "1e3"}, None, "error", ["read it as 1"]),
    ({"nccl_channels": "2_0"}, None, "error", ["read it as 2"]),
    ({"nccl_channels": 2.0}, None, "error", ["2.0", "integer"]),
    ({"nccl_channels": True}, None, "error", ["True", "integer"]),
    ({"nccl_channels": [4, 8]}, None, "error", ["list"]),
    ({"nccl_channels": "8-4"}, None, "error", ["minimum wins", "4-8"]),
    ({"nccl_channels": "0-8"}, None, "error", ["between 1 and 64"]),
    ({"nccl_channels": "4-"}, None, "error", ["4-8"]),
    ({"nccl_channels": -2}, None, "error", ["between 1 and 64"]),
    ({"nccl_channels": "4\u20138"}, None, "error", ["integer"]),
    ({"nccl_channels": 40}, "2.24.3", "error", ["between 1 and 32"]),
    ({"nccl_channels": 40}, "2.25.1", "ok", []),
    ({"nccl_channels": "4-70"}, "2.28.9", "error", ["64", "silently"]),
    (extra(NCCL_IB_TIMEOUT="32"), None, "error", ["between 0 and 31"]),
    (extra(NCCL_IB_TC=2**63), None, "error", ["64 bits"]),
    (extra(NCCL_CROSS_NIC=3), None, "error", ["0, 1, 2"]),
    (extra(NCCL_LL128_NTHREADS=200), None, "error", ["multiple of 32"]),
    # sizes
    ({"nccl_buffsize": "3M"}, None, "error", ["power of two"]),
    ({"nccl_buffsize": "16"}, None, "warning", ["16 bytes"]),
    ({"nccl_buffsize": "2G"}, None, "error", ["between"]),
    ({"nccl_buffsize": "1.5M"}, None, "error", ["read it as 1"]),
    ({"nccl_buffsize": "16 megabytes"}, None, "error", ["read it as 16"]),
    ({"nccl_buffsize": "4M"}, None, "ok", []),
    ({"nccl_buffsize": "1M"}, None, "warning", ["524288", "131072"]),
    (extra(NCCL_LL_BUFFSIZE=131074), None, "error", ["power of two"]),
    (extra(NCCL_LL128_BUFFSIZE=131072), None, "error", ["120 times"]),
    (extra(NCCL_LL128_BUFFSIZE=4915200), None, "ok", []),
    (extra(NCCL_LL128_BUFFSIZE=120 * 8192), None, "ok", []),
    (extra(NCCL_WORK_FIFO_BYTES=1000), None, "error", ["power of two"]),
    ({"nccl_max_ctas": "4M"}, None, "error", ["read it as 4"]),
    # threads
    ({"nccl_nthreads": 32}, None, "error", ["64, 128, 256, 512"]),
    ({"nccl_nthreads": 1024}, None, "error", ["64, 128, 256, 512"]),
    ({"nccl_nthreads": "256"}, None, "ok", []),
    # switches
    ({"nccl_p2p_disable": 2}, None, "error", ["0, 1"]),
    ({"nccl_shm_disable": "maybe"}, None, "error", ["'maybe'", "read it as 0"]),
    ({"nccl_nvls_enable": 3}, None, "error", ["0, 1, 2"]),
    ({"nccl_cumem_enable": "2"}, None, "error", ["0, 1"]),
    # words
    ({"nccl_p2p_level": "SYS "}, None, "error", ["space"]),
    ({"nccl_p2p_level": "5"}, None, "error", ["LOC"]),
    ({"nccl_p2p_level": "PXN"}, None, "warning", ["not documented"]),
    ({"nccl_p2p_level": "SYS"}, "2.5.6", "error", ["before 2.6"]),
    (extra(NCCL_NET_GDR_LEVEL="PBH"), None, "error", ["PHB"]),
    ({"nccl_debug": "WARNING"}, None, "error", ["WARN?"]),
    ({"nccl_debug": "attn"}, "2.28.9", "error", ["2.32"]),
    ({"nccl_debug": "attn"}, "2.32.3", "ok", []),
    (extra(NCCL_DEBUG_SUBSYS="INIT,ENVS"), "2.30.7", "error", ["ENV?", "whole value"]),
    (extra(NCCL_DEBUG_SUBSYS="^INIT,GRAPH"), None, "ok", []),
    (extra(NCCL_DEBUG_SUBSYS="ALLOC_HOST"), "2.31.2", "error", ["2.29-2.30"]),
    (extra(NCCL_CTA_POLICY="efficiency|zero"), "2.29.7", "ok", []),
    (extra(NCCL_CTA_POLICY="ZERO"), "2.28.9", "error", ["2.29"]),
    (extra(NCCL_NETDEVS_POLICY="max:4"), "2.29.7", "ok", []),
    (extra(NCCL_CTA_POLICY="3"), "2.28.9", "error", ["not one of 0, 1, 2"]),
    (extra(NCCL_NETDEVS_POLICY="MAX:"), None, "error", ["AUTO, ALL, MAX:N"]),
    (extra(NCCL_RAS_TIMEOUT_FACTOR="0"), None, "error", ["a positive number"]),
    (extra(NCCL_RAS_TIMEOUT_FACTOR="10"), None, "ok", []),
    (extra(NCCL_IB_ADDR_RANGE="10.0.0.0"), None, "error", ["CIDR"]),
    (extra(NCCL_THREAD_THRESHOLDS="1 2 3"), None, "error", ["six integers"]),
    # lists of names
    ({"nccl_socket_ifname": "eth0, eth1"}, None, "error", ["space"]),
    ({"nccl_socket_ifname": "eth0,,eth1"}, None, "error", ["empty element"]),
    ({"nccl_socket_ifname": "eth0,^lo"}, None, "error", ["front"]),
    ({"nccl_socket_ifname": "=^eth0"}, None, "error", ["front"]),
    ({"nccl_socket_ifname": "e"}, None, "error", ["too short"]),
    ({"nccl_socket_ifname": "enp193s0f0np0extra"}, None, "error", ["15 characters"]),
    ({"nccl_socket_ifname": "^=docker0,lo"}, None, "ok", []),
    (extra(NCCL_IB_HCA=",".join(f"mlx5_{n}" for n in range(33))), None, "error", ["33", "32"]),
    (extra(NCCL_DEBUG_FILE="~/nccl.%h.%p"), None, "error", ["~"]),
    # text that must not reach a Python file or an environment
    ({"nccl_proto": "LL\0"}, None, "error", ["NUL"]),
    ({"nccl_debug": "INFO\x1b[2J"}, None, "error", ["control character"]),
    (extra(NCCL_GRAPH_FILE="/a\u2028b"), None, "error", ["line break"]),
    (extra(NCCL_GRAPH_FILE="/a\rb"), None, "error", ["line break"]),
    (extra(NCCL_GRAPH_FILE="/" + "a" * 1023), None, "error", ["1024", "1023"]),
    (extra(NCCL_GRAPH_FILE="/opt/my graph.xml"), None, "ok", []),
    ({"nccl_extra": "NCCL_DEBUG=INFO"}, None, "error", ["dictionary"]),
    (extra(NCCL_DEBUG={"a": 1}), None, "error", ["dict"]),
    ({"nccl_profile": "story_god"}, None, "error", ["story_good"]),
]

NAMES = [
    (extra(NCCL_MAX_NCHANELS=2), None, "error", ["NCCL_MAX_NCHANNELS"]),
    (extra(NCCL_P2P_NET_DISABLE=1), None, "error", ["vLLM"]),
    (extra(NCCL_ASYNC_ERROR_HANDLING=1), None, "error", ["TORCH_NCCL_ASYNC_ERROR_HANDLING"]),
    (extra(TORCH_NCCL_BLOCKING_WAIT=1), None, "error", ["NCCL_"]),
    (extra(nccl_debug="INFO"), None, "error", ["NCCL_DEBUG?"]),
    (extra(P2P_LEVEL="SYS"), None, "error", ["NCCL_P2P_LEVEL?"]),
    ({"nccl_extra": {"NCCL_DEBUG ": "INFO"}}, None, "error", ["NCCL_"]),
    ({"nccl_extra": {"NCCL_DEBUG\n": "INFO"}}, None, "error", ["NCCL_"]),
    (extra(NCCL_LL_THRESHOLD=0), "2.28.9", "error", ["removed in NCCL 2.5"]),
    (extra(NCCL_CREATE_THREAD_CONTEXT=1), "2.28.9", "ok", []),
    (extra(NCCL_CREATE_THREAD_CONTEXT=1), "2.30.7", "error", ["2.30.4"]),
    (extra(NCCL_CREATE_THREAD_CONTEXT=1), None, "warning", ["2.30.4"]),
    (extra(NCCL_WORK_FIFO_DEPTH=1), None, "error", ["2.21.5"]),
    (extra(NCCL_CHECK_MODE="DEBUG_LOCAL"), "2.28.9", "error", ["2.29.7"]),
    (extra(NCCL_CHECK_MODE="DEBUG_LOCAL"), None, "warning", ["2.29.7"]),
    (extra(NCCL_CHECK_MODE="debug_local"), "2.29.7", "ok", []),
    (extra(NCCL_CHECK_POINTERS=1), "2.30.7", "warning", ["NCCL_CHECK_MODE"]),
    (extra(NCCL_CHECK_POINTERS=1), "2.28.9", "ok", []),
    (extra(NCCL_PAT_ENABLE=0), "2.31.2", "error", ["gone in NCCL 2.31.2"]),
    (extra(NCCL_PAT_ENABLE=0), "2.28.9", "ok", []),
    (extra(NCCL_CFT_ENABLE=1), "2.32.3", "warning", ["documented"]),
    (extra(NCCL_PROFILE_EVENT_MASK=1), None, "warning", ["plugin"]),
    (extra(NCCL_MAX_NCHANNELS=2), "2.28.9", "warning", ["deprecated", "NCCL_MAX_CTAS"]),
    (extra(NCCL_MAX_NCHANNELS=2), "2.16.5", "ok", []),
    ({"nccl_max_ctas": 8}, "2.16.5", "error", ["2.17"]),
    ({"nccl_bufsize": "16M"}, None, "error", ["nccl_buffsize?"]),
    ({"nccl_ib_hca": "mlx5"}, None, "error", ["nccl_extra: {NCCL_IB_HCA"]),
]

TOGETHER = [
    ({"nccl_min_ctas": 8, "nccl_max_ctas": 2}, None, "error", ["maximum wins", "nccl_min_ctas and nccl_max_ctas"]),
    (extra(NCCL_MIN_P2P_NCHANNELS=8, NCCL_MAX_P2P_NCHANNELS=2), None, "error", ["minimum wins"]),
    (extra(NCCL_MIN_NRINGS=8, NCCL_MAX_NCHANNELS=2), None, "error", ["minimum wins"]),
    (extra(NCCL_MAX_NRINGS=8, NCCL_MAX_NCHANNELS=2), None, "warning", ["only read when"]),
    ({"nccl_channels": 4, "nccl_max_ctas": 8}, None, "warning", ["4 wins"]),
    ({"nccl_channels": "4-8", "nccl_min_ctas": 2}, None, "warning", ["4 wins"]),
    ({"nccl_channels": 4, "nccl_nvls_enable": 1}, None, "warning", ["NVLS", "NCCL_MAX_CTAS"]),
    ({"nccl_channels": 4, "nccl_extra": {"NCCL_MAX_NCHANNELS": 8}}, None, "error", ["different values"]),
    (extra(NCCL_MAX_P2P_NCHANNELS=6), None, "warning", ["here 8"]),
    (extra(NCCL_SOCKET_NTHREADS=16, NCCL_NSOCKS_PERTHREAD=8), None, "warning", ["128"]),
    ({"nccl_p2p_disable": 1, "nccl_p2p_level": "SYS"}, None, "warning", ["ignored"]),
    ({"nccl_proto": "LL"}, None, "warning", ["bandwidth", "NVLS"]),
    ({"nccl_proto": "Simple"}, None, "ok", []),
    ({"nccl_proto": "^LL128"}, None, "ok", []),
    ({"nccl_proto": "LL,LL128,Simple"}, None, "warning", ["data corruption", "platform"]),
    ({"nccl_proto": "^LL"}, None, "warning", ["data corruption"]),
    ({"nccl_proto": "^LL,LL128,Simple"}, None, "error", ["no protocol"]),
    ({"nccl_proto": "Simple;allreduce:LL"}, "2.28.9", "warning", ["AllReduce"]),
    ({"nccl_proto": "allreduce:LL", "nccl_buffsize": "16M"}, "2.28.9", "warning", ["AllReduce", "2097152"]),
    ({"nccl_proto": "LL,simpel"}, None, "error", ["Simple?"]),
    ({"nccl_proto": "LL,"}, None, "error", ["empty element"]),
    ({"nccl_proto": "LL,^Simple"}, None, "error", ["'^'"]),
    ({"nccl_algo": "allreduce:tree"}, "2.23.4", "error", ["before 2.24"]),
    ({"nccl_algo": "allreduce:tree"}, "2.24.3", "ok", []),
    ({"nccl_algo": "allreduce:tree;ring"}, "2.28.9", "error", ["only the first"]),
    ({"nccl_algo": "allreduce:tree:ring"}, "2.28.9", "error", ["second ':'"]),
    ({"nccl_algo": "all_reduce:tree"}, "2.28.9", "error", ["AllReduce?"]),
    ({"nccl_algo": "Tree"}, "2.23.4", "warning", ["takes Ring"]),
    ({"nccl_algo": "Tree"}, None, "error", ["2.24", "ring,tree"]),
    ({"nccl_algo": "^Ring"}, "2.28.9", "error", ["Broadcast"]),
    ({"nccl_algo": "^Tree"}, "2.31.2", "ok", []),
    ({"nccl_algo": "PAT,Ring"}, "2.22.3", "error", ["2.23"]),
    ({"nccl_algo": "PAT,Ring"}, "2.28.9", "ok", []),
    ({"nccl_algo": "allreduce:tree"}, "2.31.2", "ok", []),
    ({"nccl_algo": "allreduce:tree", "nccl_proto": "LL"}, "2.28.9", "warning", ["bandwidth"]),
    ({"nccl_algo": "allreduce:tree", "nccl_proto": "Simple"}, "2.31.2", "error", ["ring,tree;allreduce:tree"]),
    ({"nccl_algo": "allreduce:tree", "nccl_proto": "allgather:LL"}, "2.31.2", "error", ["leaves AllGather"]),
    ({"nccl_algo": "allreduce:tree", "nccl_proto": "allreduce:Simple"}, "2.31.2", "ok", []),
    ({"nccl_algo": "ring,tree;allreduce:tree", "nccl_proto": "Simple"}, "2.31.2", "ok", []),
    ({"nccl_algo": "allreduce:tree", "nccl_proto": "Simple"}, None, "warning", ["2.31"]),
    ({"nccl_algo": "allreduce:nvls", "nccl_proto": "LL"}, "2.28.9", "error", ["AllReduce", "NCCL_ALGO=ring,tree."]),
    (extra(NCCL_P2P_NVL_CHUNKSIZE="4M"), None, "warning", ["4194304 to 524288"]),
]


@pytest.mark.parametrize(("given", "nccl", "verdict", "says"), VALUES + NAMES + TOGETHER)
def test_more_cases(given, nccl, verdict, says):
    checked = check(given, nccl_version=nccl)
    said = messages(checked)
    assert checked.verdict == verdict, said
    for words in says:
        assert words in said
    if verdict != "ok":
        assert any(name in said for name in given)
    assert "\n" not in "".join(checked.errors + checked.warnings + checked.notes)


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({"nccl_channels": " 4 - 8 "}, {"NCCL_MIN_NCHANNELS": "4", "NCCL_MAX_NCHANNELS": "8"}),
        ({"nccl_channels": "0x10"}, {"NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "16"}),
        ({"nccl_channels": "unset"}, {"NCCL_MIN_NCHANNELS": None, "NCCL_MAX_NCHANNELS": None}),
        ({"nccl_buffsize": "4 MiB"}, {"NCCL_BUFFSIZE": "4194304"}),
        ({"nccl_buffsize": 8388608}, {"NCCL_BUFFSIZE": "8388608"}),
        ({"nccl_p2p_disable": True}, {"NCCL_P2P_DISABLE": "1"}),
        ({"nccl_ib_disable": "no"}, {"NCCL_IB_DISABLE": "0"}),
        ({"nccl_nvls_enable": "yes"}, {"NCCL_NVLS_ENABLE": "1"}),
        ({"nccl_p2p_level": 4}, {"NCCL_P2P_LEVEL": "SYS"}),
        (extra(NCCL_NET_GDR_LEVEL="phb"), {"NCCL_NET_GDR_LEVEL": "PHB"}),
        ({"nccl_debug": "info"}, {"NCCL_DEBUG": "INFO"}),
        ({"nccl_proto": "simple"}, {"NCCL_PROTO": "Simple"}),
        ({"nccl_algo": "RING,tree;AllReduce:TREE"}, {"NCCL_ALGO": "ring,tree;allreduce:tree"}),
        ({"nccl_channels": None, "nccl_proto": "", "nccl_algo": "none", "nccl_extra": {}, "nccl_profile": None}, {}),
        (extra(NCCL_NET_PLUGIN="none", NCCL_DEBUG="none"), {"NCCL_NET_PLUGIN": "none"}),
        (extra(NCCL_MAX_CHANNELS="unset"), {"NCCL_MAX_CHANNELS": None}),
    ],
)
def test_rendered(given, settings):
    checked = check(given)
    assert checked.settings == settings, messages(checked)
    assert checked.errors == []


@pytest.mark.parametrize(
    ("given", "server", "versions", "verdict", "says", "cannot_matter"),
    [
        ({"nccl_channels": 2}, {"tp": 8, "link": "NVLink"}, {}, "warning", ["custom all-reduce"], True),
        ({"nccl_channels": 2}, NVLINK_8, {}, "ok", [], False),
        ({"nccl_channels": 2}, {"tp": 8, "link": "PCIe with P2P"}, {}, "ok", [], False),
        ({"nccl_channels": 2}, {"tp": 2, "link": "PCIe"}, {}, "ok", [], False),
        ({"nccl_channels": 2}, {"tp": 4, "custom_all_reduce": True}, {}, "warning", ["not known"], False),
        ({"nccl_channels": 2}, {"tp": 3, "link": "NVLink", "custom_all_reduce": True}, {}, "ok", [], False),
        ({"nccl_channels": 2}, {"tp": 8, "nnodes": 2, "link": "NVLink", "custom_all_reduce": True}, {}, "ok", [], False),
        ({"nccl_channels": 2}, {"tp": 8, "link": "NVLink", "symm_mem": True}, {}, "warning", ["channels of NVLS"], False),
        ({"nccl_max_ctas": 2}, {"tp": 8, "link": "NVLink", "symm_mem": True}, {}, "ok", [], False),
        ({"nccl_channels": 2}, NVLINK_8 | {"enable_torch_symm_mem": True}, {}, "warning", ["torch symmetric memory"], False),
        ({"nccl_debug": "INFO"}, {"tp": 8, "link": "NVLink"}, {}, "ok", [], False),
        ({"nccl_channels": 2}, {"tp": "1"}, {}, "warning", ["one GPU", "cannot matter"], True),
        ({"nccl_channels": 2}, {"tp": 1, "pp": 2}, {}, "warning", ["send/recv"], False),
        ({"nccl_channels": 2}, {"tp": "eight"}, {}, "ok", [], False),
        ({"nccl_channels": 2}, DETERMINISTIC_8, {"sglang_version": "0.5.16"}, "ok", [], False),
        ({"nccl_algo": "Ring"}, DETERMINISTIC_8, {"sglang_version": "0.5.16"}, "warning",
         ["overwritten", "allreduce:tree"], True),
        ({"nccl_algo": "allreduce:Tree"}, DETERMINISTIC_8, {"sglang_version": "0.5.16"}, "ok", [], False),
        ({"nccl_proto": "Simple"}, DETERMINISTIC_8, {"nccl_version": "2.31.2"}, "error",
         ["Broadcast", "nccl_proto"], False),
        ({"nccl_channels": "8-8"}, {"enable_deterministic_inference": True}, {"sglang_version": "0.5.23"}, "ok", [], False),
        ({"nccl_channels": 2}, {"enable_deterministic_inference": True, "environment": {"SGLANG_DETERMINISTIC_NCCL_NCHANNELS": "4"}},
         {"sglang_version": "0.5.23"}, "warning", ["NCCL_MAX_NCHANNELS=4"], True),
        ({"nccl_cumem_enable": 0}, NVLINK_8 | {"symm_mem": True}, {}, "warning", ["overwritten", "--enable-symm-mem"], True),
        ({"nccl_nvls_enable": 0}, NVLINK_8 | {"enable_nccl_nvls": True}, {}, "warning", ["--enable-nccl-nvls"], True),
        ({"nccl_algo": "ring;allreduce:nvls"}, NVLINK_8, {"nccl_version": "2.28.9"}, "warning", ["nccl_nvls_enable=1"], False),
        ({"nccl_buffsize": "2M"}, {"tp": 4, "link": "PCIe"}, {}, "ok", [], False),
        ({"nccl_buffsize": "2M"}, NVLINK_8, {}, "warning", ["262144"], False),
        ({}, {"tp": 1}, {}, "ok", [], False),
    ],
)
def test_server(given, server, versions, verdict, says, cannot_matter):
    checked = check(given, server=server, **versions)
    assert checked.verdict == verdict, messages(checked)
    for words in says:
        assert words in messages(checked)
    assert bool(checked.cannot_matter) == cannot_matter


def test_what_sglang_would_set_is_the_baseline():
    assert check({"nccl_nvls_enable": 1, "nccl_channels": 2}, server={}).replaces == {"NCCL_NVLS_ENABLE": "0"}
    assert check({"nccl_nvls_enable": 1}).replaces == {}
    assert check({"nccl_nvls_enable": 1}, server={"symm_mem": True}).replaces == {}
    assert check(extra(NCCL_GRAPH_REGISTER=1), server={}, sglang_version="0.5.20").replaces == {"NCCL_GRAPH_REGISTER": "0"}
    assert check(extra(NCCL_GRAPH_REGISTER=1), server={}, sglang_version="0.5.16").replaces == {}


def test_what_sglang_overwrites_is_not_blamed_on_the_user():
    checked = check({"nccl_algo": "Ring", "nccl_proto": "Simple"}, server=DETERMINISTIC_8, nccl_version="2.31.2")
    (error,) = checked.errors
    assert error.startswith("nccl_proto: NCCL_ALGO=allreduce:tree")
    assert checked.cannot_matter is None


def test_factors():
    checked = check({"nccl_channels": 2, "nccl_extra": {"NCCL_IB_TC": 1, "NCCL_DEBUG": "INFO"}, "nccl_proto": None})
    assert checked.factors == {
        "nccl_channels": {"NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "2"}, "NCCL_IB_TC": {"NCCL_IB_TC": "1"},
        "NCCL_DEBUG": {"NCCL_DEBUG": "INFO"},
    }


def test_a_profile_is_one_factor_and_single_variables_win_over_it():
    checked = check({"nccl_channels": 2, "nccl_profile": "story_good"}, nccl_version="2.28.9")
    assert checked.errors == []
    assert checked.factors["nccl_channels"] == {"NCCL_MAX_NCHANNELS": "2", "NCCL_MIN_NCHANNELS": "1"}
    assert "NCCL_MAX_NCHANNELS" not in checked.factors["nccl_profile"]
    assert checked.settings["NCCL_BUFFSIZE"] == "16777216"
    assert any("nccl_profile" in note for note in checked.notes)


@pytest.mark.parametrize("profile", nccl_names.profiles())
def test_shipped_profiles_are_valid_in_every_version_of_today(profile):
    for version in (None, "2.27.7", "2.28.9", "2.30.7", "2.31.2", "2.32.3"):
        checked = check({"nccl_profile": profile}, nccl_version=version)
        assert checked.errors == []
        assert checked.settings == nccl_names.profiles()[profile]["settings"]


def test_default_profile_takes_out_what_is_in_force():
    checked = check({"nccl_profile": "nccl_default"}, in_force={"NCCL_PROTO": "LL", "NCCL_NOT_A_NAME": "1"})
    assert checked.factors == {"nccl_profile": {"NCCL_PROTO": None, "NCCL_NOT_A_NAME": None}}
    assert checked.errors == []


def test_rules_see_what_is_in_force_but_blame_only_what_is_given():
    in_force = {"NCCL_MIN_CTAS": "8", "NCCL_PROTO": "LL", "NCCL_ALGO": "Rings, no", "NCCL_NTHREADS": "lots"}
    above = check({"nccl_max_ctas": 4}, in_force=in_force)
    assert [error for error in above.errors if "maximum wins" in error]
    assert "NCCL_PROTO" not in messages(above)
    assert check({"nccl_max_ctas": 8}, in_force=in_force).verdict == "ok"
    assert check({"nccl_max_ctas": 4, "nccl_min_ctas": "unset"}, in_force=in_force).verdict == "ok"


def test_rank_differences():
    same = {"NCCL_PROTO": "LL", "NCCL_SOCKET_IFNAME": "eth0"}
    assert rank_differences({0: same, 1: {**same, "NCCL_SOCKET_IFNAME": "eth1"}}) == []
    (found,) = rank_differences({0: same, 1: {}})
    assert "NCCL_PROTO" in found
    assert "1: None" in found


@pytest.mark.parametrize(
    ("text", "number"), [("16M", 16), ("1e3", 1), ("010", 8), ("0x10", 16), ("2_000", 2), ("7 ", 7), ("true", 0), ("-3", -3), ("089", 0)]
)
def test_nccl_reads_integers_as_measured(text, number):
    assert nccl_reads(text) == number


@pytest.mark.parametrize(
    ("text", "version"), [("2.28.9", (2, 28, 9)), ("2.28.9-1", (2, 28, 9)), ("v2.31", (2, 31)), ("2.28.9+cuda13", (2, 28, 9)), ("?", None)],
)
def test_versions(text, version):
    assert parse_version(text) == version


def test_the_catalogue_is_whole_and_quick_to_load():
    nccl_names.catalogue.cache_clear()
    start = time.perf_counter()
    known = nccl_names.catalogue()
    first_s = time.perf_counter() - start
    assert first_s < 0.5
    assert nccl_names.catalogue() is known
    assert len(known["params"]) == 282
    assert {name for names in VARIABLES.values() for name in names} <= set(known["params"])
    assert all(variable.startswith("nccl_") for variable in FACTOR_VARIABLES)
    kinds = {"int", "bool", "enum", "list", "str", "path"}
    assert all(param["kind"] in kinds and param["source"] for param in known["params"].values())


def test_every_numeric_default_is_accepted():
    for name, param in nccl_names.catalogue()["params"].items():
        default = param.get("default")
        if default is not None and not param.get("unverified") and not (param["kind"] == "bool" and default < 0):
            checked = check({name: default}, nccl_version=None if param.get("gone_by") else "2.32.3")
            assert checked.errors == [], name

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NCCL's log: data/nccl_logs holds what real libraries wrote: ranks of two H200 (2.28.9), and ncclGetUniqueId of four versions
without a GPU, asked by NCCL_SOCKET_IFNAME=lo, NCCL_GDRCOPY_ENABLE=0x10 and a conf file with NCCL_SOCKET_FAMILY=AF_INET."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import nccl_log, proof
from ansible_collections.ringmaster.gpu.plugins.module_utils.procfs import Process

DATA = Path(__file__).parent / "data" / "nccl_logs"
H200 = DATA / "2.28.9-two-h200-rank0.log"
SUMMARY = "{0} coll channels, {0} collnet channels, 0 nvls channels, 32 p2p channels, 2 p2p channels per peer"


def written(tmp_path, *lines, pid=7, thread=7, name=None):
    text = "".join(line if line.endswith("\n") else f"gpuhost:{pid}:{thread} [0] NCCL INFO {line}\n" for line in lines)
    (tmp_path / (name or f"nccl.gpuhost.{pid}")).write_text(text)
    return tmp_path


def one(tmp_path, *lines):
    (capture,) = nccl_log.read(str(written(tmp_path, *lines))).values()
    return capture


def test_a_capture_writes_one_file_a_process():
    assert nccl_log.environment("/state/nccl", {"NCCL_ALGO": "Ring"}) == {
        "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,TUNING", "NCCL_DEBUG_FILE": "/state/nccl/nccl.%h.%p",
    }  # fmt: skip
    assert nccl_log.declined({"NCCL_ALGO": "Ring"}) is None


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "NCCL_DEBUG_FILE"])
def test_the_users_own_log_wins(name):
    assert nccl_log.environment("/state/nccl", {name: "WARN"}) == {}
    assert f"{name}=WARN" in nccl_log.declined({name: "WARN"})


def test_a_real_rank():
    (pid, capture), *others = nccl_log.read_file(str(H200)).items()
    assert (pid, others) == (618, [])
    assert {key: capture[key] for key in ("version", "rank", "ranks", "complete", "settings", "p2p_chunk_bytes", "transports")} == {
        "version": "2.28.9+cuda13.0", "rank": 0, "ranks": 2, "complete": True, "settings": {"NCCL_NVLS_ENABLE": "0"},
        "p2p_chunk_bytes": 524288, "transports": {"P2P/CUMEM": 24},
    }  # fmt: skip
    assert capture["channels"] == {"coll": 24, "collnet": 24, "nvls": 0, "p2p": 32, "p2p_per_peer": 32}
    assert capture["max_threads"]["Ring"] == capture["max_threads"]["Tree"] == {"LL": 512, "LL128": 640, "Simple": 512}
    assert capture["max_threads"]["NVLS"] == {"Simple": 640}
    assert "PAT" not in capture["max_threads"]
    assert [(row["bytes"][0], row["protocol"], row["channels"], row["count"]) for row in capture["collectives"]] == [
        (8192, "LL", 1, 71), (16384, "LL", 2, 71), (43008, "LL", 5, 71), (131072, "LL", 16, 71), (1048576, "LL", 24, 71),
        (16777216, "Simple", 24, 71),
    ]  # fmt: skip
    assert nccl_log.summary(capture) == {
        "version": "2.28.9+cuda13.0", "ranks": 2, "channels": 24, "p2p_chunk_bytes": 524288, "transports": ["P2P/CUMEM"],
        "collectives": {
            "AllReduce Ring LL": {"bytes": [8192, 1048576], "channels": [1, 24], "count": 355, "threads": 512},
            "AllReduce Ring Simple": {"bytes": [16777216, 16777216], "channels": [24, 24], "count": 71, "threads": 512},
        },
    }  # fmt: skip


@pytest.mark.parametrize("version", ["2.27.7", "2.28.9", "2.30.7", "2.32.3"])
def test_every_version_says_what_it_reads(tmp_path, version):
    shutil.copy(DATA / f"{version}-unique-id.log", tmp_path / "nccl.gpuhost.1")
    (capture,) = nccl_log.read(str(tmp_path)).values()
    assert capture["settings"] == {"NCCL_GDRCOPY_ENABLE": "16", "NCCL_SOCKET_FAMILY": "AF_INET", "NCCL_SOCKET_IFNAME": "lo"}
    assert (capture["complete"], capture["communicators"], capture["warnings"]) == (False, [], [])


@pytest.mark.parametrize("version", ["2.27.7", "2.30.7"])
def test_warnings_have_a_time_in_front_and_later_a_function(version):
    (capture,) = nccl_log.read_file(str(DATA / f"{version}-no-interface.log")).values()
    assert capture["warnings"] == ["Bootstrap : no socket interface found"]


def test_a_value_that_was_refused():
    (capture,) = nccl_log.read_file(str(DATA / "2.32.3-invalid-value.log")).values()
    assert capture["invalid"] == ["Invalid value true for NCCL_GDRCOPY_ENABLE, using default 0."]
    assert "NCCL_GDRCOPY_ENABLE" not in capture["settings"]


def test_the_real_log_cut_off_anywhere(tmp_path):
    whole = H200.read_bytes()
    ends = [at + shift for at, byte in enumerate(whole[:12000]) if byte == 10 for shift in (0, 1, 17)]
    for end in [*ends, len(whole) - 3]:
        (tmp_path / "nccl.gpuhost.618").write_bytes(whole[:end])
        for capture in nccl_log.read(str(tmp_path)).values():
            assert capture["channels"].get("coll", 24) == 24
            assert capture["complete"] == (b"Init COMPLETE\n" in whole[:end])
            assert capture["p2p_chunk_bytes"] in (None, 524288)
            assert set(capture["settings"].values()) <= {"0"}
    assert sum(row["count"] for row in capture["collectives"]) == 6 * 71 - 1


def test_half_a_number_is_no_number(tmp_path):
    (tmp_path / "nccl.gpuhost.7").write_text("gpuhost:7:7 [0] NCCL INFO NCCL_NTHREADS set by environment to 5")
    assert nccl_log.read(str(tmp_path)) == {}
    assert nccl_log.read(str(tmp_path / "none")) == {}


def test_ranks_in_one_log_are_kept_apart(tmp_path):
    prefix = "gpuhost:{0}:{0} [{1}] NCCL INFO "
    lines = [
        line
        for text in ("comm 0x1 rank {1} nranks 2 cudaDev {1} busId 60 - Init START\n", SUMMARY.format(2) + "\n",
                     "NCCL_MAX_NCHANNELS set by environment to 2.\n", "comm 0x1 rank {1} nranks 2 cudaDev {1} busId 60 - Init COMPLETE\n")
        for line in (prefix.format(pid, rank) + text.replace("{1}", str(rank)) for pid, rank in ((10, 0), (11, 1)))
    ]  # fmt: skip
    found = nccl_log.read(str(written(tmp_path, *lines, name="all.log")))
    assert {pid: (capture["rank"], capture["channels"]["coll"], capture["settings"]) for pid, capture in found.items()} == {
        10: (0, 2, {"NCCL_MAX_NCHANNELS": "2"}), 11: (1, 2, {"NCCL_MAX_NCHANNELS": "2"}),
    }  # fmt: skip


def test_the_largest_finished_communicator_speaks_for_a_process(tmp_path):
    capture = one(
        tmp_path,
        "ncclCommInitRankConfig comm 0x1 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 60 commId 0xa - Init START",
        SUMMARY.format(8),
        "ncclCommInitRankConfig comm 0x1 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 60 commId 0xa - Init COMPLETE",
        "[Rank 5] ncclCommSplit comm 0x2 rank 5 nranks 8 cudaDev 1 nvmlDev 1 busId 60 parent 0x1 splitCount 1 color 0 key 5- Init START",
        SUMMARY.format(16),
        "P2P Chunksize set to 131072",
        "ncclCommSplit comm 0x2 rank 5 nranks 8 cudaDev 1 nvmlDev 1 busId 60 parent 0x1 splitCount 1 color 0 key 5 - Init COMPLETE",
        "ncclCommInitRank comm 0x3 rank 5 nranks 16 cudaDev 1 nvmlDev 1 busId 60 commId 0xb - Init START",
    )
    assert [(one["rank"], one["ranks"], one["complete"], one["channels"].get("coll")) for one in capture["communicators"]] == [
        (1, 2, True, 8), (5, 8, True, 16), (5, 16, False, None),
    ]  # fmt: skip
    assert (capture["rank"], capture["ranks"], capture["channels"]["coll"], capture["p2p_chunk_bytes"]) == (5, 8, 16, 131072)


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("AllReduce: 43008 Bytes -> Algo Ring proto LL channel{Lo..Hi}={0..1}", ("AllReduce", "Ring", "LL", 2)),
        ("AllReduce: 43008 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={4..7} cgaClusterSize 4", ("AllReduce", "Ring", "Simple", 4)),
        ("AllGather: 43008 Bytes -> Algo COLLNET_DIRECT proto SIMPLE channel{Lo..Hi}={0..0}", ("AllGather", "CollNetDirect", "Simple", 1)),
        ("AllReduce: 43008 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={0..15}", ("AllReduce", "NVLSTree", "Simple", 16)),
        ("43008 Bytes -> Algo 1 proto 0 time 12.3", (None, "Ring", "LL", None)),
        ("AllReduce [Symmetric]: 43008 Bytes -> Kernel AllReduce_AGxLL_R nchannels 8 nthreads 512 nWorks 1",
         ("AllReduce", "Symmetric", None, 8)),
        ("AllGather [Copy Engine]: 43008 Bytes -> cudaMemcpyBatchAsync", ("AllGather", "Copy Engine", None, None)),
    ],
)  # fmt: skip
def test_collectives_in_every_wording(tmp_path, line, row):
    capture = one(tmp_path, line, line)
    names = dict(zip(("function", "algorithm", "protocol", "channels"), row, strict=True))
    assert capture["collectives"] == [{**names, "bytes": [43008, 43008], "count": 2}]


def test_collectives_are_folded_and_the_memory_for_them_bounded(tmp_path):
    lines = (f"AllReduce: {size} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..{size % 24}}}" for size in range(1, 20001))
    rows = one(tmp_path, *lines)["collectives"]
    assert sum(row["count"] for row in rows) == 20000
    assert len(rows) < 24 * 15
    assert (min(row["bytes"][0] for row in rows), max(row["bytes"][1] for row in rows)) == (1, 20000)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("NCCL_MIN_NCHANNELS set by environment to 1.", "1"),
        ("NCCL_MIN_NCHANNELS set by environment to -2.", "-2"),
        ("NCCL_MIN_NCHANNELS set by environment to 1", "1"),
        ("NCCL_TOPO_FILE set by environment to /etc/topo.", "/etc/topo."),
        ("NET/IB: NCCL_IB_RAIL_POLICY set by environment to a, b", "a, b"),
    ],
)
def test_settings_with_and_without_a_dot(tmp_path, line, value):
    assert list(one(tmp_path, line)["settings"].values()) == [value]


def test_channel_counts_in_older_wordings(tmp_path):
    older = one(tmp_path, "16 coll channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer")
    assert older["channels"] == {"coll": 16, "nvls": 0, "p2p": 16, "p2p_per_peer": 2}
    made = "comm 0x1 rank 0 nranks 2 cudaDev 0 busId 60 - Init "
    connected = "Channel 00 : 0[60] -> 1[70] via P2P/IPC/read"
    rings = one(tmp_path, made + "START", "Channel 00/02 :    0   1", "Channel 01/02 :    0   1", connected, made + "COMPLETE")
    assert (rings["channels"], rings["transports"], rings["complete"]) == ({"coll": 2}, {"P2P/IPC": 1}, True)


def test_thread_tables_before_2_24(tmp_path):
    head = "  Latency/AlgBw |    Tree/    LL |    Tree/ LL128 |    Tree/Simple |    Ring/    LL |    Ring/ LL128 |    Ring/Simple |"
    row = "   Max NThreads |            512 |            640 |            512 |             64 |            640 |              0 |"
    assert one(tmp_path, head, row)["max_threads"] == {"Tree": {"LL": 512, "LL128": 640, "Simple": 512}, "Ring": {"LL": 64, "LL128": 640}}


def test_what_the_lists_leave_enabled(tmp_path):
    capture = one(
        tmp_path,
        "NCCL_PROTO set by environment to ^LL128",
        "Enabled NCCL Func/Proto/Algo Matrix:",
        "     Function |       LL     LL128    Simple   |          Tree           Ring  CollNetDirect  \n",
        "    Broadcast |        1         0         1   |             0              1              0  \n",
        "    AllReduce |        1         0         1   |             1              1     gpuhost:9:9 [3] NCCL INFO other\n",
        "ReduceScatter |        0         0         2   |             0              1              0  \n",
    )
    assert capture["algorithms"] == {
        "Broadcast": {"protocols": ["LL", "Simple"], "algorithms": ["Ring"]},
        "ReduceScatter": {"protocols": ["Simple"], "algorithms": ["Ring"]},
    }


def test_garbage_is_passed_over(tmp_path):
    (tmp_path / "a").write_bytes(b"\x00\xff" * 100000 + b"\nnot a line\n:::: [x] NCCL INFO NCCL_X set by environment to 1\n")
    (tmp_path / "b").symlink_to("/dev/zero")
    assert nccl_log.read(str(tmp_path)) == {}


FEW_CHANNELS = {
    "NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS", "NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "2",
    "NCCL_BUFFSIZE": "131072", "NCCL_NTHREADS": "64",
}  # fmt: skip


def test_a_profile_is_proven_on_both_ranks_of_two_h200():
    """Files of two H200 that served with the profile; of rank 0 all but 40 lines of each kind of collective were taken out."""
    captures = {}
    for rank in (0, 1):
        captures.update(nccl_log.read_file(str(DATA / f"2.28.9-few-channels-rank{rank}.log")))
    ranks = {f"sglang::scheduler_TP{capture['rank']}": Process(pid, "python", "S", 1, 1, 0, 0.0, 0, 0) for pid, capture in captures.items()}
    effective = proof.effective(ranks, 1, {}, configured=FEW_CHANNELS, given={}, captures=captures, environ=lambda _pid: None)
    assert proof.problems(FEW_CHANNELS, effective, 2) == proof.felt(FEW_CHANNELS, captures) == []
    assert {values[name]["proof"] for values in effective.values() for name in FEW_CHANNELS} == {"nccl log"}
    for capture in captures.values():
        said = nccl_log.summary(capture)
        assert (said["ranks"], said["channels"], said["p2p_chunk_bytes"]) == (2, 2, 16384)
    leading = next(nccl_log.summary(capture) for capture in captures.values() if capture["rank"] == 0)
    assert set(leading["collectives"]) == {"AllGather Ring LL", "AllReduce Ring LL"}
    assert {(row["threads"], max(row["channels"])) for row in leading["collectives"].values()} == {(64, 2)}
    assert len(proof.problems({**FEW_CHANNELS, "NCCL_MAX_NCHANNELS": "1"}, effective, 2)) == 2

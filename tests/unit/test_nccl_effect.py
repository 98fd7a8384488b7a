# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What NCCL's log shows of the effect of settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import nccl_effect, nccl_log

(H200,) = nccl_log.read_file(str(Path(__file__).parent / "data" / "nccl_logs" / "2.28.9-two-h200-rank0.log")).values()


def row(algorithm="Ring", protocol="LL", size=8192, function="AllReduce", channels=2):
    return {"function": function, "bytes": [size, size], "algorithm": algorithm, "protocol": protocol, "channels": channels, "count": 1}


def against(asked, **more):
    return nccl_effect.speaks_against(asked, {618: {**H200, **more}})


def idle(asked, *rows, **more):
    return nccl_effect.without_effect(asked, {618: {**H200, **({"collectives": list(rows)} if rows else {}), **more}})


@pytest.mark.parametrize(
    ("settings", "more", "said"),
    [
        ({"NCCL_MAX_NCHANNELS": "2"}, {}, "24 channels for collectives, in spite of NCCL_MAX_NCHANNELS=2"),
        ({"NCCL_MAX_NCHANNELS": "2"}, {"channels": {"coll": 2}}, None),
        ({"NCCL_MAX_NCHANNELS": "2"}, {"channels": {"coll": 1}}, None),
        ({"NCCL_MAX_NCHANNELS": "24"}, {}, None),
        ({"NCCL_MAX_NCHANNELS": "0"}, {"channels": {"coll": 1}}, None),
        ({"NCCL_MAX_NCHANNELS": "2", "NCCL_MIN_NCHANNELS": "24"}, {}, None),  # the minimum wins
        ({"NCCL_MAX_NCHANNELS": "2"}, {"settings": {"NCCL_MIN_NCHANNELS": "24"}}, None),  # also one from elsewhere
        ({"NCCL_MAX_NCHANNELS": "2"}, {"channels": {"coll": 16, "nvls": 16}}, None),
        ({"NCCL_MAX_NCHANNELS": "2"}, {"channels": {}}, None),
        ({"NCCL_MIN_NCHANNELS": "32"}, {}, "24 channels"),
        ({"NCCL_MIN_NCHANNELS": "1"}, {}, None),
        ({"NCCL_MAX_CTAS": "8"}, {}, "24 channels"),
        ({"NCCL_MIN_CTAS": "32", "NCCL_MAX_CTAS": "24"}, {}, None),  # the maximum wins
        ({"NCCL_NTHREADS": "64"}, {}, "512 threads"),
        ({"NCCL_NTHREADS": "64"}, {"max_threads": {"Ring": {"LL": 64}}}, None),
        ({"NCCL_NTHREADS": "512"}, {}, None),
        ({"NCCL_NTHREADS": "100"}, {}, None),  # NCCL then takes the most
        ({"NCCL_NTHREADS": "64"}, {"max_threads": {}}, None),
        ({"NCCL_BUFFSIZE": "131072"}, {}, "chunks of 524288 bytes"),
        ({"NCCL_BUFFSIZE": "131072"}, {"p2p_chunk_bytes": 16384}, None),
        ({"NCCL_BUFFSIZE": "16777216"}, {}, None),
        ({"NCCL_ALGO": "Tree"}, {}, "AllReduce with Ring and LL"),
        ({"NCCL_ALGO": "ring"}, {}, None),
        ({"NCCL_ALGO": "^Ring"}, {}, "AllReduce with Ring"),
        ({"NCCL_ALGO": "ring;allreduce:tree"}, {}, "AllReduce with Ring"),
        ({"NCCL_ALGO": "tree;allreduce:tree,ring"}, {}, None),
        ({"NCCL_ALGO": "broadcast:tree"}, {}, None),
        ({"NCCL_ALGO": "Tree"}, {"collectives": [row("Symmetric", None)]}, None),
        ({"NCCL_PROTO": "LL"}, {}, "AllReduce with Ring and Simple"),
        ({"NCCL_PROTO": "^LL128"}, {}, None),
        ({"NCCL_PROTO": "LL128"}, {}, "AllReduce with Ring and LL,"),
        ({"NCCL_P2P_DISABLE": "1"}, {}, "connections by P2P/CUMEM"),
        ({"NCCL_P2P_DISABLE": "0"}, {}, None),
        ({"NCCL_P2P_DISABLE": "1"}, {"transports": {"SHM/direct": 4}}, None),
        ({"NCCL_MAX_NCHANNELS": None}, {}, None),
        ({"NCCL_MAX_NCHANNELS": "2"}, {"ranks": 1}, None),
    ],
)
def test_speaks_against(settings, more, said):
    found = against(settings, **more)
    assert (said in found[0] and len(found) == 1) if said else found == []


@pytest.mark.parametrize(
    ("settings", "rows", "more", "names"),
    [
        ({"NCCL_BUFFSIZE": "131072"}, (), {}, set()),  # the real one has a large all-reduce with Simple
        ({"NCCL_BUFFSIZE": "131072"}, [row()], {}, {"NCCL_BUFFSIZE"}),
        ({"NCCL_LL_BUFFSIZE": "1"}, [row()], {}, set()),
        ({"NCCL_LL128_BUFFSIZE": "1", "NCCL_ALGO": "Ring"}, [row()], {}, {"NCCL_LL128_BUFFSIZE"}),
        ({"NCCL_NTHREADS": "64"}, [row()], {}, set()),
        ({"NCCL_NTHREADS": "64"}, [row(protocol="LL128"), row("NVLS", "Simple")], {}, {"NCCL_NTHREADS"}),
        ({"NCCL_NVLS_ENABLE": "1"}, [row()], {}, {"NCCL_NVLS_ENABLE"}),
        ({"NCCL_NVLS_ENABLE": "0"}, [row()], {}, set()),
        ({"NCCL_P2P_LEVEL": "SYS"}, [row()], {}, set()),
        ({"NCCL_P2P_LEVEL": "SYS"}, [row()], {"transports": {"SHM/direct": 4}}, {"NCCL_P2P_LEVEL"}),
        ({"NCCL_P2P_LEVEL": "LOC"}, [row()], {"transports": {"SHM/direct": 4}}, set()),
        # a warm-up of 4 bytes and what is too large for custom all-reduce: the decode steps have gone past NCCL
        ({"NCCL_ALGO": "Tree", "NCCL_DEBUG": "INFO"}, [row(size=4), row(size=16 << 20), row(function="AllGather")], {}, {"NCCL_ALGO"}),
        ({"NCCL_MAX_P2P_NCHANNELS": "2"}, [row(size=4)], {}, set()),  # pipeline parallelism may feel it
        ({"NCCL_ALGO": "Ring"}, [row("Symmetric", None)], {}, set()),
        ({"NCCL_ALGO": "Tree"}, [row(size=4)], {"version": None}, set()),  # not known to log them
        ({"NCCL_ALGO": "Tree"}, [row(size=4)], {"version": "2.21.5+cuda12.4"}, set()),
        ({"NCCL_ALGO": "Tree"}, [row(size=4)], {"complete": False}, set()),
        ({"NCCL_ALGO": "Tree"}, [row(size=4)], {"rank": 1}, set()),
        ({"NCCL_ALGO": None}, [row(size=4)], {}, set()),
    ],
)  # fmt: skip
def test_without_effect(settings, rows, more, names):
    assert set(idle(settings, *rows, **more)) == names


@pytest.mark.parametrize(
    ("text", "number"),
    [("16", 16), ("16M", 16), ("1e3", 1), ("010", 8), ("0x10", 16), ("2_000", 2), ("-2", -2), (" 5", 5), ("0", 0), ("08", 0), ("abc", None),
     ("", None), (None, None)],
)  # fmt: skip
def test_numbers_as_nccl_reads_them(text, number):
    assert nccl_effect.integer(text) == number

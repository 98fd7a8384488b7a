# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who went first, and what that makes of a trial."""

from __future__ import annotations

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import outcome, server_log
from ansible_collections.ringmaster.gpu.plugins.module_utils.server import Died
from ansible_collections.ringmaster.gpu.plugins.module_utils.waiting import Hung

SCHEDULER = "sglang::scheduler_TP1"
LOADING = (
    "[2026-11-30 10:00:00] server_args=ServerArgs(model_path='/m', tp_size=2)\n"
    "[2026-11-30 10:00:05 TP1] Load weight begin. avail mem=9 GB\n"
)
SERVING = LOADING + "[2026-11-30 10:00:09] The server is fired up and ready to roll!\n"
DRAINED = SERVING + "[2026-11-30 10:01:00] Gracefully exiting... Remaining number of requests 0.\n"


@pytest.fixture
def reader(tmp_path):
    def reading(text):
        (tmp_path / "server.log").write_text(text)
        return server_log.LogReader(str(tmp_path / "server.log"))

    return reading


@pytest.mark.parametrize(
    ("death", "launcher_exit", "was_ready", "log", "says"),
    [
        (Died(SCHEDULER, -9), None, False, LOADING, ("crashed", "subprocess_killed", "signal 9")),
        (Died(SCHEDULER, -9), None, True, SERVING, ("killed", "subprocess_killed", "signal 9")),
        (Died(SCHEDULER, -11), None, True, SERVING, ("killed", "subprocess_signal", "signal 11")),
        (Died(SCHEDULER, -9), -15, False, LOADING, ("crashed", "subprocess_signal", "launcher was killed by signal 15")),
        (Died("launcher", -9), -9, False, LOADING, ("crashed", "silent", "ended without a message during weights")),
        (Died("launcher", 0), 0, True, SERVING, ("killed", "stopped", "stopped from outside")),
        (Died(SCHEDULER, 0), -9, True, DRAINED, ("killed", "stopped", "stopped from outside")),
    ],
)
def test_died(reader, death, launcher_exit, was_ready, log, says):
    found = outcome.died(death, reader(log), launcher_exit=launcher_exit, was_ready=was_ready)
    assert (found["outcome"], found["cause"]["signature"]) == says[:2]
    assert says[2] in found["cause"]["summary"]


def test_the_kernels_word_is_the_cause(reader):
    lines = ["Out of memory: Killed process 4242 (sglang::schedul)"]
    found = outcome.died(Died(SCHEDULER, -9), reader(LOADING), launcher_exit=None, was_ready=False, kernel_lines=lines)
    assert "host out of memory" in found["cause"]["summary"]
    assert found["cause"]["evidence"][0]["line"] == lines[0]


def test_a_full_disk_explains_silence_and_nothing_else(reader):
    silent = outcome.died(Died("launcher", -9), reader(LOADING), launcher_exit=-9, was_ready=False, full_disk="/state/trials/1")
    assert silent["cause"]["signature"] == "disk_full"
    assert "/state/trials/1" in silent["cause"]["summary"]
    spoken = LOADING + "launch_server.py: error: unrecognized arguments: --no-such-flag\n"
    found = outcome.died(Died("launcher", 2), reader(spoken), launcher_exit=2, was_ready=False, full_disk="/state/trials/1")
    assert found["cause"]["signature"] == "flag_unknown"


def test_hung_says_where_and_what_to_change(reader):
    log = reader(LOADING)
    log.poll()
    found = outcome.hung(Hung(301.0, "its port is closed"), log, was_ready=False, log="/l", stall_timeout_s=300)
    assert found["outcome"] == "hung"
    assert found["cause"]["summary"] == "no progress for 301 s in phase weights; its port is closed"
    assert "/l" in found["cause"]["advice"]
    assert "tune_stall_timeout_s (now 300)" in found["cause"]["advice"]
    later = outcome.hung(Hung(301.0, "no more"), log, was_ready=True, log="/l", stall_timeout_s=300)
    assert "while it was measured" in later["cause"]["summary"]


@pytest.mark.parametrize(
    ("said", "text", "says"),
    [
        ({"outcome": "hung", "reason": "no sum after 60 s"}, "", ("hung", "no sum after 60 s", "peer-to-peer")),
        ({"outcome": "failed", "reason": "rank 0 ended with 1"},
         "Traceback (most recent call last):\ntorch.distributed.DistBackendError: NCCL error, ncclInvalidUsage: This usually reflects "
         "invalid usage of NCCL library.\n", ("crashed", "NCCL", "nccl_")),
    ],
)  # fmt: skip
def test_no_all_reduce(reader, said, text, says):
    found = outcome.no_all_reduce(said, reader(text))
    assert (found["outcome"], found["cause"]["signature"]) == (says[0], "smoke")
    assert "tried before the load" in found["cause"]["summary"]
    assert says[1] in found["cause"]["summary"]
    assert says[2] in found["cause"]["advice"]

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading SGLang logs: whole ones, growing ones, torn and cut ones; the cause of a death; folding."""

from __future__ import annotations

import os
import random
import re
import stat
import tracemalloc
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import yaml
from ansible_collections.ringmaster.gpu.plugins.module_utils.log_cause import cause
from ansible_collections.ringmaster.gpu.plugins.module_utils.log_lines import fold
from ansible_collections.ringmaster.gpu.plugins.module_utils.server_log import LogReader, whole

DATA = Path(__file__).parent / "data"
CASES = yaml.safe_load((DATA / "server_logs.yml").read_text())
BY_NAME = {case["name"]: case for case in CASES}
LOGS = sorted((DATA / "server_logs").glob("*.log"))
READY = b"The server is fired up and ready to roll"
SHARDS = "Loading safetensors checkpoint shards: {percent:3d}% Completed | {done}/64 [02:10<09:30, 10.97s/it]"


def bar(done):
    return SHARDS.format(percent=100 * done // 64, done=done).encode()


def content(case):
    case = BY_NAME[case["same_lines_as"]] if "same_lines_as" in case else case
    if "log" not in case:
        return "\n".join(case["lines"]).encode()
    data = (DATA / "server_logs" / case["log"]).read_bytes()
    if "cut_before" in case:
        at = data.index(case["cut_before"].encode())
        data = data[: data.rindex(b"\n", 0, at) + 1]
    return data


def exit_code(case):
    if "exit_file" in case:
        return int((DATA / "server_logs" / case["exit_file"]).read_text())
    return case.get("exit")


def state(reader):
    """All that a reader knows, but for times."""
    return {
        "phase": reader.phase,
        "names": [phase["name"] for phase in reader.phases],
        "bar": (reader.done, reader.total),
        "size": reader.size,
        "facts": reader.facts,
        "blocks": reader.evidence.blocks(),
        "benign": reader.benign,
        "last": reader.last_lines(),
        "cause": cause(reader, exit_code=None),
    }


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_case(case, tmp_path):
    log = tmp_path / "server.log"
    log.write_bytes(content(case))
    reader = whole(log)
    reader.facts.update(case.get("known", {}))
    if "phase" in case:
        assert reader.phase == case["phase"]
    if "progress" in case:
        assert [reader.done, reader.total] == case["progress"]
    if "benign" in case:
        assert reader.benign == case["benign"]
    seconds = {phase["name"]: phase["seconds"] for phase in reader.phases}
    for name, expected in case.get("phases", {}).items():
        assert name in seconds
        assert expected is True or seconds[name] == pytest.approx(expected, abs=0.05)
    assert {name: reader.facts[name] for name in case.get("facts", {})} == case.get("facts", {})
    if "cause" not in case:
        return
    found = cause(reader, exit_code=exit_code(case), killed_role=case.get("killed_role"), kernel_lines=case.get("kernel", ()))
    if case["cause"] is None:
        assert found is None
        return
    assert set(found) == {"signature", "summary", "advice", "evidence"}
    assert case["cause"]["summary"] in found["summary"]
    assert case["cause"].get("advice", "") in found["advice"]
    assert found["evidence"]
    assert all(set(line) == {"rank", "line"} for line in found["evidence"])
    if "rank" in case["cause"]:
        assert found["evidence"][0]["rank"] == case["cause"]["rank"]


@pytest.mark.parametrize("log", LOGS, ids=[log.name for log in LOGS])
def test_cut_off_anywhere(log, tmp_path):
    data = log.read_bytes()
    ready_at = data.find(READY)
    ends = [found.end() for found in re.finditer(rb"[\r\n]", data)][::5]
    for end in ends:
        cut = tmp_path / "cut.log"
        cut.write_bytes(data[:end])
        reader = whole(cut)
        assert reader.size == end
        if ready_at < 0 or end <= ready_at:
            assert reader.phase != "ready_line"
        cause(reader, exit_code=-9)


@pytest.mark.parametrize("log", LOGS, ids=[log.name for log in LOGS])
def test_torn_reads_give_what_one_read_gives(log, tmp_path):
    data = log.read_bytes()
    reader = LogReader(log)
    expected_events = reader.finish()
    expected = state(reader)
    for seed in range(3):
        dice = random.Random(seed)
        growing = tmp_path / f"{seed}.log"
        events = []
        reader = LogReader(growing)
        assert reader.poll() == []  # not there yet
        with open(growing, "wb", buffering=0) as file:
            at = 0
            while at < len(data):
                step = dice.choice((1, 7, 100, 5000))
                file.write(data[at : at + step])
                at += step
                events += reader.poll()
        events += reader.finish()
        assert events == expected_events
        assert state(reader) == expected


def test_every_new_shard_is_progress_and_nothing_else(tmp_path):
    log = tmp_path / "server.log"
    log.write_bytes(b"")
    reader = LogReader(log)
    events = []
    with open(log, "ab", buffering=0) as file:
        for done in (0, 1, 1, 12, 11, 12, 13):  # two ranks draw in turns
            file.write(b"\r" + bar(done))
            events.append(reader.poll())
    shard = {"kind": "progress", "phase": "weights", "total": 64}
    assert events == [
        [{"kind": "phase", "phase": "weights"}, {**shard, "done": 0, "percent": 0}],
        [{**shard, "done": 1, "percent": 2}],
        [],
        [{**shard, "done": 12, "percent": 19}],
        [],
        [],
        [{**shard, "done": 13, "percent": 20}],
    ]


def test_a_bar_that_begins_anew_is_progress(tmp_path):
    log = tmp_path / "server.log"
    log.write_bytes(b"\r".join([bar(63), bar(64), bar(0), bar(1)]))
    assert [event["done"] for event in LogReader(log).poll() if event["kind"] == "progress"] == [63, 64, 0, 1]


def test_half_a_number_is_not_read(tmp_path):
    log = tmp_path / "server.log"
    log.write_bytes(b"\r" + bar(12).split(b"/64")[0] + b"/6")
    reader = LogReader(log)
    assert reader.poll() == []
    with open(log, "ab") as file:
        file.write(b"4 [00:01<00:02]")
    assert reader.poll()[-1]["total"] == 64


def test_phases_of_a_growing_log_are_timed_at_reading(tmp_path):
    now = [100.0]
    log = tmp_path / "server.log"
    reader = LogReader(log, _clock=lambda: now[0])
    with open(log, "ab", buffering=0) as file:
        for at, line in (
            (103.0, b"[2026-01-01 00:00:00] server_args=ServerArgs(model_path='/m')\n"),
            (110.0, b"[2026-01-01 00:00:00 TP0] Init torch distributed begin.\n"),
            (111.0, b"[2026-01-01 00:00:00 TP0] Init torch distributed ends. elapsed=0.25 s\n"),
            (112.0, b"[2026-01-01 00:00:00 TP1] Init torch distributed ends. elapsed=0.75 s\n"),
            (115.0, b"[2026-01-01 00:00:00 TP0] Load weight begin. avail mem=1 GB\n"),
        ):
            now[0] = at
            file.write(line)
            reader.poll()
    now[0] = 119.5
    reader.poll()
    assert reader.phases == [
        {"name": "spawn", "seconds": 3.0},
        {"name": "import", "seconds": 7.0},
        {"name": "distributed", "seconds": 0.75},  # the slowest rank, by its own words
        {"name": "weights", "seconds": 4.5},
    ]


def test_a_phase_that_began_between_two_distant_polls_is_timed_by_its_stamp(tmp_path):
    now = [100.0]
    log = tmp_path / "server.log"
    log.write_text("[2026-01-01 00:00:00] INFO:     Uvicorn running on http://127.0.0.1:8000\n")
    reader = LogReader(log, _clock=lambda: now[0])
    reader.poll()
    now[0] = 400.0
    written = (datetime.now() - timedelta(seconds=290)).strftime("%Y-%m-%d %H:%M:%S")
    with open(log, "a") as file:
        file.write(f"[{written}] The server is fired up and ready to roll!\n")
    reader.poll()
    seconds = {phase["name"]: phase["seconds"] for phase in reader.phases}
    assert 8 < seconds["warm_up"] < 11
    assert seconds["ready_line"] == 0


def test_truncated_and_replaced_files_are_read_from_their_start(tmp_path):
    log = tmp_path / "server.log"
    log.write_bytes(b"[2026-01-01 00:00:00 TP0] Load weight begin.\nhalf a li")
    reader = LogReader(log)
    reader.poll()
    former = reader.size
    log.write_bytes(b"sglang is using nccl==2.30.4\n")
    reader.poll()
    assert reader.facts["nccl"] == "2.30.4"
    assert reader.phase == "distributed"
    assert reader.size == former + 29
    other = tmp_path / "other"
    other.write_bytes(b"The server is fired up and ready to roll!\n" + b"x" * 100 + b"\n")
    os.replace(other, log)
    assert reader.poll() == [{"kind": "phase", "phase": "ready_line"}]


def test_odd_bytes_colours_and_a_very_long_line(tmp_path):
    log = tmp_path / "server.log"
    log.write_bytes(
        b"\xff\xfe\x00 not text\n"
        + b"x" * (1 << 20)
        + b" Load weight begin\n"
        + b"\x1b[31m[2026-01-01 00:00:00 TP0]\x1b[0m \x1b[1;33msglang is using nccl==2.28.9\x1b[0m\r\n"
    )
    reader = whole(log)
    assert reader.phase == "distributed"  # what stands deep in a long line is not looked at
    assert reader.facts["nccl"] == "2.28.9"
    assert max(len(line["line"]) for line in reader.last_lines()) <= 500


def test_memory_does_not_grow_with_the_log(tmp_path):
    log = tmp_path / "server.log"
    with open(log, "wb") as file:
        for _ in range(64):
            file.write(b"y" * (1 << 20))
        file.write(b"\n")
    tracemalloc.start()
    try:
        whole(log)
        fold(log, cap_bytes=1_000_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000
    assert log.stat().st_size <= 1_000_000


def test_what_was_survived_before_ready_is_not_the_cause_afterwards(tmp_path):
    log = tmp_path / "server.log"
    failed = "[2026-01-01 00:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n  File\nValueError: first\n"
    log.write_text(failed + "[2026-01-01 00:00:01] The server is fired up and ready to roll!\n")
    assert cause(whole(log), exit_code=None)["signature"] == "silent"
    log.write_text(log.read_text() + failed.replace("first", "second"))
    assert cause(whole(log), exit_code=-9)["summary"] == "ValueError: second"


def test_a_caught_exception_is_not_the_cause_of_a_later_silence(tmp_path):
    log = tmp_path / "server.log"
    caught = "Traceback (most recent call last):\n  File\nValueError: caught\n"
    log.write_text(caught)
    assert cause(whole(log), exit_code=1)["summary"] == "ValueError: caught"
    log.write_text(caught + "".join(f"[2026-01-01 00:00:00] going on, {n}\n" for n in range(30)))
    assert cause(whole(log), exit_code=1)["summary"] == "ended without a message during spawn"


@pytest.mark.parametrize("log", LOGS, ids=[log.name for log in LOGS])
def test_folding_drops_states_of_bars_and_nothing_else(log, tmp_path):
    folded = tmp_path / "server.log"
    folded.write_bytes(log.read_bytes())
    before = state(whole(folded))
    fold(folded, cap_bytes=10_000_000)
    after = state(whole(folded))
    once = folded.read_bytes()
    assert b"\r" not in once
    told, bars = ([piece for piece in re.split(rb"[\r\n]+", data) if piece.strip()] for data in (log.read_bytes(), once))
    is_bar = re.compile(rb"\d+/\d+ \[[^\]]*\]\s*$")
    assert [piece for piece in told if not is_bar.search(piece)] == [piece for piece in bars if not is_bar.search(piece)]
    assert {**before, "size": 0} == {**after, "size": 0}
    fold(folded, cap_bytes=10_000_000)
    assert folded.read_bytes() == once


def test_folding_a_bar_to_its_last_state(tmp_path):
    log = tmp_path / "server.log"
    shards = b"\r".join([b"", bar(1), bar(2), bar(64)])
    log.write_bytes(b"one\r\n\n" + shards + b"\ntwo\rthree\n\r" + bar(3) + b"[2026-01-01 00:00:00] x\n" + bar(4))
    log.chmod(0o640)
    fold(log, cap_bytes=100_000)
    assert log.read_bytes() == b"one\n\n" + bar(64) + b"\ntwo\nthree\n" + bar(3) + b"[2026-01-01 00:00:00] x\n" + bar(4)
    assert stat.S_IMODE(log.stat().st_mode) == 0o640


def test_folding_keeps_head_and_tail_and_says_what_is_left_out(tmp_path):
    log = tmp_path / "server.log"
    lines = [b"line %06d\n" % n for n in range(200_000)]
    log.write_bytes(b"".join(lines))
    fold(log, cap_bytes=50_000)
    data = log.read_bytes()
    assert 49_000 < len(data) <= 50_000
    left_out = int(re.search(rb"\[\.\.\. (\d+) bytes left out here \.\.\.\]\n", data)[1])
    kept = [line for line in data.splitlines(keepends=True) if line.startswith(b"line")]
    assert kept[0] == lines[0]
    assert kept[-1] == lines[-1]
    assert sum(map(len, kept)) + left_out == sum(map(len, lines))
    fold(log, cap_bytes=50_000)
    assert log.read_bytes() == data

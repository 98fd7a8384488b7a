# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Adapters of other benchmark programs: their files read, their processes kept in hand. The programs themselves run in tests/real.

Where a program is needed here, it is one of a few lines in their place, so that it can fail in every way there is.
"""

from __future__ import annotations

import json
import os
import pwd
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paced_server
import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import bench_results, bench_tools, loadgen, procfs, workload_row
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

WORK = {"name": "a b/../c", "concurrency": 2, "input_len": 64, "output_len": 5, "requests": 3, "timeout_s": 30}
CHECKED = workload_row.checked(WORK)


def sglang_result(**changes: Any) -> dict[str, Any]:
    gaps = [[0.01] * 4, [0.02] * 4, [0.01, 0.01, 0.03, 0.03]]
    plain = {"completed": 3, "output_throughput": 123.4, "accept_length": None, "mean_ttft_ms": float("inf")}
    details = {"input_lens": [64] * 3, "output_lens": [5] * 3, "ttfts": [0.1, 0.2, 0.3], "itls": gaps, "errors": [""] * 3}
    return {**plain, **details, "cached_tokens": [0, 1, 0], **changes}


def read_sglang(**changes: Any) -> tuple[workload_row.Measured, list[str]]:
    """The last line of a file with an older run's before it; `Infinity` in it, as sglang.bench_serving writes."""
    text = json.dumps({"completed": 0}) + "\n" + json.dumps(sglang_result(**changes)) + "\n"
    assert "Infinity" in text
    return bench_results.read_sglang(text, CHECKED)


def test_what_sglang_wrote_in_our_fields() -> None:
    measured, errors = read_sglang()
    assert errors == []
    assert measured.rates == pytest.approx([100, 50, 50])
    assert measured.decode_tok_s == pytest.approx(100), "the median rate times the concurrency"
    assert (measured.output_tok_s, measured.accept_length, measured.contaminated) == (123.4, None, 0)
    row = workload_row.row(CHECKED, measured, errors=errors)
    assert (row["ttft_ms"]["p50"], row["itl_ms"]["p50"]) == (200, 15)
    assert json.loads(json.dumps(row, allow_nan=False)) == row


@pytest.mark.parametrize(
    ("changes", "error", "samples"),
    [
        ({"errors": ["", "Traceback:\n  x\nConnectionResetError: gone\n", ""]}, "ConnectionResetError: gone", 2),
        ({"output_lens": [5, 0, 5]}, "ended after 0 of 5 tokens", 2),
        ({"output_lens": [5, 6, 5]}, "ended after 6 of 5 tokens", 2),
        ({"ttfts": [0.1, 0.0, 0.3]}, "5 tokens, but no time to the first one: was their text empty?", 2),
        ({"ttfts": [0.1, float("inf"), 0.3]}, "5 tokens, but no time to the first one: was their text empty?", 2),
        ({"itls": [[0.01] * 4, [], [0.01] * 4]}, "all 5 tokens came at once: no decode rate", 2),
        (
            {name: values[:2] for name, values in sglang_result().items() if isinstance(values, list)},
            "tells of 2 requests instead of 3",
            2,
        ),
    ],
)
def test_what_is_wrong_with_a_request_is_an_error_and_no_sample(changes: dict, error: str, samples: int) -> None:
    measured, errors = read_sglang(**changes)
    assert errors == [error]
    assert len(measured.rates) == len(measured.ttft_s) == samples


def test_contamination_and_what_a_version_does_not_tell() -> None:
    assert read_sglang(cached_tokens=[0, 60, 64])[0].contaminated == 2
    assert read_sglang(cached_tokens=None)[0].contaminated is None
    assert read_sglang(accept_length=2.5)[0].accept_length == 2.5


@pytest.mark.parametrize(
    "text", ["", "\n", "{half", "[]", "3", json.dumps({"completed": 3}), json.dumps({**sglang_result(), "itls": None})]
)
def test_a_file_that_is_no_result_says_so(text: str) -> None:
    with pytest.raises(ValueError, match="\\w"):
        bench_results.read_sglang(text, CHECKED)


def aiperf_record(number: int, *, phase: str = "profiling", chunks_ms: list[float] | None = None, error: Any = None, **metrics: Any) -> str:
    metadata = {"benchmark_phase": phase, "request_start_ns": 10**9 + number * 10**6, "request_end_ns": 2 * 10**9 + number * 10**6}
    found = {
        "usage_completion_tokens": {"value": 5, "unit": "tokens"},
        "usage_prompt_tokens": {"value": 64, "unit": "tokens"},
        "time_to_first_token": {"value": 0.25, "unit": "s"},
        "inter_chunk_latency": {"value": [10.0] * 4 if chunks_ms is None else chunks_ms, "unit": "ms"},
        **{name: {"value": value, "unit": "tokens"} for name, value in metrics.items()},
    }
    return json.dumps({"metadata": metadata, "metrics": {} if error else found, "error": error})


def test_what_aiperf_wrote_in_our_fields() -> None:
    """Units as they are given; the warm-up is not in it; four chunks of five tokens are 15 tokens after the first chunk."""
    lines = [aiperf_record(9, phase="warmup", chunks_ms=[1e6]), aiperf_record(0), aiperf_record(1)]
    lines.append(aiperf_record(2, chunks_ms=[50.0] * 3, usage_completion_tokens=20, usage_prompt_cache_read_tokens=9))
    measured, errors = bench_results.read_aiperf("\n".join(lines), CHECKED)
    assert errors == ["ended after 20 of 5 tokens"]
    wide = CHECKED._replace(output_len=20)
    assert bench_results.read_aiperf("\n".join(lines), wide)[0].rates == pytest.approx([100])
    assert measured.rates == pytest.approx([100, 100])
    assert measured.decode_tok_s == pytest.approx(200)
    assert measured.ttft_s == [0.25, 0.25]
    assert measured.output_tok_s == pytest.approx((5 + 5 + 20) / 1.002)
    assert measured.contaminated is None
    assert bench_results.read_aiperf("\n".join(lines).replace('"value": 9,', '"value": 8,'), wide)[0].contaminated == 0, "by chance"
    assert bench_results.read_aiperf("\n".join(lines), wide)[0].contaminated == 1


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (aiperf_record(1, error={"code": 500, "type": "X", "message": "no"}), "HTTP 500: no"),
        (aiperf_record(1, error={"code": None, "type": "TimeoutError", "message": ""}), "TimeoutError"),
        (aiperf_record(1, usage_prompt_tokens=70), "the server counts 70 prompt tokens instead of 64"),
        (aiperf_record(1, chunks_ms=[]), "all 5 tokens came at once: no decode rate"),
    ],
)
def test_what_is_wrong_with_a_request_of_aiperf(record: str, error: str) -> None:
    measured, errors = bench_results.read_aiperf("\n".join([aiperf_record(0), record, aiperf_record(2)]), CHECKED)
    assert errors == [error]
    assert len(measured.rates) == 2


def test_a_prompt_cut_into_a_few_tokens_more_is_no_error() -> None:
    lines = [aiperf_record(number, usage_prompt_tokens=64 + number) for number in (0, 2, 4)]
    assert bench_results.read_aiperf("\n".join(lines), CHECKED)[1] == []


# --- processes ------------------------------------------------------------------------------------------------------------


class Tools:
    """An interpreter that has an `sglang` whose benchmark does what `act` says, and an executable in AIPerf's place."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.results = directory, directory / "results"
        self.results.mkdir()
        self.package = directory / "packages" / "sglang"
        (self.package / "benchmark").mkdir(parents=True)
        for part in (self.package, self.package / "benchmark"):
            (part / "__init__.py").touch()
        (directory / "bin").mkdir()
        self.aiperf = directory / "bin" / "aiperf"
        self.seen = directory / "seen.json"

    def act(self, code: str, *, module: str = "benchmark/serving.py") -> None:
        """CODE with `argv`, `environ` and the result to write, `result`; both are noted in `seen`."""
        head = (
            "# knows '\"--cache-report\"' but not the other\nimport json, os, sys, time, subprocess\n"
            f"result = {json.dumps(json.dumps(sglang_result()))}\n"
            f"open({str(self.seen)!r}, 'w').write(json.dumps([sys.argv, dict(os.environ), os.getcwd(), os.geteuid()]))\n"
        )
        (self.package / module).write_text(head + code)
        self.aiperf.write_text(f"#!{sys.executable}\n" + head + code)
        self.aiperf.chmod(0o755)

    def measure(self, url: str, tool: str = "sglang", work: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        given = {"python": sys.executable, "aiperf": str(self.aiperf), "model": str(self.directory), "directory": str(self.results)}
        given["environment"] = {"PYTHONPATH": str(self.directory / "packages")}
        if tool == "aiperf":
            self.aiperf.parent.joinpath("python").write_text(
                f'#!/bin/sh\nPYTHONPATH={self.directory}/packages exec {sys.executable} "$@"\n'
            )
            self.aiperf.parent.joinpath("python").chmod(0o755)
        return bench_tools.measure(tool, url, work or WORK, **{**given, **options})


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    return Tools(tmp_path)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with paced_server.serve(gap_ms=15, ttft_ms=2) as address:
        yield address


@pytest.fixture
def scratches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Directories for temporary files that this process makes."""
    made, make = [], tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", lambda *args, **options: made.append(make(*args, **options)) or made[-1])
    return made


WRITE = "open('result.jsonl', 'w').write(result)\n"


def test_a_tool_gets_the_workload_and_its_result_is_kept(tools: Tools, url: str, scratches: list[str]) -> None:
    told = []
    tools.act("print('\\r 2/3 [00:01', flush=True); time.sleep(0.5)\n" + WRITE)
    logs = iter(["old\n", "old\nDecode batch, #running-req: 2, cuda graph: True, gen throughput (token/s): 98.0, #queue-req: 0\n"])
    row = tools.measure(url, log_tail=lambda: next(logs), progress=lambda done, total: told.append((done, total)))
    argv, environ, cwd, _uid = json.loads(tools.seen.read_text())
    given = dict(zip(argv[1:], argv[2:], strict=False))
    assert row["errors"] == []
    assert (row["tool"], row["decode_tok_s"], row["server_tok_s"], row["server_running"]) == ("sglang", 100, 98.0, 2)
    assert told == [(1, 5), (2, 5), (4, 5), (5, 5)]
    assert row["command"][1:3] == ["-m", "sglang.benchmark.serving"]
    assert {name: given[name] for name in ("--num-prompts", "--max-concurrency", "--random-input-len", "--random-output-len")} == {
        "--num-prompts": "3", "--max-concurrency": "2", "--random-input-len": "64", "--random-output-len": "5",
    }  # fmt: skip
    assert given["--random-range-ratio"] == "1.0"
    assert "--cache-report" in argv
    assert "--tokenize-prompt" not in argv, "only the flags that this version has"
    assert Path(row["artefact"]).parent == tools.results, "a workload's name is no path"
    assert json.loads(Path(row["artefact"]).read_text())["completed"] == 3
    assert stat.S_IMODE(os.stat(row["artefact"]).st_mode) == 0o600
    assert environ["HF_HUB_OFFLINE"] == "1"
    assert not os.path.exists(cwd)
    assert cwd in scratches
    assert not any(map(os.path.exists, scratches))
    own = bench_tools.measure("ringmaster", url, WORK, python=sys.executable, directory=str(tools.results))
    assert set(own) == set(row)
    assert (own["tool"], own["artefact"], own["errors"]) == ("ringmaster", None, [])


def test_a_key_that_a_tool_repeats_is_in_no_file(tools: Tools) -> None:
    """As sglang.bench_serving does: it writes down /server_info, where the server's key is."""
    tools.act(
        "key = os.environ['OPENAI_API_KEY']; print(key)\n"
        + WRITE.replace("result)", "result.replace('{', '{\"api_key\": \"' + key + '\", ', 1))")
    )
    with paced_server.serve(gap_ms=15, ttft_ms=2, api_key="s3kret") as url:
        row = tools.measure(url, api_key="s3kret")
    assert row["errors"] == []
    kept = {path.name: path.read_text() for path in tools.results.iterdir()}
    assert len(kept) == 2
    assert all("***" in text and "s3kret" not in text for text in kept.values())


def test_every_run_has_a_seed_of_its_own(tools: Tools, url: str) -> None:
    tools.act(WRITE)
    seeds = {row["command"][row["command"].index("--seed") + 1] for row in (tools.measure(url), tools.measure(url))}
    assert len(seeds) == 2


def test_an_older_sglang(tools: Tools, url: str) -> None:
    tools.act(WRITE, module="bench_serving.py")
    assert tools.measure(url)["command"][2] == "sglang.bench_serving"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('Traceback'); print('ValueError: bad'); sys.exit(3)", "sglang: exit status 3: Traceback / ValueError: bad"),
        ("os.kill(os.getpid(), 9)", "sglang: exit status -9: it said nothing"),
        ("pass", "sglang: ended well, but left no result: it said nothing"),
        ("open('result.jsonl', 'w').write('{')", "sglang: its result cannot be used ("),
        ("os.symlink('/etc/passwd', 'result.jsonl')", "sglang: its result cannot be used (result.jsonl is not a file of its own"),
        ("os.mkfifo('result.jsonl')", "sglang: its result cannot be used (result.jsonl is not a file of its own"),
        (WRITE.replace("result)", "result.replace('0.2', '0.0'))"), "sglang: 5 tokens, but no time to the first one"),
        ("print('\\x1b[31m', '╭', os.environ['OPENAI_API_KEY']); sys.exit(1)", "sglang: exit status 1: ***"),
    ],
)
def test_a_tool_that_fails_is_an_error_with_its_last_words(tools: Tools, code: str, words: str) -> None:
    tools.act(code)
    with paced_server.serve(gap_ms=15, ttft_ms=2, api_key="s3kret") as url:
        row = tools.measure(url, api_key="s3kret")
    assert len(row["errors"]) == 1
    assert row["errors"][0].startswith(words)
    assert "s3kret" not in json.dumps(row)
    assert (row["decode_tok_s"] is None) == ("no time" not in words)


def test_a_server_that_refuses_is_told_without_starting_a_tool(tools: Tools) -> None:
    tools.act(WRITE)
    with paced_server.serve(status=500) as url:
        row = tools.measure(url)
    assert row["errors"] == ['warm-up: HTTP 500: "no"']
    assert row["artefact"] is None
    assert not tools.seen.exists()


def test_a_tool_that_takes_too_long_is_ended(tools: Tools, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_tools, "START_S", 0.2)
    tools.act("print('thinking', flush=True); time.sleep(60)")
    begun = time.monotonic()
    row = tools.measure(url, work={**WORK, "timeout_s": 0.5})
    assert row["errors"] == [f"sglang: no result after 2 s: thinking (all of it in {tools.results}/a-b-..-c-sglang.log)"]
    assert time.monotonic() - begun < 20


FAMILY = """
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)
open('started', 'w').close()
"""


@pytest.mark.parametrize("how", ["true", "raises"])
def test_a_stop_ends_the_tool_with_all_that_it_started(tools: Tools, url: str, how: str) -> None:
    class Gone(Exception):
        pass

    tools.act(FAMILY + "time.sleep(60)")
    seen, asked_s = [], []

    def stop() -> bool:
        asked_s.append(time.monotonic())
        if not tools.seen.exists():  # a look at all processes takes longer than the warm-up's streams
            return False
        below = procfs.descendants(os.getpid())
        mine = [process for process in below if str(tools.directory) in " ".join(procfs.command_line(process.pid))]
        family = [process for process in below if process.ppid in {one.pid for one in mine}]
        if len(family) < 2:
            return False
        seen[:] = mine + family
        if how == "raises":
            raise Gone
        return True

    with pytest.raises(Gone if how == "raises" else loadgen.Stopped):
        tools.measure(url, stop=stop)
    ended_s = time.monotonic()
    assert len(seen) == 3
    assert not any(procfs.is_alive(process) for process in seen)
    assert ended_s - asked_s[-1] < 5


def test_a_tool_that_leaves_processes_behind_leaves_none(tools: Tools, url: str) -> None:
    tools.act("subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', os.getcwd()])\n" + WRITE)
    row = tools.measure(url)
    cwd = json.loads(tools.seen.read_text())[2]
    assert row["errors"] == []
    assert not [pid for pid in procfs.scan() if cwd in procfs.command_line(pid)]


def test_aiperf_gets_its_key_where_nobody_sees_it(tools: Tools) -> None:
    """In its process the key is an argument, as it wants; outside it is in no command line."""
    lines = "\n".join(aiperf_record(number) for number in range(3))
    package = tools.directory / "packages" / "aiperf"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "cli.py").write_text(
        "import json, os, sys\n"
        "def app():\n"
        "    line = open('/proc/self/cmdline').read()\n"
        f"    open({str(tools.seen)!r}, 'w').write(json.dumps([sys.argv, line, 'OPENAI_API_KEY' in os.environ]))\n"
        "    os.mkdir('out')\n"
        f"    open('out/profile_export.jsonl', 'w').write({lines!r})\n"
    )
    tools.act("raise SystemExit('with a key it is not started like this')")
    with paced_server.serve(gap_ms=15, api_key="s3kret") as url:
        row = tools.measure(url, "aiperf", api_key="s3kret")
    argv, line, left = json.loads(tools.seen.read_text())
    assert row["errors"] == []
    assert argv[0] == "aiperf"
    assert argv[-2:] == ["--api-key", "s3kret"]
    assert "s3kret" not in line
    assert not left
    assert "s3kret" not in json.dumps(row)
    assert argv[argv.index("--num-dataset-entries") + 1] == "5", "no prompt is sent twice"


def test_aiperf_without_a_key_and_without_a_summary(tools: Tools, url: str) -> None:
    lines = "\n".join(aiperf_record(number) for number in range(3))
    tools.act(f"os.mkdir('out'); open('out/profile_export.jsonl', 'w').write({lines!r})")
    row = tools.measure(url, "aiperf")
    assert (row["errors"], row["decode_tok_s"]) == ([], pytest.approx(200))
    assert row["command"][0] == str(tools.aiperf)
    assert row["artefact"] == str(tools.results / "a-b-..-c-aiperf-profile_export.jsonl")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_tool_runs_as_the_user_it_is_told_to(url: str) -> None:
    user = "nobody"
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="bench-tools-") as directory:
        tools = Tools(Path(directory))
        tools.act(WRITE)
        tools.seen.touch()
        tools.seen.chmod(0o666)
        os.chmod(directory, 0o755)
        tools.results.chmod(0o700)
        row = tools.measure(url, user=user, python="/usr/bin/python3")
        assert row["errors"] == []
        assert json.loads(tools.seen.read_text())[3] == pwd.getpwnam(user).pw_uid
        assert os.stat(row["artefact"]).st_uid == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tool": "wrk"}, "'wrk' is not known"),
        ({"python": "/usr/bin/python3", "environment": {}}, "has no sglang.bench_serving"),
        ({"python": "/nowhere/python"}, "has no sglang.bench_serving"),
        ({"tool": "aiperf", "aiperf": "/nowhere/aiperf"}, "is not there"),
        ({"tool": "aiperf", "aiperf": None}, "is not there"),
        ({"tool": "aiperf", "model": "org/name"}, "is no directory"),
        ({"work": {**WORK, "requests": 1}}, "cannot keep 2 streams"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(tools: Tools, url: str, options: dict, words: str) -> None:
    tools.act(WRITE)
    with pytest.raises(RingmasterError, match=words):
        tools.measure(url, **options)


# --- warnings -------------------------------------------------------------------------------------------------------------

ROW = {"concurrency": 8, "decode_tok_s": 100.0, "server_tok_s": 100.0, "graph_replayed": True, "server_running": 8, "server_queued": 0}


@pytest.mark.parametrize(
    ("changes", "facts", "flags", "words"),
    [
        ({}, {}, {}, []),
        ({}, {"graph_batch_sizes": [1, 2, 4, 8]}, {}, []),
        ({}, {"graph_batch_sizes": None}, {}, []),
        ({}, {"graph_batch_sizes": [1, 2, 4], "sglang": "0.5.16"}, {}, ["captured CUDA graph (4)", "{cuda-graph-max-bs: 8}"]),
        ({}, {"graph_batch_sizes": [1, 4], "sglang": "0.5.20"}, {}, ["{cuda-graph-max-bs-decode: 8}"]),
        ({}, {"graph_batch_sizes": [1, 4], "sglang": "0.6.0+cu130"}, {}, ["{cuda-graph-max-bs-decode: 8}"]),
        ({"graph_replayed": False}, {"sglang": "0.5.9"}, {}, ["decoded without CUDA graph", "{cuda-graph-max-bs: 8}"]),
        ({"graph_replayed": False}, {"graph_batch_sizes": [8, 16]}, {}, ["although it captured batches up to 16"]),
        ({"graph_replayed": False}, {}, {"disable-cuda-graph": True}, []),
        ({"graph_replayed": False}, {}, {"device": "cpu"}, []),
        ({"graph_replayed": False}, {}, {"cuda-graph-backend-decode": "disabled"}, []),
        ({"graph_replayed": False}, {}, {"cuda-graph-config": '{"decode": {"backend": "disabled"}}'}, []),
        ({"graph_replayed": False}, {}, {"cuda-graph-config": "{half"}, ["without CUDA graph"]),
        ({"graph_replayed": None, "server_tok_s": None}, {}, {}, ["whether a CUDA graph was replayed is not known"]),
        ({"graph_replayed": None, "server_tok_s": None, "server_running": None}, {}, {}, []),
        ({"server_running": 6}, {}, {}, ["never more than 6 of 8", "max-running-requests"]),
        ({"server_queued": 3}, {}, {}, ["3 requests were waiting"]),
        ({"server_tok_s": 103.0}, {}, {}, ["disagree by -2.9%"]),
        ({"server_tok_s": 101.9}, {}, {}, []),
        ({"server_tok_s": 97.0}, {}, {}, ["disagree by +3.1%"]),
        ({"decode_tok_s": None}, {}, {}, []),
        ({"server_tok_s": None}, {}, {}, []),
    ],
)  # fmt: skip
def test_warnings_name_what_to_change(changes: dict, facts: dict, flags: dict, words: list[str]) -> None:
    said = bench_tools.warnings({**ROW, **changes}, facts, flags=flags)
    assert len(said) == (1 if words else 0)
    assert all(word in said[0] for word in words)


def test_several_warnings_begin_with_the_graph() -> None:
    row = {**ROW, "graph_replayed": False, "server_running": 4, "server_tok_s": 50.0}
    said = bench_tools.warnings(row)
    assert [("CUDA graph" in text, "together" in text, "disagree" in text) for text in said] == [
        (True, False, False), (False, True, False), (False, False, True),
    ]  # fmt: skip


def test_the_batches_of_a_log() -> None:
    line = "[x TP0] Decode batch, #running-req: {}, #token: 9, cuda graph: True, gen throughput (token/s): 5.0, #queue-req: {}\n"
    assert workload_row.batches("") == (None, None)
    assert workload_row.batches(line.format(3, 5) + line.format(8, 0) + line.format(2, 0)) == (8, 0)
    assert workload_row.batches("Decode batch. #running-req: 4, gen throughput") == (4, None)

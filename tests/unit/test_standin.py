# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's stand-in does what the real SGLang 0.5.16 was seen to do, and decodes at the speed that its truth table states."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from ansible_collections.ringmaster.gpu.plugins.module_utils import nccl_log as capture
from ansible_collections.ringmaster.gpu.plugins.module_utils import proof

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "roles" / "lab"
STANDIN = LAB / "files" / "standin"
sys.path.insert(0, str(STANDIN))

from sglang import flags as standin_flags  # noqa: E402
from sglang import lab as standin_lab  # noqa: E402
from sglang import latency, logprobs, nccl_log  # noqa: E402

TRUTH = yaml.safe_load((LAB / "files" / "truth.yml").read_text())
TP4 = ("--tp-size", "4", "--disable-custom-all-reduce")
QUIET = {"coefficients": {"start_noise": 0.0}}


def python(version: str) -> str:
    """An interpreter of that version, or the test is skipped by name."""
    for path in sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python")):
        return str(path)
    pytest.skip(f"no Python {version}")


class Standin:
    """A running stand-in with its log; `end()` leaves nothing behind."""

    def __init__(self, directory: Path, *flags: str, lab: dict | None = None, env: dict | None = None, executable: str = sys.executable):
        model = directory / "model"
        model.mkdir(parents=True, exist_ok=True)
        (model / "config.json").write_text("{}")
        (model / "lab.json").write_text(json.dumps({"load_s": 0.3, "warmup_s": 0.0, "drain_poll_s": 0.1} | (lab or {})))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log_path = directory / "server.log"
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "RINGMASTER_LAB", "PYTHON", "SPT_"))}
        paths = [str(directory / "site"), str(STANDIN)]
        self.started_s = time.monotonic()
        self.process = subprocess.Popen(
            [executable, "-m", "sglang.launch_server", "--model-path", str(model), "--port", str(self.port), *flags],
            stdout=self.log_path.open("ab"), stderr=subprocess.STDOUT, start_new_session=True,
            env=clean | {"PYTHONPATH": os.pathsep.join(paths)} | (env or {}),
        )

    @property
    def log(self) -> str:
        return self.log_path.read_text().replace("\r", "\n")

    def ready(self, within_s: float = 15.0) -> float:
        """Seconds from launch to a first 200 of /health."""
        while time.monotonic() - self.started_s < within_s:
            assert self.process.poll() is None, self.log
            with contextlib.suppress(OSError):
                if self.ask("GET", "/health")[0] == 200:
                    return time.monotonic() - self.started_s
            time.sleep(0.02)
        raise AssertionError(f"not ready after {within_s} s: {self.log}")

    def ask(self, method: str, path: str, body: dict | None = None, headers: dict | None = None, timeout_s: float = 10.0):
        """(status, parsed JSON or text)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers or {})
            answer = connection.getresponse()
            text = answer.read().decode()
            return answer.status, json.loads(text) if text[:1] in "{[" and text else text
        finally:
            connection.close()

    def lines(self, path: str, body: dict):
        """(monotonic seconds, data line) of one streamed answer, as they come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("POST", path, json.dumps(body | {"stream": True}))
        for line in connection.getresponse():
            if line.startswith(b"data: "):
                yield time.monotonic(), line[6:].strip()
        connection.close()

    def stream(self, path: str, body: dict) -> list:
        """[(monotonic seconds, event)] of one streamed answer; the last event is "[DONE]"."""
        return [(now_s, "[DONE]" if line == b"[DONE]" else json.loads(line)) for now_s, line in self.lines(path, body)]

    def arrivals(self, path: str, body: dict) -> list:
        """When each token came; nothing is parsed, so that many streams can be timed."""
        return [now_s for now_s, line in self.lines(path, body) if line != b"[DONE]"]

    def step_ms(self, concurrency: int, tokens: int) -> float:
        """Time of a decode step with that many streams: the median slope over half of the stretch in which all of them decode, so
        that a busy machine's late wake-ups at either end do not count."""
        body = {"input_ids": [7] * 64, "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0}}
        arrivals = []
        threads = [threading.Thread(target=lambda: arrivals.append(self.arrivals("/generate", body))) for _ in range(concurrency)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(arrivals) == concurrency
        assert all(len(one) == tokens for one in arrivals)
        last_first_s = max(one[1] for one in arrivals)
        together = [[t for t in one if t >= last_first_s] for one in arrivals]
        half = min(len(one) for one in together) // 2
        slopes_s = [(later - earlier) / half for one in together for earlier, later in zip(one, one[half:], strict=False)]
        return statistics.median(slopes_s) * 1000

    def children(self) -> dict:
        """{pid: title} of the launcher's children (`pgrep -P` would do)."""
        return {pid: title(pid) for pid in child_pids(self.process.pid)}

    def worker(self, name: str) -> int:
        return next(pid for pid, found in self.children().items() if found == name)

    def end(self) -> None:
        for pid in [*child_pids(self.process.pid), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()


def child_pids(pid: int) -> list:
    with contextlib.suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def eventually(true, within_s: float = 3.0) -> None:
    end_s = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end_s, "did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def standin(tmp_path):
    """Starts stand-ins and ends them."""
    running = []

    def start(*flags, **options) -> Standin:
        running.append(Standin(tmp_path / str(len(running)), *flags, **options))
        return running[-1]

    yield start
    for one in running:
        one.end()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One server with four ranks and no noise between starts, for tests that only ask."""
    server = Standin(tmp_path_factory.mktemp("shared"), *TP4, lab=QUIET, env={"SPT_NOENV": "1"})
    server.ready()
    yield server
    server.end()


# ---- what is true


def _model_flags(argv: list) -> dict:
    flags, _ = standin_flags.resolve(["--model-path", "m", *argv])
    return {"custom_all_reduce": not flags["disable_custom_all_reduce"], "overlap": not flags["disable_overlap_schedule"],
            "graph_max_bs": flags["graph_max_bs"]}


def _argv(flags: dict) -> list:
    words = []
    for name, value in ({"tp-size": "4", "disable-custom-all-reduce": True} | flags).items():
        words += [] if value is False else [f"--{name}"] if value is True else [f"--{name}", value]
    return words


@pytest.mark.parametrize("factor", TRUTH["factors"], ids=lambda factor: factor["name"])
def test_truth_is_what_the_model_computes(factor):
    for batch, stated in factor["ratio"].items():
        base_ms = latency.step_ms(batch, TRUTH["ranks"], {}, _model_flags(_argv({})))
        assert 1000 * batch / base_ms == pytest.approx(TRUTH["baseline_tok_s"][batch], abs=0.06)
        candidate_ms = latency.step_ms(batch, TRUTH["ranks"], factor.get("environment", {}), _model_flags(_argv(factor.get("flags", {}))))
        assert base_ms / candidate_ms == pytest.approx(stated, abs=6e-5)
    at_one = factor["ratio"][1]
    assert factor["effect"] == ("better" if at_one > 1.01 else "worse" if at_one < 0.99 else "equivalent")


def test_lab_has_a_better_a_worse_and_an_idle_factor():
    effects = {factor["name"]: factor["effect"] for factor in TRUTH["factors"]}
    assert effects["nccl_channels=2"] == "better"
    assert effects["nccl_profile=few_channels"] == "worse"
    assert effects["nccl_nthreads=256"] == effects["num-continuous-decode-steps=4"] == "equivalent"


def test_nccl_cannot_matter_with_custom_all_reduce_on_or_one_rank():
    slow = {"NCCL_PROTO": "Simple", "NCCL_MIN_NCHANNELS": "32"}
    custom = {"custom_all_reduce": True, "overlap": True, "graph_max_bs": 512}
    assert latency.step_ms(1, 4, slow, custom) == latency.step_ms(1, 4, {}, custom)
    plain = dict(custom, custom_all_reduce=False)
    assert latency.step_ms(1, 1, slow, plain) == latency.step_ms(1, 1, {}, plain)
    assert latency.step_ms(1, 4, slow, plain) > latency.step_ms(1, 4, {}, plain)


@pytest.mark.parametrize(("env", "expected"), [
    ({}, 16), ({"NCCL_MAX_NCHANNELS": "2"}, 2), ({"NCCL_MIN_NCHANNELS": "24"}, 24), ({"NCCL_MAX_NCHANNELS": "0"}, 1),
    ({"NCCL_MIN_NCHANNELS": "4", "NCCL_MAX_NCHANNELS": "8"}, 8), ({"NCCL_MAX_NCHANNELS": "two"}, 16),
])
def test_channels(env, expected):
    assert latency.channels(env) == expected


def test_lab_json_refuses_what_it_does_not_know(tmp_path):
    (tmp_path / "lab.json").write_text('{"lode_s": 3}')
    with pytest.raises(ValueError, match="lode_s"):
        standin_lab.read(str(tmp_path))
    (tmp_path / "lab.json").write_text('{"faults": ["explode"]}')
    with pytest.raises(ValueError, match="explode"):
        standin_lab.read(str(tmp_path))


def test_faults_can_depend_on_a_factor():
    faults = [standin_lab._fault({"fault": "nan", "when": {"NCCL_PROTO": "LL128", "disable-radix-cache": "true"}})]
    assert standin_lab.active(faults, {"NCCL_PROTO": "LL128"}, {"disable_radix_cache": True}) == {"nan": ""}
    assert standin_lab.active(faults, {"NCCL_PROTO": "LL"}, {"disable_radix_cache": True}) == {}
    assert standin_lab.active(faults, {"NCCL_PROTO": "LL128"}, {"disable_radix_cache": False}) == {}


def test_nccl_lines_follow_the_subsystems():
    env = {"NCCL_DEBUG": "INFO", "NCCL_MAX_NCHANNELS": "2", "NCCL_PROTO": "LL", "NCCL_NO_SUCH": "1"}
    found = nccl_log.lines(0, 4, env, latency.COEFFICIENTS)
    assert "NCCL_MAX_NCHANNELS set by environment to 2." in found
    assert "NCCL_PROTO set by environment to LL" in found
    assert not any("NO_SUCH" in line or "Bytes ->" in line for line in found)
    assert nccl_log.all_reduces(0, 4, env, [14336], latency.COEFFICIENTS) == []
    tuning = env | {"NCCL_DEBUG_SUBSYS": "TUNING"}
    assert not any("set by" in line for line in nccl_log.lines(0, 4, tuning, latency.COEFFICIENTS))
    said = "AllReduce: 28672 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}"
    assert nccl_log.all_reduces(0, 4, tuning, [28672], latency.COEFFICIENTS) == [said]
    assert nccl_log.all_reduces(1, 4, tuning, [28672], latency.COEFFICIENTS) == []  # rank 0 speaks for all
    assert nccl_log.lines(0, 1, env, latency.COEFFICIENTS) == []
    assert nccl_log.lines(0, 4, env | {"NCCL_DEBUG": "WARN"}, latency.COEFFICIENTS) == []


def test_nccl_log_of_a_whole_start_proves_every_rank(standin, tmp_path):
    asked = {"NCCL_MAX_NCHANNELS": "2", "NCCL_PROTO": "LL", "NCCL_BUFFSIZE": "131072", "NCCL_NTHREADS": "64", "NCCL_P2P_LEVEL": "SYS"}
    server = standin(*TP4, env={**asked, "SPT_NOENV": "1", **capture.environment(str(tmp_path), asked)})
    server.ready()
    ranks = {name: SimpleNamespace(pid=pid) for pid, name in server.children().items() if "scheduler" in name}
    captures = capture.read(str(tmp_path))
    seen = proof.effective(ranks, server.process.pid, {}, configured={}, given=asked, captures=captures)
    assert len(seen) == 4
    for values in seen.values():
        assert {name: values[name]["proof"] for name in asked} == dict.fromkeys(asked, "nccl log")
    assert proof.problems(asked, seen, 4) == []
    assert {captures[process.pid]["channels"]["coll"] for process in ranks.values()} == {2}
    head = captures[ranks["sglang::scheduler_TP0"].pid]
    assert (head["max_threads"]["Ring"]["LL"], head["p2p_chunk_bytes"], list(head["transports"])) == (64, 16384, ["P2P/CUMEM"])
    assert head["algorithms"]["AllReduce"] == {"protocols": ["LL"], "algorithms": ["Ring", "Tree"]}
    assert {row["protocol"] for row in head["collectives"]} == {"LL"}
    assert head["collectives"][-1]["bytes"][0] >= 14336
    assert proof.felt(asked, captures) == []
    assert "Simple" in proof.felt({"NCCL_BUFFSIZE": "131072"}, captures)[0]


def test_nccl_log_shows_what_never_reaches_nccl(standin, tmp_path):
    asked = {"NCCL_MAX_NCHANNELS": "2"}
    flags = [flag for flag in TP4 if flag != "--disable-custom-all-reduce"]
    environment = {**asked, **capture.environment(str(tmp_path), asked), "RINGMASTER_LAB_FAULT": "nccl_ignores:NCCL_MAX_NCHANNELS"}
    server = standin(*flags, env={**environment, "SPT_NOENV": "1"})
    server.ready()
    ranks = {name: SimpleNamespace(pid=pid) for pid, name in server.children().items() if "scheduler" in name}
    captures = capture.read(str(tmp_path))
    seen = proof.effective(ranks, server.process.pid, {}, configured={}, given=asked, captures=captures)
    assert [text for text in proof.problems(asked, seen, 4) if "never read it" in text] == proof.problems(asked, seen, 4) != []
    felt = " ".join(proof.felt(asked, captures))
    assert "16 channels for collectives, in spite of NCCL_MAX_NCHANNELS=2" in felt
    assert "custom all-reduce" in felt


@pytest.mark.parametrize(("text", "number"), [("16M", 16), ("010", 8), ("0x10", 16), ("abc", 0), ("-2", -2), ("09", 0), ("0", 0)])
def test_the_standins_nccl_reads_numbers_as_nccl_does(text, number):
    assert nccl_log.as_read(text) == number


# ---- start


@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_whole_start_on_both_ends_of_the_supported_pythons(standin, version):
    server = standin(*TP4, executable=python(version))
    with pytest.raises(ConnectionRefusedError):
        server.ask("GET", "/health")
    server.ready()
    eventually(lambda: "ready to roll" in server.log)
    phases = ["server_args=", "TP0] Init torch distributed begin.", "sglang is using nccl==2.28.9", "TP0] Load weight begin. avail mem=",
              "Loading safetensors checkpoint shards:  16% Completed | 2/12 [", "TP0] Load weight end.", "TP0] KV Cache is allocated",
              "TP0] Memory pool end", "TP0] Capture target decode CUDA graph begin", "Capturing batches (bs=512 avail_mem=",
              "TP0] Capture target decode CUDA graph end", "max_total_num_tokens=", "Uvicorn running on http://127.0.0.1:",
              '"GET /model_info HTTP/1.1" 200 OK', "The server is fired up and ready to roll!"]
    places = [server.log.find(phase) for phase in phases]
    assert -1 not in places
    assert places == sorted(places)
    events = server.stream("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 3}})
    assert [event["meta_info"]["completion_tokens"] for _, event in events[:-1]] == [1, 2, 3]


def test_tree_titles_and_environment(standin):
    server = standin("--tp", "2", env={"MARK": "here"})
    server.ready()
    children = server.children()
    assert sorted(children.values())[1:] == ["sglang::detokenizer", "sglang::scheduler_TP0", "sglang::scheduler_TP1"]
    assert "resource_tracker" in sorted(children.values())[0]
    scheduler = server.worker("sglang::scheduler_TP1")
    assert Path(f"/proc/{scheduler}/comm").read_text() == "sglang::schedul\n"
    assert set(Path(f"/proc/{scheduler}/environ").read_bytes()) == {0}  # as setproctitle leaves it
    resident_kb = int(Path(f"/proc/{scheduler}/statm").read_text().split()[1]) * 4
    assert resident_kb < 20000
    cpu_before = Path(f"/proc/{scheduler}/stat").read_text().split()[13:15]
    time.sleep(0.2)
    assert Path(f"/proc/{scheduler}/stat").read_text().split()[13:15] == cpu_before


def test_environment_stays_readable_with_spt_noenv(shared):
    for rank in range(4):
        environ = Path(f"/proc/{shared.worker(f'sglang::scheduler_TP{rank}')}/environ").read_bytes()
        assert b"\0NCCL_CUMEM_ENABLE=0\0" in environ
        assert b"\0NCCL_NVLS_ENABLE=0\0" in environ
        assert b"\0CUDA_DEVICE_MAX_CONNECTIONS=8\0" in environ


def test_one_rank_has_no_rank_in_its_name(standin):
    server = standin()
    server.ready()
    assert "sglang::scheduler" in server.children().values()
    assert " TP0]" not in server.log


@pytest.mark.parametrize(("argv", "code", "last_line"), [
    (["--no-such-flag", "1"], 2, "sglang serve: error: unrecognized arguments: --no-such-flag 1"),
    (["--tp-size", "four"], 2, "invalid int value: 'four'"),
    (["--model-path", "/models/no-such-model"], 1, "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name'"),
    (["--nnodes", "2"], 1, "--nnodes must be 1"),
])
def test_refused_at_once(standin, argv, code, last_line):
    server = standin(*argv)
    assert server.process.wait(10) == code
    assert last_line in server.log.strip().splitlines()[-1]


def test_too_little_memory_is_a_crash(standin):
    server = standin("--mem-fraction-static", "0.05")
    assert server.process.wait(10) == -9
    assert "Not enough memory. Please try to increase --mem-fraction-static." in server.log


def test_deprecated_alias_is_taken_with_a_warning():
    flags, warnings = standin_flags.resolve(["--model-path", "m", "--cuda-graph-max-bs", "128"])
    assert flags["cuda_graph_max_bs_decode"] == 128
    assert len(warnings) == 1
    assert warnings[0].startswith("'--cuda-graph-max-bs' is deprecated")
    assert warnings[0].endswith("Use '--cuda-graph-max-bs-decode' instead.")


# ---- endpoints


def test_infos(shared):
    status, info = shared.ask("GET", "/server_info")
    assert (status, info["version"], info["tp_size"]) == (200, "0.5.16+simulated", 4)
    assert str(shared.port) in info["launch_command"].split()
    assert "last_gen_throughput" in info["internal_states"][0]
    assert shared.ask("GET", "/get_server_info")[1]["port"] == shared.port
    assert shared.ask("GET", "/model_info")[1] == shared.ask("GET", "/get_model_info")[1]
    assert shared.ask("GET", "/v1/models")[1]["data"][0]["id"] == info["model_path"]
    assert shared.ask("GET", "/health_generate")[0] == 200
    assert shared.ask("GET", "/ready")[0] == shared.ask("GET", "/metrics")[0] == 404
    assert shared.ask("GET", "/generate")[0] == 405
    assert shared.ask("POST", "/generate", {})[0] == 400


def test_generate_streams_cumulative_text_and_is_deterministic(shared):
    body = {"text": "once upon a time", "sampling_params": {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}}
    events = [event for _, event in shared.stream("/generate", body)]
    assert events[-1] == "[DONE]"
    assert [len(event["output_ids"]) for event in events[:-1]] == [1, 2, 3, 4, 5, 6]
    assert all(later["text"].startswith(earlier["text"]) for earlier, later in zip(events[:-1], events[1:-1], strict=False))
    assert events[-2]["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
    assert events[-3]["meta_info"]["finish_reason"] is None
    whole = shared.ask("POST", "/generate", body)[1]
    assert whole["text"] == events[-2]["text"]
    assert whole["text"].isprintable()
    assert whole["meta_info"]["prompt_tokens"] == 4


def test_without_ignore_eos_an_answer_may_end_early(shared):
    prompt = next([number] for number in range(1, 1000) if zlib.crc32(repr([number]).encode()) % 100003 % 480 == 3)
    for ignore_eos, expected in ((False, ("stop", 35)), (True, ("length", 40))):
        body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 40, "temperature": 0, "ignore_eos": ignore_eos}}
        meta = shared.ask("POST", "/generate", body)[1]["meta_info"]
        assert (meta["finish_reason"]["type"], meta["completion_tokens"]) == expected


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_openai_endpoints(shared, path):
    body = {"prompt": "ab cd", "messages": [{"role": "user", "content": "ab cd"}], "max_tokens": 5, "ignore_eos": True, "temperature": 0}
    whole = shared.ask("POST", path, body)[1]
    assert whole["usage"]["completion_tokens"] == 5
    events = [event for _, event in shared.stream(path, body | {"stream_options": {"include_usage": True}})]
    assert events.pop() == "[DONE]"
    usage = events.pop()
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 5)
    choices = [event["choices"][0] for event in events]
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["length"]
    text = "".join(c["delta"].get("content", "") if "delta" in c else c["text"] for c in choices)
    assert text == (whole["choices"][0].get("text") or whole["choices"][0]["message"]["content"])


def test_prefix_cache_and_its_flush(shared):
    body = {"input_ids": list(range(1000, 1100)), "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    cached = [shared.ask("POST", "/generate", body)[1]["meta_info"]["cached_tokens"] for _ in range(2)]
    assert cached == [0, 96]
    assert shared.ask("POST", "/flush_cache")[0] == 200
    assert shared.ask("POST", "/generate", body)[1]["meta_info"]["cached_tokens"] == 0


def test_flush_is_refused_while_busy_and_a_client_that_leaves_is_forgotten(shared):
    connection = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=10)
    body = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 5000, "ignore_eos": True}}
    connection.request("POST", "/generate", json.dumps(body))
    connection.getresponse().readline()
    assert shared.ask("GET", "/flush_cache")[0] == 400
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
    eventually(lambda: shared.ask("GET", "/flush_cache")[0] == 200)


def test_api_key_no_radix_cache_metrics_and_stream_interval(standin):
    server = standin("--api-key", "s3cret", "--disable-radix-cache", "--enable-metrics", "--stream-interval", "4")
    server.ready()
    assert server.ask("GET", "/server_info")[0] == 401
    key = {"Authorization": "Bearer s3cret"}
    body = {"input_ids": [5] * 64, "stream": True, "sampling_params": {"max_new_tokens": 9, "ignore_eos": True}}
    for _ in range(2):
        _, text = server.ask("POST", "/generate", body, key)
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        assert [event["meta_info"]["completion_tokens"] for event in events] == [1, 4, 8, 9]
        assert events[-1]["meta_info"]["cached_tokens"] == 0
    assert "sglang:gen_throughput" in server.ask("GET", "/metrics", headers=key)[1]


# ---- speed


@pytest.mark.measures
@pytest.mark.parametrize(("concurrency", "tokens", "tolerance"), [(1, 170, 0.01), (4, 130, 0.02), (16, 130, 0.03), (64, 90, 0.1)])
def test_pace_is_the_true_one(shared, concurrency, tokens, tolerance):
    """As the client sees it (with 64 streams the two cores are the client's, too) and as the server logs it."""
    true_ms = latency.step_ms(concurrency, 4, {}, _model_flags(_argv({})))
    assert shared.step_ms(concurrency, tokens) == pytest.approx(true_ms, rel=tolerance)
    rates = [float(line.partition("(token/s): ")[2].partition(",")[0]) for line in shared.log.splitlines()
             if f"Decode batch, #running-req: {concurrency}," in line]
    assert statistics.median(rates[1:]) == pytest.approx(concurrency * 1000 / true_ms, rel=0.03)  # the first one spans the prefill


@pytest.mark.measures
def test_settings_that_only_sitecustomize_sets_are_felt(standin, shared, tmp_path):
    factor = TRUTH["factors"][0]
    site = tmp_path / "0" / "site"
    site.mkdir(parents=True)
    lines = [f"os.environ.setdefault({name!r}, {value!r})" for name, value in factor["environment"].items()]
    (site / "sitecustomize.py").write_text("\n".join(["import os", *lines]))
    server = standin(*TP4, lab=QUIET, env={"NCCL_DEBUG": "INFO"})
    server.ready()
    ratios = [shared.step_ms(1, 100) / server.step_ms(1, 100) for _ in range(2)]
    assert statistics.mean(ratios) == pytest.approx(factor["ratio"][1], abs=0.008)
    for rank in range(4):
        assert f"[{rank}] NCCL INFO NCCL_MAX_NCHANNELS set by environment to 2.\n" in server.log


def test_launcher_overrides_what_sglang_overrides(standin, tmp_path):
    debug = tmp_path / "nccl.%p"
    server = standin(*TP4, "--enable-symm-mem", "--enable-deterministic-inference",
                     env={"NCCL_CUMEM_ENABLE": "0", "NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(debug)})
    server.ready()
    files = sorted(tmp_path.glob("nccl.*"))
    assert len(files) == 4
    for path in files:
        assert "NCCL_CUMEM_ENABLE set by environment to 1." in path.read_text()
        assert "NCCL_ALGO set by environment to allreduce:tree\n" in path.read_text()


# ---- ends


def test_sigterm_idle_drains_and_kills_itself(standin):
    server = standin()
    server.ready()
    children = list(server.children())
    sent_s = time.monotonic()
    server.process.terminate()
    assert server.process.wait(3) == -9
    assert time.monotonic() - sent_s < 1.0
    assert "Remaining number of requests 0" in server.log
    assert not any(alive(pid) for pid in children)


def test_sigterm_lets_streams_finish_and_slow_drain_takes_longer(standin):
    server = standin(lab={"faults": ["slow_drain_s:0.5"]})
    server.ready()
    got = []
    body = {"text": "x", "sampling_params": {"max_new_tokens": 80, "ignore_eos": True}}
    reader = threading.Thread(target=lambda: got.extend(server.stream("/generate", body)))
    reader.start()
    time.sleep(0.15)
    server.process.terminate()
    assert server.process.wait(5) == -9
    ended_s = time.monotonic()
    reader.join()
    assert got[-1][1] == "[DONE]"
    assert len(got) == 81
    assert ended_s - got[-1][0] > 0.5


def test_sigint_is_a_clean_end(standin):
    server = standin()
    server.ready()
    children = list(server.children())
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(3) == 0
    assert not any(alive(pid) for pid in children)


def test_sigkill_of_the_launcher_takes_its_workers_along(standin):
    server = standin()
    server.ready()
    workers = [server.worker("sglang::scheduler"), server.worker("sglang::detokenizer")]
    server.process.kill()
    eventually(lambda: not any(alive(pid) for pid in workers), 0.5)


def test_sigterm_before_ready_leaves_the_detokenizer_behind(standin):
    server = standin(lab={"load_s": 5.0})
    eventually(lambda: {"sglang::detokenizer", "sglang::scheduler"} <= set(server.children().values()))
    detokenizer, scheduler = server.worker("sglang::detokenizer"), server.worker("sglang::scheduler")
    try:
        server.process.terminate()
        assert server.process.wait(1) == -15
        eventually(lambda: not alive(scheduler), 0.5)
        time.sleep(0.5)
        assert alive(detokenizer)
    finally:
        os.kill(detokenizer, signal.SIGKILL)


@pytest.mark.measures
def test_dead_scheduler_is_noticed_within_a_second(standin):
    server = standin("--tp", "2", lab={"faults": ["lose_scheduler_after_s:0.3"]})
    server.ready()
    assert server.process.wait(4) == -9
    assert "Subprocess scheduler_1 (pid=" in server.log
    assert "crashed with exit code -9. Triggering SIGQUIT for cleanup..." in server.log


def test_dead_detokenizer_leaves_a_mute_server_that_ends_late(standin):
    server = standin(lab={"detokenizer_loss_s": 2.0, "health_timeout_s": 0.5})
    server.ready()
    os.kill(server.worker("sglang::detokenizer"), signal.SIGKILL)
    killed_s = time.monotonic()
    assert server.ask("GET", "/health")[0] == 503
    assert server.ask("GET", "/model_info")[0] == 200
    assert server.process.wait(6) == -9
    assert time.monotonic() - killed_s > 2.0


# ---- faults


@pytest.mark.parametrize("phase", standin_lab.PHASES)
def test_crash_in_a_phase(standin, phase):
    server = standin("--tp", "2", env={"RINGMASTER_LAB_FAULT": f"crash_at_phase:{phase}"})
    assert server.process.wait(10) == -9
    assert " TP1] Scheduler hit an exception: Traceback (most recent call last):" in server.log
    assert f"RuntimeError: simulated failure in phase {phase}" in server.log
    assert "Received sigquit from a child process. It usually means the child failed." in server.log


def test_killed_while_loading(standin):
    server = standin(env={"RINGMASTER_LAB_FAULT": "kill_at_phase:weights"})
    assert server.process.wait(10) == 1
    assert "Rank 0 scheduler died during initialization (exit code: -9)." in server.log


@pytest.mark.measures
@pytest.mark.parametrize(("word", "busy"), [("hang_at_phase", False), ("spin_at_phase", True)])
def test_no_progress(standin, word, busy):
    server = standin("--tp", "2", lab={"faults": [f"{word}:weights"]})
    eventually(lambda: "2/12" in server.log, 10)
    scheduler = server.worker("sglang::scheduler_TP0")
    time.sleep(0.3)
    before, size = cpu_ticks(scheduler), len(server.log)
    time.sleep(0.4)
    assert len(server.log) == size
    assert server.process.poll() is None
    assert (cpu_ticks(scheduler) - before > 5) is busy


def cpu_ticks(pid: int) -> int:
    return sum(int(one) for one in Path(f"/proc/{pid}/stat").read_text().split()[13:15])


def test_zombie_survives_and_ignores_sigterm(standin, tmp_path):
    mark = f"LAB_TEST={tmp_path}".encode()
    server = standin("--tp", "2", lab={"faults": ["leave_zombies"]}, env={"LAB_TEST": str(tmp_path), "SPT_NOENV": "1"})
    server.ready()

    def orphans() -> list:
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
                if mark in environ(pid).split(b"\0") and pid not in {server.process.pid, *server.children()}]

    eventually(lambda: [title(pid) for pid in orphans()] == ["sglang::scheduler_TP1"])
    (zombie,) = orphans()
    try:
        server.process.terminate()
        assert server.process.wait(5) == -9
        os.kill(zombie, signal.SIGTERM)
        time.sleep(0.2)
        assert alive(zombie)
    finally:
        os.kill(zombie, signal.SIGKILL)


def environ(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def test_no_answer_and_broken_numbers(standin):
    server = standin(lab={"faults": ["no_answer"]})
    server.ready()
    with pytest.raises(TimeoutError):
        server.ask("POST", "/generate", {"text": "x"}, timeout_s=0.7)
    assert server.ask("GET", "/health_generate")[0] == 200
    broken = standin(lab={"faults": ["nan"]})
    broken.ready()
    assert broken.ask("POST", "/generate", {"text": "x", "sampling_params": {"max_new_tokens": 3}})[1]["text"] == "! ! !"


FORCED = {
    "text": "a text of some length, so that it has tokens", "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2,
    "sampling_params": {"max_new_tokens": 4, "temperature": 0},
}


def test_logprobs_have_the_fields_that_sglang_gives_them(shared):
    meta = shared.ask("POST", "/generate", FORCED)[1]["meta_info"]
    forced, generated, best = (meta[name] for name in ("input_token_logprobs", "output_token_logprobs", "output_top_logprobs"))
    assert [len(rows) for rows in (forced, generated, best)] == [meta["prompt_tokens"], 4, 4]
    assert forced[0][0] is None
    assert all(isinstance(token, int) and logprob < 0.02 and text is None for logprob, token, text in forced[1:] + generated)
    assert all(first == item and first[0] > second[0] for (first, second), item in zip(best, generated, strict=True))
    assert shared.ask("POST", "/generate", FORCED)[1]["meta_info"]["input_token_logprobs"] == forced
    later = shared.ask("POST", "/generate", FORCED | {"logprob_start_len": 3})[1]["meta_info"]["input_token_logprobs"]
    assert later == forced[3:]
    assert "input_token_logprobs" not in shared.ask("POST", "/generate", FORCED | {"return_logprob": False})[1]["meta_info"]


def _logprobs(env: dict | None = None, argv=TP4, faults: dict | None = None) -> list:
    flags, _ = standin_flags.resolve(["--model-path", "m", *argv])
    return logprobs.Logprobs(env or {}, flags, latency.COEFFICIENTS, faults or {}).of(list(range(1, 400)), 1.0)[1:]


def test_logprobs_move_a_little_with_the_way_of_the_all_reduce_and_much_when_corrupt():
    base = _logprobs()
    assert statistics.fmean(base) == pytest.approx(-2.0, abs=0.25)
    assert statistics.stdev(base) == pytest.approx(2.0, abs=0.3)

    def moved(other: list) -> float:
        return statistics.fmean(abs(a - b) for a, b in zip(base, other, strict=True))

    for env in ({"NCCL_MAX_NCHANNELS": "2"}, {"NCCL_PROTO": "Simple"}):
        assert 0.005 < moved(_logprobs(env)) < 0.03
    assert 0.005 < moved(_logprobs(argv=("--tp-size", "4"))) < 0.03
    assert moved(_logprobs({"NCCL_NTHREADS": "256"})) == 0
    one_rank = ("--tp-size", "1")
    assert _logprobs({"NCCL_PROTO": "Simple"}, one_rank) == _logprobs(argv=one_rank)
    assert moved(_logprobs(faults={"corrupt": ""})) == pytest.approx(1.0, abs=0.1)
    assert moved(_logprobs(faults={"corrupt": "0.2"})) == pytest.approx(0.2, abs=0.02)
    assert _logprobs(faults={"nan": ""}) == [None] * 398


def test_port_held_by_another_server_and_by_something_mute(standin):
    first = standin()
    first.ready()
    second = standin("--port", str(first.port))
    assert second.process.wait(10) == 3
    assert "address already in use" in second.log
    assert "fired up" in second.log
    with socket.create_server(("127.0.0.1", 0)) as mute:
        third = standin("--port", str(mute.getsockname()[1]))
        eventually(lambda: "address already in use" in third.log, 10)
        time.sleep(0.3)
        assert third.process.poll() is None


# ---- role


def install(tmp_path, *, check: bool = False, **wanted) -> tuple:
    """Runs the role's installer as the role does; (exit code, its answer)."""
    lab = tmp_path / "lab"
    full = {"lab_dir": str(lab), "state_dir": str(lab / "state"), "model_path": str(lab / "model"), "model": {}, "reset": False} | wanted
    sources = [*STANDIN.glob("sglang/*.py"), *STANDIN.glob("*/METADATA")]
    files = {str(path.relative_to(STANDIN)): path.read_text() for path in sources}
    code = (LAB / "files" / "install.py").read_text()
    done = subprocess.run([sys.executable, "-c", code, json.dumps(full), "--check" if check else "--apply"],
                          input=json.dumps(files), capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_installer(tmp_path):
    assert install(tmp_path, check=True)[1]["changed"]
    assert not (tmp_path / "lab").exists()
    assert install(tmp_path)[0] == 0
    assert install(tmp_path) == (0, {"changed": [], "error": ""})
    interpreter = tmp_path / "lab" / "venv" / "bin" / "python"
    code = "import importlib.metadata, sglang; print(importlib.metadata.version('sglang'), sglang.__version__)"
    found = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.split() == ["0.5.16+simulated"] * 2
    module = next((tmp_path / "lab").rglob("sglang/latency.py"))
    original = module.read_text()
    module.write_text("changed")
    (module.parent / "old.py").write_text("")
    assert len(install(tmp_path, check=True)[1]["changed"]) == 2
    assert len(install(tmp_path)[1]["changed"]) == 2
    assert module.read_text() == original
    assert not (module.parent / "old.py").exists()


def test_installer_resets_only_a_free_state_directory(tmp_path):
    state = tmp_path / "lab" / "state"
    state.mkdir(parents=True)
    (state / "photo.jpg").write_text("")
    code, answer = install(tmp_path, reset=True)
    assert code == 1
    assert "holds nothing of Ringmaster's" in answer["error"]
    (state / "lock").write_text('{"who": "ada@desk (pid 7)", "since": "2026-01-02T03:04:05Z"}')
    import fcntl

    with (state / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, answer = install(tmp_path, reset=True)
        assert code == 1
        assert "in use by ada@desk (pid 7) since 2026-01-02T03:04:05Z" in answer["error"]
    assert install(tmp_path, reset=True)[0] == 0
    assert not state.exists()


def test_installer_says_what_it_cannot_write(tmp_path):
    (tmp_path / "file").write_text("")
    code, answer = install(tmp_path, lab_dir=str(tmp_path / "file" / "lab"))
    assert code == 1
    assert "lab_dir" in answer["error"]
    assert str(tmp_path / "file") in answer["error"]

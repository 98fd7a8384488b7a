# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One workload through our own load generator, sglang.bench_serving or AIPerf: the same fields of the same row.

A tool gets the API key by its environment, never by an argument that others can read.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
from typing import Any, Callable, NamedTuple

from . import bench_process, bench_results, files, loadgen, workload_row
from .bench_warnings import warnings
from .errors import RingmasterError
from .http_client import Stopped
from .workload_row import Measured, Workload

__all__ = ["TOOLS", "Stopped", "measure", "warnings"]

TOOLS = ("ringmaster", "sglang", "aiperf")
START_S = 300.0  # to import, to read a tokenizer, to make prompts: from a cold network disk it takes minutes
ASK_S = 60.0
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
WHERE_IS_SGLANG = "import importlib.util as u; print(u.find_spec('sglang').submodule_search_locations[0])"
# AIPerf reads no key from its environment: this puts it into the list of arguments inside the process, where no `ps` shows it.
AIPERF_WITH_KEY = (
    "import os, sys; sys.argv[0] = 'aiperf'; sys.argv += ['--api-key', os.environ.pop('OPENAI_API_KEY')]; "
    "from aiperf.cli import app; sys.exit(app())"
)
PROGRESS = re.compile(rb"(\d+)/(\d+) \[")


class Launch(NamedTuple):
    """How to start a tool and what to make of it: files are named from its scratch directory, the first becomes the row."""

    arguments: list[str]
    environment: dict[str, str]
    files: tuple[str, ...]
    read: Callable[[str, Workload], tuple[Measured, list[str]]]


def measure(
    tool: str,
    base_url: str,
    workload: dict[str, Any],
    *,
    python: str,
    directory: str,
    api_key: str | None = None,
    log_tail: Callable[[], str] | None = None,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
    aiperf: str | None = None,
    model: str | None = None,
    trust_remote_code: bool = False,
    user: str | None = None,
    environment: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Runs one workload with TOOL (one of TOOLS) and returns its row: the fields of loadgen.measure (workload, callbacks: see there) and

    tool       its name
    artefact   path of the tool's own file in DIRECTORY; None for "ringmaster", or when it wrote none
    command    its arguments as a list, without the key; None for "ringmaster"

    python: the interpreter that has SGLang, for "sglang". aiperf: AIPerf's executable, in an environment of its own. model: directory
    with the model's tokenizer (AIPerf must have it; sglang asks the server otherwise). user: who the tool runs as. environment: the
    server's, which `python` may need to import SGLang (LD_LIBRARY_PATH, PYTHONPATH); AIPerf gets none of it.

    What a tool does not tell is None (contaminated, accept_length) or empty. Everything that goes wrong with it is in `errors`, with
    its last words. decode_tok_s of the other tools is the median request's rate times the concurrency. Raises RingmasterError for an
    impossible workload, an unknown tool or one that is not there; Stopped within 0.2 s of stop() being true, and what stop() raises."""
    if tool == "ringmaster":
        row = loadgen.measure(base_url, workload, api_key=api_key, log_tail=log_tail, stop=stop, progress=progress)
        return {**row, "tool": tool, "artefact": None, "command": None}
    if tool not in TOOLS:
        raise RingmasterError(f"benchmark tool {tool!r} is not known.", f"Use one of {', '.join(TOOLS)}.")
    work, base_url = workload_row.checked(workload), base_url.rstrip("/")
    with bench_process.Scratch(user) as scratch:
        surroundings = {**scratch.environment(), **({"OPENAI_API_KEY": api_key} if api_key else {})}
        stem = os.path.join(directory, f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', work.name) or 'workload'}-{tool}")
        if tool == "sglang":
            surroundings.update(environment or {})

            def answer(code):
                return bench_process.answer([python, "-c", code], surroundings, scratch, log_path=f"{stem}.log", limit_s=ASK_S, stop=stop)

            launch = _sglang(work, base_url, surroundings, answer, python=python, model=model)
        else:
            launch = _aiperf(work, base_url, surroundings, aiperf=aiperf, model=model, trust=trust_remote_code)
        row, artefact = _measured(tool, launch, work, base_url, scratch, stem, api_key, log_tail, stop, _Progress(work, progress))
    return {**row, "tool": tool, "artefact": artefact, "command": launch.arguments}


def _measured(tool, launch, work, base_url, scratch, stem, api_key, log_tail, stop, progress):
    """(row, artefact). AIPerf warms up by itself, with prompts of their own. The warm-up of sglang's sends the first measured prompt and
    then flushes once, whatever the server says to it: so ours comes before it."""
    if tool == "sglang":
        problems, sensible = loadgen.prepare(base_url, work, api_key=api_key, stop=stop, finished=progress.warmed)
    else:
        problem = loadgen.flush_cache(base_url, headers=loadgen.authorization(api_key), stop=stop)
        problems, sensible = [problem] if problem else [], True
    if not sensible:
        return workload_row.row(work, workload_row.NOTHING, errors=problems), None
    log_before = log_tail() if log_tail else ""
    log_path = f"{stem}.log"
    limit_s = START_S + math.ceil((work.requests + work.warmup_requests) / work.concurrency) * work.timeout_s
    failure = bench_process.run(
        launch.arguments, launch.environment, scratch, log_path=log_path, limit_s=limit_s, stop=stop, watch=progress.watch
    )
    progress.end()
    _hide(api_key, log_path)
    log = loadgen.new_text(log_before, log_tail()) if log_tail else ""
    artefact, measured, faults = None, workload_row.NOTHING, []
    try:
        text, artefact = _kept(launch, scratch, stem, api_key)
        measured, faults = launch.read(text, work)
    except FileNotFoundError:
        failure = failure or "ended well, but left no result"
    except (OSError, ValueError) as error:
        failure = failure or f"its result cannot be used ({error})"
    if failure:
        failure += f": {bench_process.last_words(log_path)} (all of it in {log_path})"
    errors = problems + [f"{tool}: {fault}" for fault in (failure, *faults) if fault]
    return workload_row.row(work, measured, errors=errors, log=log), artefact


def _kept(launch, scratch, stem, api_key):
    """(text, path) of the tool's result, which is copied beside the trial's log, as are its other files. Raises OSError."""
    kept = {}
    for name in reversed(launch.files):
        with contextlib.suppress(OSError) if name != launch.files[0] else contextlib.nullcontext():
            kept[name] = _without(api_key, scratch.read(name))
            files.write_atomic(f"{stem}-{os.path.basename(name)}", kept[name], mode=0o600)
    return kept[launch.files[0]].decode(errors="replace"), f"{stem}-{os.path.basename(launch.files[0])}"


def _hide(api_key, path):
    """A key that the tool printed is not kept."""
    with open(path, "rb") as file:
        said = file.read()
    if _without(api_key, said) != said:
        files.write_atomic(path, _without(api_key, said), mode=0o600)


def _without(api_key, data):
    """sglang.bench_serving writes all of /server_info into its result, the server's key among it."""
    return data.replace(api_key.encode(), b"***") if api_key else data


def _sglang(work, base_url, environment, answer, *, python, model):
    """sglang.benchmark.serving (sglang.bench_serving before it had that name), with the flags that only some versions know."""
    try:
        root = answer(WHERE_IS_SGLANG)
        newer = os.path.join(root, "benchmark", "serving.py")
        older = os.path.join(root, "bench_serving.py")
        module = "sglang.benchmark.serving" if os.path.exists(newer) else "sglang.bench_serving"
        with open(newer if os.path.exists(newer) else older, encoding="utf-8", errors="replace") as file:
            source = file.read()
    except OSError as error:
        what = f"{python} has no sglang.bench_serving: {error}."
        raise RingmasterError(what, "Use benchmark_tool: ringmaster, or an interpreter that has SGLang.") from None
    flags = {
        "--backend": "sglang",
        "--base-url": base_url,
        **({"--model": model, "--tokenizer": model} if model else {}),
        "--dataset-name": "random-ids",
        "--random-input-len": work.input_len,
        "--random-output-len": work.output_len,
        "--random-range-ratio": "1.0",  # else lengths are drawn from 0 to these
        "--num-prompts": work.requests,
        "--max-concurrency": work.concurrency,
        "--warmup-requests": 0,
        "--seed": _seed(),
        "--output-file": "result.jsonl",
        "--output-details": None,
    }
    flags.update({flag: None for flag in ("--tokenize-prompt", "--cache-report") if f'"{flag}"' in source})
    return Launch([python, "-m", module, *_words(flags)], {**environment, **OFFLINE}, ("result.jsonl",), bench_results.read_sglang)


def _aiperf(work, base_url, environment, *, aiperf, model, trust):
    """`aiperf profile` of 0.13. Not OFFLINE: with it AIPerf looks for a directory's name in the hub's cache."""
    if not aiperf or not os.access(aiperf, os.X_OK):
        raise RingmasterError(f"AIPerf's executable {aiperf!r} is not there.", "Install it in an environment of its own and name it.")
    if not model or not os.path.isdir(model):
        raise RingmasterError(f"AIPerf needs the model's tokenizer, and {model!r} is no directory.", "Use a local model path.")
    flags = {
        "--model": model,
        "--tokenizer": model,
        **({"--tokenizer-trust-remote-code": None} if trust else {}),
        "--url": base_url,
        "--endpoint-type": "completions",
        "--streaming": None,
        "--use-server-token-count": None,
        "--concurrency": work.concurrency,
        "--request-count": work.requests,
        **({"--warmup-request-count": work.warmup_requests} if work.warmup_requests else {}),
        "--num-dataset-entries": work.requests + work.warmup_requests,  # of fewer some would be sent twice
        "--synthetic-input-tokens-mean": work.input_len,
        "--synthetic-input-tokens-stddev": 0,
        "--output-tokens-mean": work.output_len,
        "--output-tokens-stddev": 0,
        "--random-seed": _seed(),
        "--request-timeout-seconds": work.timeout_s,
        "--ui-type": "none",
        "--no-gpu-telemetry": None,
        "--no-server-metrics": None,
        "--output-artifact-dir": "out",
    }
    extra = {"ignore_eos": "true", "min_tokens": work.output_len, "temperature": 0}
    words = _words(flags) + [word for name, value in extra.items() for word in ("--extra-inputs", f"{name}:{value}")]
    with_key = [os.path.join(os.path.dirname(aiperf), "python"), "-c", AIPERF_WITH_KEY]
    program = with_key if "OPENAI_API_KEY" in environment else [aiperf]
    return Launch(
        [*program, "profile", *words],
        environment,
        ("out/profile_export.jsonl", "out/profile_export_aiperf.json"),
        bench_results.read_aiperf,
    )


class _Progress:
    """Counts requests that have ended, where the tool draws a bar of its measured ones."""

    def __init__(self, work, report):
        self.work, self.report, self.done = work, report, 0

    def warmed(self):
        self._tell(self.done + 1)

    def watch(self, output):
        found = [int(done) for done, total in PROGRESS.findall(output) if int(total) == self.work.requests]
        if found:
            self._tell(self.work.warmup_requests + found[-1])

    def end(self):
        self._tell(self.work.warmup_requests + self.work.requests)

    def _tell(self, done):
        if self.report is not None and done > self.done:
            self.report(done, self.work.warmup_requests + self.work.requests)
        self.done = max(done, self.done)


def _words(flags):
    return [word for flag, value in flags.items() for word in ([flag] if value is None else [flag, str(value)])]


def _seed():
    """A new one each time: on a warm server the same prompts would come from the cache."""
    return secrets.randbelow(1 << 31)

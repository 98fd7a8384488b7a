# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One step of a plan: launch, wait until it answers, prove, measure, stop. Gives a trial result (docs/architecture.md)."""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
import time

from . import (
    bench_tools,
    cores,
    engine_info,
    gpus,
    kernel_log,
    log_cap,
    log_lines,
    nccl_log,
    outcome,
    outputs,
    proof,
    readiness,
    redaction,
    release,
    server_command,
    server_log,
    smoke,
    sockets,
)
from .errors import RingmasterError
from .http_client import HttpError
from .server import Died, Server
from .state import now
from .transaction import server_environment
from .waiting import Hung, Refused, Stall, until_ready

LAST_WORDS_S = 0.5
LOG_TAIL_BYTES = 8 << 20
LAST_CLEANUP_S = 10.0  # a launcher that was told to stop closes its port, ends its workers, and then itself: exit 0
_PATH = "/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Interrupted(Exception):
    """The plan is to end now: the reason."""


class Trial:
    """Runs one step. `check` is called often and raises Interrupted; `report(kind, **fields)` tells the world.

    `factor` {NAME: value or None}: the NCCL variables that are to be felt. `first`: the plan's first launch of this configuration, which
    is tried out by two ranks. `capture`: NCCL is to write down what it does.
    """

    def __init__(
        self, *, trial_id, host, configuration, workloads, settings, state, software, check, report, factor=None, first=False, capture=False
    ):
        self.id, self.host, self.configuration, self.workloads = trial_id, host, configuration, workloads
        self.settings, self.state, self.check, self.report = settings, state, check, report
        self.software = software  # of engine_info.read
        self.factor, self.first, self.capture = factor or {}, first, capture
        self.directory = state.make_trial(trial_id)
        self.log_path = os.path.join(self.directory, "server.log")
        self.port = settings["port"] or sockets.free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.api_key = configuration["server"]["flags"].get("api-key")
        self.secrets = redaction.secrets(configuration)
        self.account = configuration["server"].get("user")
        self.environment = self._environment()
        self.reader = server_log.LogReader(self.log_path)
        self.reader.facts["sglang"] = software["sglang"]  # the log does not say it, advice wants it
        self.result = {
            "id": trial_id, "host": host, "started": now(), "finished": None, "reached": "spawn", "outcome": None,
            "configuration": redaction.configuration(configuration), "fingerprint": None, "ended": None, "cause": None,
            "phases": [], "effective": {}, "nccl": {}, "smoke": None, "workloads": [], "gpus": {}, "engine": {}, "outputs": None,
            "log": self.log_path,
        }  # fmt: skip

    def run(self):
        """The trial result. An Interrupted goes through, after the server has been stopped."""
        gpus_before = gpus.read()
        if not sockets.is_free(self.port):
            refused = outcome.refused(f"port {self.port} in use", "Free it, or set tune_port: 0 to take any free one.")
            self.result.update(refused, ended=outcome.NOTHING_STARTED, finished=now())
            return self.result
        if self.first and not self._smoke_passes():
            return self.result
        part = self.configuration["server"]
        server = Server(
            server_command.arguments(part, host="127.0.0.1", port=self.port),
            self.environment,
            log_path=self.log_path,
            user=self.account,
            directory=cores.directory(self.directory) if self.settings["keep_cores"] else part.get("directory"),
            core_dumps=bool(self.settings["keep_cores"]),
        )
        begun = time.monotonic()
        server.start()
        killer = kernel_log.OomWatch(server.popen.pid)
        try:
            answer = until_ready(
                server,
                self.reader,
                readiness.Prober(self.base_url, api_key=self.api_key),
                port=self.port,
                settings=self.settings,
                check=self.check,
                report=self.report,
            )
            self.result.update(reached="ready", outcome="ready", ready_after_s=round(time.monotonic() - begun, 2))
            self._describe(server, answer)
            self.report("ready", seconds=self.result["ready_after_s"], simulated=self.result["engine"]["simulated"])
            self._measure(server)
        except Refused as problem:
            self.result.update(outcome.refused(problem.summary, problem.advice))
        except Hung as stall:
            was_ready = self.result["outcome"] == "ready"
            timeout_s = self.settings["stall_timeout_s"]
            self.result.update(outcome.hung(stall, self.reader, was_ready=was_ready, log=self.log_path, stall_timeout_s=timeout_s))
        except Died as death:
            self._died(server, death, killer)
        finally:
            killer.close()
            drain = self.settings["drain_timeout_s"] if self.result["outcome"] == "ready" else None
            self.report("phase", phase="stop")
            self.result["ended"] = server.stop(drain_timeout_s=drain)
            given_back, gpus_after = release.wait(gpus_before, None if self.result["outcome"] == "refused" else self.port)
            self.result["ended"].update(given_back)
            self.result["gpus"].update(before=gpus_before, after=gpus_after)
            self.result["finished"] = now()
            self._close()
        return self.result

    # --- before -----------------------------------------------------------------------------------------------------

    def _environment(self):
        """What the server is started with; makes the directories that its processes write to."""
        account = pwd.getpwnam(self.account) if self.account else None
        base = {
            "PATH": _PATH,
            "HOME": account.pw_dir if account else os.path.expanduser("~"),
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",  # NCCL's lines go through C stdout and would be lost with a killed process
            **server_environment(self.configuration, self.state),
        }
        directories = {name: os.path.join(self.directory, name) for name in ("witness", "nccl")}
        for path in directories.values():
            os.mkdir(path, 0o700)
            if account and os.geteuid() == 0:
                os.chown(path, account.pw_uid, account.pw_gid)
        given = {**base, **self.configuration["nccl"]["settings"]}
        self.logging = nccl_log.environment(directories["nccl"], given) if self.capture else {}
        return {**base, **self.logging, "RINGMASTER_WITNESS": directories["witness"]}

    def _smoke_passes(self):
        """Two ranks add before a long load. Where they cannot be tried (one rank, no torch) the load has to tell."""
        if server_command.rank_count(self.configuration["server"]) < smoke.RANKS:
            return True
        self.report("phase", phase="smoke")
        environment = {name: value for name, value in self.environment.items() if name not in ("RINGMASTER_WITNESS", *self.logging)}
        found = smoke.run(
            self.configuration["server"]["python"],
            environment,
            self.directory,
            user=self.account,
            stall_timeout_s=self.settings["stall_timeout_s"],
            check=self.check,
        )
        self.result["smoke"] = found
        if found["outcome"] in ("passed", "skipped"):
            return True
        reader = server_log.LogReader(found["log"])
        self.result.update(outcome.no_all_reduce(found, reader), reached="smoke", log=found["log"])
        self.result.update(ended=outcome.NOTHING_STARTED, finished=now())
        return False

    def _died(self, server, death, killer):
        if death.role != "launcher":
            is_going = self.result["outcome"] == "ready" and not sockets.is_open(self.port)
            with contextlib.suppress(subprocess.TimeoutExpired):  # a moment for the launcher's words about it to reach the log
                server.popen.wait(LAST_CLEANUP_S if is_going else LAST_WORDS_S)
        found = outcome.died(
            death,
            self.reader,
            launcher_exit=server.popen.poll(),
            was_ready=self.result["outcome"] == "ready",
            kernel_lines=killer.lines(server.pids | {server.popen.pid}),
            full_disk=None if os.statvfs(self.directory).f_bavail else self.directory,
        )
        cause = redaction.hide(found["cause"], self.secrets)
        self.result.update(outcome=found["outcome"], cause=cause)
        self.report("died", role=death.role, summary=(cause or {}).get("summary", ""), log=self.log_path)

    # --- what a ready server is -----------------------------------------------------------------------------------

    def _describe(self, server, answer):
        version = str(answer["server_info"].get("version") or "unknown")
        found_gpus = gpus.read()
        self._prove(server)
        self.result["engine"] = {
            "name": "sglang",
            "version": version,
            "simulated": "+simulated" in version,
            "torch": self.software["torch"],
            "nccl": self.reader.facts.get("nccl") or self.software["nccl"],
            "libnccl_sha256": self.software["libnccl_sha256"],
            "cuda": self.software["cuda"],
            "driver": found_gpus[0]["driver"] if found_gpus else None,
        }
        self.result["fingerprint"] = engine_info.fingerprint(self.result["engine"], found_gpus, self.workloads)
        self.result["gpus"]["peak"] = found_gpus

    def _prove(self, server):
        """What the ranks really have, by the best witness there is."""
        nccl, ranks = self.configuration["nccl"], server.schedulers()
        captures = nccl_log.read(os.path.join(self.directory, "nccl")) if self.capture else {}
        effective = proof.effective(
            ranks,
            server.popen.pid,
            proof.read_witnesses(self.environment["RINGMASTER_WITNESS"]),
            configured=nccl["settings"],
            given={**self.configuration["environment"], **self.logging},
            captures=captures,
        )
        wanted = {**nccl["settings"], **dict.fromkeys(nccl.get("removed", ()))}
        problems = proof.problems(wanted, effective, server_command.rank_count(self.configuration["server"]))
        found = {title: captures[process.pid] for title, process in ranks.items() if process.pid in captures}
        problems += proof.felt(self.factor, found)
        self.result["nccl"] = {title: nccl_log.summary(capture) for title, capture in found.items()}
        self.result.update(effective=effective, effective_problems=problems, effective_ok=not problems)

    def _measure(self, server):
        stall = Stall(self.log_path, self.settings)

        def stop():
            for path in self._captures() if self.capture else ():
                log_cap.punch(path, cap_bytes=self.settings["log_cap_bytes"])
            self.check()
            server.check()
            stall.check()
            return False

        if self.settings["outputs"]:
            self.report("phase", phase="outputs")
            self.result["outputs"] = outputs.read(self.base_url, api_key=self.api_key, stop=stop)
        for workload in self.workloads:
            self.result["workloads"].append(self._workload(workload, server, stall, stop))
        if self.capture:
            self._prove(server)  # what was measured made NCCL write more
        with contextlib.suppress(RingmasterError):  # a nvidia-smi that hangs is a matter for the diagnosis
            self.result["gpus"]["health"] = gpus.health(xids=kernel_log.xids())

    def _workload(self, workload, server, stall, stop):
        offset, part = log_cap.size_of(self.log_path), self.configuration["server"]

        def log_tail():
            with contextlib.suppress(FileNotFoundError), open(self.log_path, "rb") as file:
                file.seek(max(offset, log_cap.size_of(self.log_path) - LOG_TAIL_BYTES))
                return file.read(LOG_TAIL_BYTES).decode(errors="replace")
            return ""

        def progress(done, total):
            stall.note()
            self.report("workload", name=workload["name"], done=done, total=total)

        try:
            row = bench_tools.measure(
                self.settings["benchmark_tool"],
                self.base_url,
                workload,
                python=part["python"],
                directory=self.directory,
                api_key=self.api_key,
                log_tail=log_tail,
                stop=stop,
                progress=progress,
                aiperf=self.settings["aiperf_path"],
                model=part["flags"].get("model-path"),
                trust_remote_code=bool(part["flags"].get("trust-remote-code")),
                user=self.account,
                environment=self.configuration["environment"],
            )
        except (OSError, HttpError) as error:
            row = {**workload, "decode_tok_s": None, "errors": [str(error)]}
        if row["errors"]:
            time.sleep(LAST_WORDS_S)  # sockets close before their process is gone, and a dead server is the better explanation
            while not sockets.is_open(self.port):  # told to stop, it closes its port first and ends seconds later
                stop()
                time.sleep(LAST_WORDS_S)
        server.look()
        self.reader.poll()
        row["warnings"] = bench_tools.warnings(row, self.reader.facts, flags=part["flags"]) if row["decode_tok_s"] else []
        return row

    # --- the end --------------------------------------------------------------------------------------------------

    def _close(self):
        self.reader.finish()
        ready = self.result["reached"] == "ready"  # its own word for it in the log proves nothing before
        self.result["phases"] = [{**row, "name": "ready"} if ready and row["name"] == "ready_line" else row for row in self.reader.phases]
        if self.result["reached"] != "ready":
            self.result["reached"] = self.reader.phase
        self.result["cores"] = cores.found(self.directory) if self.settings["keep_cores"] else []
        for path in (self.log_path, *self._captures()):
            with contextlib.suppress(OSError, RingmasterError):
                log_lines.fold(path, cap_bytes=self.settings["log_cap_bytes"], hide=self.secrets)

    def _captures(self):
        """Files that NCCL wrote. The directory is the server's user's: no link is followed."""
        return [entry.path for entry in os.scandir(os.path.join(self.directory, "nccl")) if entry.is_file(follow_symlinks=False)]

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One step of a plan: launch, wait until it answers, prove, measure, stop. Gives a trial result (docs/architecture.md)."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import pwd
import subprocess
import time

from . import gpus, http_client, loadgen, log_cause, log_lines, proof, readiness, redaction, server_command, server_log, sockets
from .errors import RingmasterError
from .server import Died, Server
from .state import now
from .transaction import server_environment

CHECK_INTERVAL_S = 0.2
LOOK_INTERVAL_S = 1.0
RELEASE_TIMEOUT_S = 20.0
LAST_WORDS_S = 0.5
_PATH = "/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Interrupted(Exception):
    """The plan is to end now: the reason."""


class Trial:
    """Runs one step. `check` is called often and raises Interrupted; `report(kind, **fields)` tells the world."""

    def __init__(self, *, trial_id, host, configuration, workloads, settings, state, software, check, report):
        self.id, self.host, self.configuration, self.workloads = trial_id, host, configuration, workloads
        self.settings, self.state, self.check, self.report = settings, state, check, report
        self.software = software  # of engine_info.read
        self.directory = state.make_trial(trial_id)
        self.log_path = os.path.join(self.directory, "server.log")
        self.witness_directory = os.path.join(self.directory, "witness")
        self.port = settings["port"] or sockets.free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.api_key = configuration["server"]["flags"].get("api-key")
        self.reader = None
        self.result = {
            "id": trial_id, "host": host, "started": now(), "finished": None, "reached": "spawn", "outcome": None,
            "configuration": redaction.configuration(configuration), "fingerprint": None, "ended": None, "cause": None,
            "phases": [], "effective": {}, "workloads": [], "gpus": {}, "engine": {}, "outputs": None, "log": self.log_path,
        }  # fmt: skip

    def run(self):
        """The trial result. An Interrupted goes through, after the server has been stopped."""
        server = self._server()
        gpus_before = gpus.read()
        if not sockets.is_free(self.port):
            return self._refused(f"port {self.port} in use", "Free it, or set tune_port: 0 to take any free one.")
        ready = False
        begun = time.monotonic()
        server.start()
        try:
            answer = self._wait_until_ready(server)
            if answer is not None:
                ready = True
                self.result["outcome"] = "ready"
                self.result["ready_after_s"] = round(time.monotonic() - begun, 2)
                self.report("ready", seconds=self.result["ready_after_s"])
                self._describe(server, answer)
                self._measure(server)
        except Died as death:
            self._died(server, death, was_ready=ready)
        finally:
            drain = self.settings["drain_timeout_s"] if ready and self.result["outcome"] == "ready" else None
            self.report("phase", phase="stop")
            self.result["ended"] = server.stop(drain_timeout_s=drain)
            self._wait_for_release(gpus_before)
            self.result["finished"] = now()
            self._close_log(server)
        return self.result

    # --- launch ---------------------------------------------------------------------------------------------------

    def _server(self):
        part = self.configuration["server"]
        user = part.get("user")
        os.mkdir(self.witness_directory, 0o700)
        if user and os.geteuid() == 0:
            account = pwd.getpwnam(user)
            os.chown(self.witness_directory, account.pw_uid, account.pw_gid)
        environment = {
            "PATH": _PATH,
            "HOME": pwd.getpwnam(user).pw_dir if user else os.path.expanduser("~"),
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",  # NCCL's lines go through C stdout and would be lost with a killed process
            **server_environment(self.configuration, self.state),
            "RINGMASTER_WITNESS": self.witness_directory,
        }
        words = server_command.arguments(part, host="127.0.0.1", port=self.port)
        return Server(words, environment, log_path=self.log_path, user=user, directory=part.get("directory"))

    def _wait_until_ready(self, server):
        """What the server answered, or None when the outcome is decided otherwise (hung, refused). Raises Died.

        Known members are checked all the time; the whole tree, which costs a scan of /proc, is looked at now and then.
        """
        reader = self.reader = self._open_reader()
        progress = readiness.Progress(time.monotonic())
        prober = readiness.Prober(self.base_url, api_key=self.api_key)
        memory = gpus.MemoryWatch()
        look_due, port_is_ours, silent_s = 0.0, False, 0.0
        while True:
            self.check()
            server.check()
            moment = time.monotonic()
            for event in reader.poll():
                progress.note(moment)
                self.report(**event)
            self.result["reached"] = reader.phase
            if moment >= look_due or (not port_is_ours and sockets.listening_inodes(self.port)):
                look_due = moment + LOOK_INTERVAL_S
                tree = server.look()
                owner = readiness.whose_port(self.port, tree)
                if owner == "foreign" and owner == readiness.whose_port(self.port, server.look()):  # not just opened, nor just closed
                    self._refused(f"port {self.port} in use by a server that is not this trial's", "Stop it, or set tune_port: 0.")
                    return None
                port_is_ours = owner == "ours"
                # Our own probes make the server write lines once it listens: from then on only phases in the log count.
                sample = readiness.sample(tree, 0 if port_is_ours else reader.size, memory.poll())
                silent_s = progress.feed(sample, moment)
            if port_is_ours:
                answer = prober.poll()
                if answer is not None:
                    server.look()  # so that every rank that answers is known
                    self.result["reached"] = "ready"
                    return answer
            if silent_s > self.settings["stall_timeout_s"]:
                self._hung(silent_s, prober.last_problem if port_is_ours else "its port is closed")
                return None
            time.sleep(CHECK_INTERVAL_S)

    def _open_reader(self):
        reader = server_log.LogReader(self.log_path)
        reader.facts["sglang"] = self.software["sglang"]  # the log does not say it, advice wants it
        return reader

    # --- outcomes -------------------------------------------------------------------------------------------------

    def _refused(self, summary, advice):
        self.result.update(outcome="refused", finished=now(), cause=_cause("port", summary, advice))
        return self.result

    def _hung(self, silent_s, problem):
        summary = f"no progress for {silent_s:.0f} s in phase {self.reader.phase}; {problem}"
        advice = f"Read {self.log_path}. A slower machine needs a larger tune_stall_timeout_s (now {self.settings['stall_timeout_s']:.0f})."
        self.result.update(outcome="hung", cause=_cause("stalled", summary, advice))

    def _died(self, server, death, *, was_ready):
        if death.role != "launcher":
            with contextlib.suppress(subprocess.TimeoutExpired):  # a moment for the launcher's words about it to reach the log
                server.popen.wait(LAST_WORDS_S)
        self.reader = self.reader or self._open_reader()
        self.reader.finish()
        killed_role = None if death.role == "launcher" else death.role
        self.result["outcome"] = "killed" if was_ready and killed_role else "crashed"
        self.result["cause"] = log_cause.cause(self.reader, exit_code=death.exit_code, killed_role=killed_role)
        self.report("died", role=death.role, summary=(self.result["cause"] or {}).get("summary", ""))

    # --- what a ready server is -----------------------------------------------------------------------------------

    def _describe(self, server, answer):
        info, flags = answer["server_info"], self.configuration["server"]
        ranks = server.schedulers()
        version = str(info.get("version") or "unknown")
        found_gpus = gpus.read()
        witnesses = proof.read_witnesses(self.witness_directory)
        self.result["effective"] = proof.effective(
            ranks,
            server.popen.pid,
            witnesses,
            configured=self.configuration["nccl"]["settings"],
            given=self.configuration["environment"],
        )
        wanted = dict(self.configuration["nccl"]["settings"])
        wanted.update(dict.fromkeys(self.configuration["nccl"].get("removed", ())))
        self.result["effective_problems"] = proof.problems(wanted, self.result["effective"], server_command.rank_count(flags))
        self.result["effective_ok"] = not self.result["effective_problems"]
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
        self.result["fingerprint"] = fingerprint(self.result["engine"], found_gpus, self.workloads)
        self.result["gpus"]["peak"] = found_gpus

    def _measure(self, server):
        def stop():
            self.check()
            server.check()
            return False

        for workload in self.workloads:
            offset = os.path.getsize(self.log_path)

            def log_tail(offset=offset):
                with open(self.log_path, "rb") as file:
                    file.seek(offset)
                    return file.read().decode(errors="replace")

            def progress(done, total, name=workload["name"]):
                self.report("workload", name=name, done=done, total=total)

            try:
                row = loadgen.measure(self.base_url, workload, api_key=self.api_key, log_tail=log_tail, stop=stop, progress=progress)
            except (OSError, http_client.HttpError) as error:
                row = {**workload, "decode_tok_s": None, "errors": [str(error)]}
            if row["errors"]:
                time.sleep(LAST_WORDS_S)  # sockets close before their process is gone, and a dead server is the better explanation
            server.look()
            self.result["workloads"].append(row)

    # --- the end --------------------------------------------------------------------------------------------------

    def _wait_for_release(self, before):
        """Until the port is free and the GPUs' memory is back to what it was (1 % or 64 MiB more is noise)."""
        begun = time.monotonic()
        former = gpus.memory_used_bytes(before)
        while time.monotonic() - begun < RELEASE_TIMEOUT_S:
            after = gpus.read() if former else None
            held = {
                uuid: used - former[uuid]
                for uuid, used in gpus.memory_used_bytes(after).items()
                if uuid in former and used > former[uuid] * 1.01 + (64 << 20)
            }
            if not held and (self.result["outcome"] == "refused" or sockets.is_free(self.port)):  # refused: somebody else's port
                self.result["ended"]["released_after_s"] = round(time.monotonic() - begun, 2)
                break
            time.sleep(0.2 if not former else 1.0)
        else:
            users = gpus.users()
            self.result["ended"]["released_after_s"] = None
            self.result["ended"]["held"] = {"bytes": held, "by": users, "port_free": sockets.is_free(self.port)}
        self.result["gpus"].update(before=before, after=gpus.read() if former else before)

    def _close_log(self, server):
        if self.reader is not None:
            self.reader.finish()
            self.result["phases"] = self.reader.phases
        with contextlib.suppress(OSError, RingmasterError):
            log_lines.fold(self.log_path, cap_bytes=self.settings["log_cap_bytes"])


def _cause(signature, summary, advice, evidence=()):
    return {"signature": signature, "summary": summary, "advice": advice, "evidence": list(evidence)}


def fingerprint(engine, found_gpus, workloads):
    """What two results must share to be worth comparing: {hardware, software, workload} and a short digest of it all."""
    parts = {
        "hardware": [gpu["name"] for gpu in found_gpus] if found_gpus else [platform.machine(), f"{os.cpu_count()} cpus"],
        "driver": engine["driver"],
        "software": [engine[name] for name in ("name", "version", "torch", "nccl", "libnccl_sha256", "cuda")],
        "workload": workloads,
    }
    return {**parts, "digest": hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()[:16]}

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`python -m sglang.launch_server`: starts the workers, waits for them, serves, and ends as SGLang does.

The launcher is at once HTTP server and tokenizer; workers are the processes of `worker`. Pipes: requests to rank 0, tokens from
there to the detokenizer, text from the detokenizer back.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import subprocess
import sys
import time
import traceback

STARTED_S = time.monotonic()

from . import __version__  # noqa: E402
from .flags import resolve  # noqa: E402
from .lab import read  # noqa: E402
from .procs import log, raw  # noqa: E402

WORKER_CODE = "from sglang.worker import main; main()"


class Workers:
    """The launcher's children and the pipes between them."""

    def __init__(self, flags: dict, lab: dict) -> None:
        status_r, status_w = os.pipe()
        requests_r, self.requests_fd = os.pipe()
        tokens_r, tokens_w = os.pipe()
        self.text_fd, text_w = os.pipe()
        self.status_fd = status_r
        self.ranks = flags["tp_size"]
        common = {"launcher": os.getpid(), "ranks": self.ranks, "started_s": STARTED_S, "lab": lab, "flags": flags}
        tracker_r, self.tracker_fd = os.pipe()
        code = f"from multiprocessing.resource_tracker import main;main({tracker_r})"
        self.helpers = [subprocess.Popen([sys.executable, "-c", code], pass_fds=[tracker_r])]
        self.schedulers = []
        for rank in range(self.ranks):
            ends = {"status_fd": status_w}
            if rank == 0:
                ends.update(requests_fd=requests_r, tokens_fd=tokens_w)
            self.schedulers.append(self.spawn(dict(common, role="scheduler", rank=rank, **ends), list(ends.values())))
        # The tracker ends when nobody is left who could need it: the detokenizer holds it open, also as an orphan.
        ends = {"tokens_fd": tokens_r, "text_fd": text_w}
        self.detokenizer = self.spawn(dict(role="detokenizer", **ends), [*ends.values(), self.tracker_fd])
        for descriptor in (status_w, requests_r, tokens_r, tokens_w, text_w, tracker_r):
            os.close(descriptor)

    @staticmethod
    def spawn(conf: dict, descriptors: list) -> subprocess.Popen:
        argv = [sys.executable, "-c", WORKER_CODE, marshal.dumps(conf).hex()]
        return subprocess.Popen(argv, pass_fds=descriptors, stdin=subprocess.DEVNULL)

    def wait_ready(self) -> None:
        """Returns when every scheduler has reported; SystemExit(1) when one died without an exception of its own."""
        ready = b""
        while ready.count(b"\n") < self.ranks:
            if select.select([self.status_fd], [], [], 0.1)[0]:
                ready += os.read(self.status_fd, 4096)
            for rank, process in enumerate(self.schedulers):
                code = process.poll()
                if code:
                    log(f"Rank {rank} scheduler died during initialization (exit code: {code}). If exit code is -9 (SIGKILL), "
                        "a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.")
                    self.kill()
                    raise SystemExit(1)
        os.close(self.status_fd)

    def dead_scheduler(self):
        """(rank, pid, exit code) of the first scheduler that ended with other than 0, or None."""
        for rank, process in enumerate(self.schedulers):
            code = process.poll()
            if code:
                return rank, process.pid, code
        return None

    def kill(self) -> None:
        for process in [*self.schedulers, self.detokenizer, *self.helpers]:
            if process.poll() is None:
                process.kill()
                process.wait()


def kill_tree(workers: Workers) -> None:
    """How SGLang ends: SIGKILL for the children, then for itself."""
    log(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=True, pid={os.getpid()}")
    workers.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def set_environment(flags: dict) -> None:
    """The variables that SGLang 0.5.16 sets for its workers (srt/entrypoints/engine.py, _set_envs_and_config)."""
    symm, nvls = flags["enable_symm_mem"], flags["enable_nccl_nvls"]
    if "NCCL_CUMEM_ENABLE" not in os.environ or symm:
        os.environ["NCCL_CUMEM_ENABLE"] = str(int(symm))
    if "NCCL_NVLS_ENABLE" not in os.environ or nvls or symm:
        os.environ["NCCL_NVLS_ENABLE"] = str(int(nvls or symm))
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "8"
    os.environ["CUDA_MODULE_LOADING"] = "AUTO"
    if flags["enable_deterministic_inference"] and flags["tp_size"] > 1:
        os.environ["NCCL_ALGO"] = "allreduce:tree"


def check_model(model_path: str) -> None:
    """OSError, in the words of the hub's client, for a directory without config.json."""
    if not os.path.isfile(os.path.join(model_path, "config.json")):
        raise OSError(f"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{model_path}'. "
                      "Use `repo_type` argument if needed.")


def main(argv: list) -> None:
    raw(f"{__file__}: UserWarning: 'python -m sglang.launch_server' is still supported, "
        "but 'sglang serve' is the recommended entrypoint.\n")
    flags, warnings = resolve(argv)
    for warning in warnings:
        raw(f"\x1b[1;33m{warning}\x1b[0m\n")
    try:
        check_model(flags["model_path"])
        lab = read(flags["model_path"])
    except (OSError, ValueError):
        raw(traceback.format_exc())
        raise SystemExit(1) from None
    if flags["nnodes"] > 1:
        raw("the simulated machine has one node: --nnodes must be 1\n")
        raise SystemExit(1)
    log(f"SIMULATED: sglang {__version__}, no model and no GPU behind it")
    log("server_args=ServerArgs(" + ", ".join(f"{name}={value!r}" for name, value in flags.items()) + ")")
    set_environment(flags)
    workers = Workers(flags, lab)

    def child_failed(_signum, _frame) -> None:
        log("Received sigquit from a child process. It usually means the child failed.")
        kill_tree(workers)

    signal.signal(signal.SIGQUIT, child_failed)
    from .server import serve  # while the workers start: asyncio costs more than all the rest

    workers.wait_ready()
    os.write(workers.requests_fd, b"serve\n")
    raise SystemExit(serve(workers, flags, lab, argv))


if __name__ == "__main__":
    main(sys.argv[1:])

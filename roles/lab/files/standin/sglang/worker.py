# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The processes that the launcher starts: one scheduler a rank, one detokenizer. Each is an interpreter of its own, so that
sitecustomize runs again in it, as in SGLang's spawned workers."""

from __future__ import annotations

import marshal
import os
import signal
import sys
import time

from . import nccl_log
from .lab import PHASES, active
from .procs import die_with_parent, log, raw, set_title

# Where in the load time each phase ends, 0 to 1.
PHASE_ENDS = dict(zip(PHASES, (0.1, 0.7, 0.75, 1.0)))
WORDS = (
    "amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "haven", "inlet", "jetty", "knoll", "larch", "maple", "north", "ochre",
    "prism", "quill", "ridge", "slate", "tidal", "umber", "vigil", "wharf", "xenon", "yield", "zonal", "copper", "dune", "engine", "flint",
)


class Scheduler:
    """One rank: loads phase by phase; rank 0 then decodes, the others wait.

    `conf`: rank, ranks, started_s (the launcher's monotonic clock), lab, flags (all arguments by argparse name), and the
    file descriptors status_fd, requests_fd, tokens_fd (the last two for rank 0). `launcher`: its pid.
    """

    def __init__(self, conf: dict) -> None:
        self.conf = conf
        self.rank, self.ranks, self.lab, self.flags = conf["rank"], conf["ranks"], conf["lab"], conf["flags"]
        self.suffix = f" TP{self.rank}" if self.ranks > 1 else ""
        self.last_rank = self.rank == self.ranks - 1
        self.env = dict(os.environ)
        self.faults = active(self.lab["faults"], self.env, self.flags)
        self.env.pop(self.faults.get("nccl_ignores"), None)

    def log(self, message: str) -> None:
        log(message, self.suffix)

    def until(self, phase_part: float) -> None:
        """Sleeps to a point of the load time, 0 to 1."""
        time.sleep(max(0.0, self.conf["started_s"] + self.lab["load_s"] * phase_part - time.monotonic()))

    def strike(self, phase: str) -> None:
        """The faults that belong to a phase."""
        if self.faults.get("hang_at_phase") == phase:
            signal.pause()
        while self.faults.get("spin_at_phase") == phase:
            if self.rank:
                signal.pause()
        if self.last_rank and self.faults.get("kill_at_phase") == phase:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.last_rank and self.faults.get("crash_at_phase") == phase:
            raise RuntimeError(f"simulated failure in phase {phase}")

    def load(self) -> None:
        free_gb = 94.0
        self.log("Init torch distributed begin.")
        self.strike("distributed")
        nccl_log.write(self.rank, nccl_log.lines(self.rank, self.ranks, self.env, self.lab["coefficients"]), self.env)
        self.all_reduce([4])  # warm-up
        if self.rank == 0 and self.ranks > 1:
            self.log("sglang is using nccl==2.28.9")
        self.until(PHASE_ENDS["distributed"])
        self.log(f"Init torch distributed ends. elapsed={self.lab['load_s'] * PHASE_ENDS['distributed']:.2f} s, mem usage=0.97 GB")
        self.log(f"Load weight begin. avail mem={free_gb:.2f} GB")
        self.load_weights()
        self.log(f"Load weight end. elapsed={self.lab['load_s'] * 0.6:.2f} s, type=SimulatedForCausalLM, avail mem={free_gb * 0.3:.2f} GB, "
                 f"mem usage={free_gb * 0.7:.2f} GB.")
        self.strike("kv_cache")
        fraction = float(self.flags["mem_fraction_static"] or 0.88)
        if fraction < 0.15:
            raise RuntimeError("Not enough memory. Please try to increase --mem-fraction-static. "
                               f"Current value: mem_fraction_static={fraction}")
        tokens = int(self.lab["kv_tokens_per_fraction"] * fraction)
        self.until(PHASE_ENDS["kv_cache"])
        self.log(f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {tokens}, K size: 9.24 GB, V size: 9.24 GB")
        self.log(f"Memory pool end. avail mem={free_gb * 0.1:.2f} GB")
        self.capture(free_gb * 0.1)
        self.until(PHASE_ENDS["graphs"])
        if self.rank == 0:
            self.log(f"max_total_num_tokens={tokens}, chunked_prefill_size={self.flags['chunked_prefill_size']}, "
                     f"max_prefill_tokens=16384, max_running_requests={self.flags['max_running_requests']}, context_len=131072, "
                     f"available_gpu_mem={free_gb * 0.1:.2f} GB")

    def load_weights(self) -> None:
        start, end = PHASE_ENDS["distributed"], PHASE_ENDS["weights"]
        shards = 0 if self.flags["load_format"] == "dummy" else self.lab["shards"]
        for done in range(shards):
            if done == shards // 5:
                self.strike("weights")
            self.until(start + (end - start) * (done + 1) / shards)
            if self.rank == 0:
                each_s = self.lab["load_s"] * (end - start) / shards
                raw(_bar("\rLoading safetensors checkpoint shards: ", done + 1, shards, each_s) + ("\n" if done + 1 == shards else ""))
        if not shards:
            self.strike("weights")

    def all_reduce(self, sizes_bytes: list) -> None:
        """What NCCL says about all-reduces of these sizes."""
        coefficients = self.lab["coefficients"]
        nccl_log.write(self.rank, nccl_log.all_reduces(self.rank, self.ranks, self.env, sizes_bytes, coefficients), self.env)

    def capture(self, free_gb: float) -> None:
        sizes = [n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if n <= self.flags["graph_max_bs"]]
        if self.flags["disable_custom_all_reduce"]:
            coefficients = self.lab["coefficients"]
            each = 2 * coefficients["layers"]
            self.all_reduce([batch * coefficients["hidden"] * 2 for batch in sizes or [1] for _call in range(each)])
        if not sizes:
            return
        begin_s = time.monotonic()
        start, end = PHASE_ENDS["kv_cache"], PHASE_ENDS["graphs"]
        self.log(f"Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, bs={sizes}, avail mem={free_gb:.2f} GB")
        for done, size in enumerate(reversed(sizes), 1):
            if done == (len(sizes) + 1) // 2:
                self.strike("graphs")
            self.until(start + (end - start) * done / len(sizes))
            if self.rank == 0:
                each_s = self.lab["load_s"] * (end - start) / len(sizes)
                blocks = "█" * (10 * done // len(sizes))
                raw(f"\rCapturing batches (bs={size} avail_mem={free_gb:.2f} GB): {100 * done // len(sizes):3d}%|{blocks:10}| "
                    f"{done}/{len(sizes)} {_times(done, len(sizes), each_s)}" + ("\n" if done == len(sizes) else ""))
        self.log(f"Capture target decode CUDA graph end. elapsed={time.monotonic() - begin_s:.2f} s, mem usage=0.07 GB, "
                 f"avail mem={free_gb - 0.07:.2f} GB.")

    def serve(self) -> None:
        os.write(self.conf["status_fd"], b"ready\n")
        if self.last_rank and "leave_zombies" in self.faults:
            leave_zombie(f"sglang::scheduler_TP{self.rank}")
        if self.last_rank and "lose_scheduler_after_s" in self.faults:
            time.sleep(float(self.faults["lose_scheduler_after_s"]))
            os.kill(os.getpid(), signal.SIGKILL)
        if self.rank == 0:
            from .decode import Decoder  # only rank 0 pays for it

            Decoder(self).run()
        while True:
            signal.pause()


def _times(done: int, total: int, each_s: float) -> str:
    spent, left = round(done * each_s), round((total - done) * each_s)
    return f"[{spent // 60:02d}:{spent % 60:02d}<{left // 60:02d}:{left % 60:02d}, {each_s:5.2f}s/it]"


def _bar(head: str, done: int, total: int, each_s: float) -> str:
    return f"{head}{100 * done // total:3d}% Completed | {done}/{total} {_times(done, total, each_s)}"


def leave_zombie(title: str) -> None:
    """A process that outlives the server: no child of anyone in it, no parent-death signal, deaf to SIGTERM."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.closerange(3, 64)
    set_title(title)
    while True:
        signal.pause()


def run_scheduler(conf: dict) -> None:
    """Main of a scheduler: an exception is logged as SGLang logs it, and tells the launcher by SIGQUIT."""
    die_with_parent()
    if os.getppid() != conf["launcher"]:
        os._exit(1)  # it was gone before the line above
    scheduler = Scheduler(conf)
    set_title("sglang::scheduler" + (f"_TP{scheduler.rank}" if scheduler.ranks > 1 else ""))
    try:
        scheduler.load()
        scheduler.serve()
    except Exception:
        import traceback

        log(f"Scheduler hit an exception: {traceback.format_exc()}", scheduler.suffix)
        if os.getppid() == conf["launcher"]:
            os.kill(conf["launcher"], signal.SIGQUIT)
        signal.pause()


def run_detokenizer(conf: dict) -> None:
    """Main of the detokenizer: adds the word to every token on its way from rank 0 to the launcher.

    It follows the launcher into death only once it serves: a SIGTERM to a launcher that still loads leaves it behind, as SGLang does.
    """
    set_title("sglang::detokenizer")
    left = b""
    while True:
        data = os.read(conf["tokens_fd"], 65536)
        if not data:
            signal.pause()  # the scheduler is gone; SGLang's detokenizer does not notice either
        *whole, left = (left + data).split(b"\n")
        out = bytearray()
        for line in whole:
            if line == b"serve":
                die_with_parent()
                continue
            for item in line.split():
                token = item.split(b":")[1] if b":" in item else b""
                out += item + (b":" + word_of(int(token)).encode() if token else b"") + b"\n"
        if out:
            os.write(conf["text_fd"], out)


def word_of(token: int) -> str:
    """The text of a token, without its leading space; token 0 is what broken numbers give."""
    return WORDS[token % len(WORDS)] if token else "!"


def main() -> None:
    """argv[1]: the configuration, marshalled and in hex: no import is cheaper, and the long argument leaves room for the title."""
    conf = marshal.loads(bytes.fromhex(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's business
    {"scheduler": run_scheduler, "detokenizer": run_detokenizer}[conf["role"]](conf)

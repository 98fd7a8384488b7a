# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Can two ranks all-reduce at all? Seconds that save the hour of a load which then hangs in its first collective.

On hosts whose PCIe switches enforce access control, or with an IOMMU in the way, NCCL initialises and then never finishes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

from . import log_cap, procfs, sockets
from .server import explained, identity

RANKS = 2
COLLECTIVE_TIMEOUT_S = 60.0
POLL_S = 0.1
TAIL_BYTES = 4000
LOG_CAP_BYTES = 1 << 20

# Each rank tells how far it got. It ends by os._exit: tearing a group down can hang, and proves nothing.
_SCRIPT = r"""
import os
words = os.dup(1)
os.dup2(2, 1)  # NCCL writes to stdout
def say(word):
    os.write(words, (word + "\n").encode())
rank = int(os.environ["RANK"])
try:
    import torch, torch.distributed as dist
except ImportError as error:
    say("skipped: %s" % error); os._exit(0)
cuda = torch.cuda.is_available()
if cuda and torch.cuda.device_count() < 2:
    say("skipped: one GPU"); os._exit(0)
if cuda:
    torch.cuda.set_device(rank)
say("imported")
dist.init_process_group("nccl" if cuda else "gloo", init_method="tcp://127.0.0.1:" + os.environ["SMOKE_PORT"], rank=rank, world_size=2)
for size in (1 << 12, 1 << 20):
    values = torch.full((size,), float(rank + 1), device="cuda" if cuda else "cpu")
    dist.all_reduce(values)
    if not bool((values == 3.0).all().item()):
        say("wrong: a sum of 1 and 2 came out as %r" % values.flatten()[0].item()); os._exit(3)
say("passed"); os._exit(0)
"""


def run(python, environment, directory, *, user=None, stall_timeout_s=300.0, collective_timeout_s=COLLECTIVE_TIMEOUT_S, check):
    """Two processes of the interpreter PYTHON in ENVIRONMENT join and add. CHECK is called often and may raise; DIRECTORY gets the logs.

    Returns {outcome: passed|skipped|failed|hung, seconds, reason, log}. Hung: a rank did not import torch within the stall time, or
    the sum was not there COLLECTIVE_TIMEOUT_S after both had.
    Raises RingmasterError when USER cannot run that interpreter.
    """
    begun = time.monotonic()
    port = sockets.free_port()
    logs = [os.path.join(directory, f"smoke.{rank}.log") for rank in range(RANKS)]
    words = [os.path.join(directory, f"smoke.{rank}.words") for rank in range(RANKS)]
    children = []
    try:
        for rank in range(RANKS):
            with open(words[rank], "wb", opener=_private) as out, open(logs[rank], "wb", opener=_private) as log:
                own = {"RANK": str(rank), "SMOKE_PORT": str(port)}
                children.append(_start(python, {**environment, **own}, out, log, user))
        joined_at = None
        while True:
            check()
            exits = [child.poll() for child in children]  # before its words: the last ones come before the end
            said = [_lines(path) for path in words]
            for path in logs:
                log_cap.punch(path, cap_bytes=LOG_CAP_BYTES)
            known = [line.partition(": ") for lines in said for line in lines[-1:]]
            verdict = next(((word, reason) for word, _colon, reason in known if reason), None)
            if verdict:
                return _answer("skipped" if verdict[0] == "skipped" else "failed", begun, verdict[1], logs[0])
            if [word for word, _colon, _reason in known] == ["passed"] * RANKS:
                return _answer("passed", begun, "", logs[0])
            dead = next((rank for rank, code in enumerate(exits) if code is not None and said[rank][-1:] != ["passed"]), None)
            if dead is not None:
                last = (_lines(logs[dead]) or ["no message"])[-1][:300]
                return _answer("failed", begun, f"rank {dead} ended with {exits[dead]}: {last}", logs[dead])
            if joined_at is None and all(said):
                joined_at = time.monotonic()
            waited_s = time.monotonic() - (joined_at or begun)
            if waited_s > (collective_timeout_s if joined_at else stall_timeout_s):
                what = f"no sum after {waited_s:.0f} s" if joined_at else f"torch not imported after {waited_s:.0f} s"
                return _answer("hung", begun, what, logs[0])
            time.sleep(POLL_S)
    finally:
        for child in children:
            _end(child)


def _start(python, environment, words, log, user):
    with explained(python, user):
        return subprocess.Popen(
            [python, "-c", _SCRIPT], env=environment, stdin=subprocess.DEVNULL, stdout=words, stderr=log,
            start_new_session=True, cwd="/", preexec_fn=procfs.die_with_parent, **identity(user),
        )  # fmt: skip


def _end(child):
    """A rank starts no other processes: its group is all there is."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(10)


def _lines(path):
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - TAIL_BYTES))
        return file.read().decode(errors="replace").strip().splitlines()


def _answer(outcome, begun, reason, log):
    return {"outcome": outcome, "seconds": round(time.monotonic() - begun, 2), "reason": reason, "log": log}


def _private(path, flags):
    return os.open(path, flags, 0o600)

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The life of a launcher that serves: bind, warm up, watch the workers, drain, end. The endpoints are in `api`."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from .api import Api
from .engine import Engine, PrefixCache
from .http import handle, request_json
from .lab import active
from .launch_server import kill_tree
from .logprobs import Logprobs
from .procs import log

WATCH_S = 1.0
BIND_GIVE_UP_S = 120.0
WARM_UP = {"text": "a first and short prompt", "sampling_params": {"max_new_tokens": 8, "temperature": 0}}


class Server:
    """One run from bound port to end; `run()` gives the exit code, if the process still exists by then."""

    def __init__(self, workers, flags: dict, lab: dict, argv: list) -> None:
        self.workers, self.flags, self.lab = workers, flags, lab
        self.faults = active(lab["faults"], dict(os.environ), flags)
        self.engine = Engine(workers.requests_fd, workers.text_fd, PrefixCache(not flags["disable_radix_cache"]))
        self.api = Api(self.engine, flags, lab, Logprobs(dict(os.environ), flags, lab["coefficients"], self.faults), argv)
        self.ended = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: loop.create_task(self.drain()))
        loop.add_signal_handler(signal.SIGINT, lambda: loop.create_task(self.interrupt()))
        loop.add_signal_handler(signal.SIGQUIT, lambda: loop.create_task(self.child_failed()))
        host, port = self.flags["host"], self.flags["port"]
        for line in (f"Started server process [{os.getpid()}]", "Waiting for application startup.", "Application startup complete."):
            log(f"INFO:     {line}")
        try:
            self.listener = await asyncio.start_server(lambda r, w: handle(self.api, r, w), host, port, backlog=2048)
        except OSError as error:
            log(f"ERROR:    [Errno {error.errno}] error while attempting to bind on address ('{host}', {port}): address already in use")
            log("INFO:     Waiting for application shutdown.")
            return await self.warm_up_elsewhere()
        log(f"INFO:     Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)")
        tasks = [loop.create_task(self.watch()), loop.create_task(self.warm_up())]
        code = await self.ended
        self.listener.close()
        for task in tasks:
            task.cancel()
        return code

    async def warm_up(self) -> None:
        """What SGLang does with itself before it says that it is ready: one look and one generation over HTTP."""
        if not self.flags["skip_server_warmup"]:
            await asyncio.sleep(self.lab["warmup_s"])
            await self.call("GET", "/model_info", None)
            await self.call("POST", "/generate", WARM_UP)
        self.api.state = "up"
        log("The server is fired up and ready to roll!")

    async def call(self, method: str, path: str, body) -> int:
        host = "127.0.0.1" if self.flags["host"] in ("0.0.0.0", "::") else self.flags["host"]
        headers = {"x-warm-up": "1"}
        if self.flags["api_key"]:
            headers["authorization"] = f"Bearer {self.flags['api_key']}"
        return await request_json(host, self.flags["port"], method, path, body, headers)

    async def warm_up_elsewhere(self) -> int:
        """Somebody else holds the port. SGLang warms up against it: exit 3 when it gets an answer, else it hangs and gives up late."""
        end_s = time.monotonic() + BIND_GIVE_UP_S
        while time.monotonic() < end_s:
            try:
                if await asyncio.wait_for(self.call("GET", "/model_info", None), 5) == 200:
                    await self.call("POST", "/generate", WARM_UP)
                    log("The server is fired up and ready to roll!")
                    return 3
            except (OSError, ValueError, asyncio.TimeoutError, asyncio.IncompleteReadError):
                pass
            await asyncio.sleep(1)
        log("Initialization failed. warmup error: no answer")
        kill_tree(self.workers)
        return 1

    async def watch(self) -> None:
        """Sees a dead scheduler within a second; a dead detokenizer only when SGLang would."""
        lost_s = None
        while True:
            await asyncio.sleep(WATCH_S)
            dead = self.workers.dead_scheduler()
            if dead:
                self.failed(f"scheduler_{dead[0]}", dead[1], dead[2])
            code = self.workers.detokenizer.poll()
            if code and lost_s is None:
                lost_s = time.monotonic()
            if code and time.monotonic() - lost_s >= self.lab["detokenizer_loss_s"]:
                self.failed("detokenizer_0", self.workers.detokenizer.pid, code)

    def failed(self, name: str, pid: int, code: int) -> None:
        log(f"Subprocess {name} (pid={pid}) crashed with exit code {code}. Triggering SIGQUIT for cleanup...")
        os.kill(os.getpid(), signal.SIGQUIT)

    async def child_failed(self) -> None:
        log("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        await asyncio.sleep(self.lab["crash_settle_s"])
        kill_tree(self.workers)

    async def drain(self) -> None:
        """SIGTERM: finish what runs, then end by SIGKILL."""
        log("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        self.api.state = "draining"
        while True:
            await asyncio.sleep(self.lab["drain_poll_s"])
            left = sorted(self.engine.requests)
            log(f"Gracefully exiting... Remaining number of requests {len(left)}. Remaining requests remaining_rids={left}.")
            if not left and not self.api.open_streams:
                break
        await asyncio.sleep(float(self.faults.get("slow_drain_s") or 0))
        kill_tree(self.workers)

    async def interrupt(self) -> None:
        """SIGINT: uvicorn's own way out: the port closes at once, what runs is finished, exit 0."""
        self.api.state = "draining"
        self.listener.close()
        log("INFO:     Shutting down")
        while self.engine.requests or self.api.open_streams:
            await asyncio.sleep(0.05)
        log("INFO:     Application shutdown complete.")
        if not self.ended.done():
            self.ended.set_result(0)


def serve(workers, flags: dict, lab: dict, argv: list) -> int:
    """Runs the server in this process; exit code."""
    async def main() -> int:
        return await Server(workers, flags, lab, argv).run()

    code = asyncio.run(main())
    workers.kill()
    return code

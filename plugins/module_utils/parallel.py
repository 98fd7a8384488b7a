# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Several looks at once, none of which can hold the others up."""

from __future__ import annotations

import concurrent.futures
import threading


def together(jobs, timeout_s):
    """{name: value} of what JOBS {name: callable} return, all run side by side; an exception in place of the value for one that raised
    or, as TimeoutError, did not end within TIMEOUT_S. Those go on as daemons and hold nobody up."""
    results = {name: concurrent.futures.Future() for name in jobs}

    def run(name, job):
        try:
            results[name].set_result(job())
        except Exception as error:  # handed to the caller, who knows what the job was for
            results[name].set_exception(error)

    for name, job in jobs.items():
        threading.Thread(target=run, args=(name, job), daemon=True).start()
    concurrent.futures.wait(results.values(), timeout=timeout_s)
    late = TimeoutError(f"not done within {timeout_s:g} s")
    return {name: (future.exception() or future.result()) if future.done() else late for name, future in results.items()}

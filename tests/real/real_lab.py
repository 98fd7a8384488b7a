# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real SGLang of tests/real/build as a machine for plans: what tests/unit/trial_lab.py does with the stand-in, with the real server."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import trial_lab
import yaml
from ansible_collections.ringmaster.gpu.plugins.module_utils import procfs
from ansible_collections.ringmaster.gpu.plugins.module_utils.state import State

HERE = Path(__file__).resolve().parent
REAL = Path(os.environ.get("RINGMASTER_REAL_DIR") or HERE.parents[1] / ".cache" / "real").resolve()
KEY = "k3y-of-the-trial-that-nobody-else-may-see"


class RealLab(trial_lab.Lab):
    """Interpreter, model and a state directory of its own; its servers want an API key."""

    def __init__(self):
        self.directory = REAL / "events"
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(mode=0o755)
        self.state = State(str(self.directory / "state"))
        self.python = str(REAL / "env" / "bin" / "python")
        self.site = Path(self.state.directory) / "site" / "sitecustomize.py"
        host = yaml.safe_load((HERE / "inventory" / "hosts.yml").read_text())["inference"]["vars"]
        self.flags = {**host["sglang_flags"], "model-path": str(REAL / "model"), "api-key": KEY}
        del self.flags["enable-fp32-lm-head"]  # slow on purpose
        self.environment = host["sglang_environment"]
        self._count = 0
        self.restore_site()

    def configuration(self, **flags):
        """The inventory's configuration with FLAGS over it (None: without that one; `_` for `-`)."""
        given = {name.replace("_", "-"): value for name, value in flags.items()}
        return {
            "label": "test",
            "nccl": {"scope": "service", "override": False, "settings": {}},
            "server": {
                "python": self.python, "module": "sglang.launch_server", "user": None, "directory": None,
                "flags": {name: value for name, value in {**self.flags, **given}.items() if value is not None},
                "listen": {"host": "127.0.0.1", "port": 30000},
            },
            "environment": dict(self.environment),
            "patches": [],
        }  # fmt: skip

    def processes(self):
        """Live processes of a trial: by its witness directory or by the environment's interpreter and libraries; and supervisors."""
        found = []
        for pid, process in procfs.scan().items():
            if pid == os.getpid() or process.state in "ZX":
                continue
            with contextlib.suppress(OSError):
                marked = f"RINGMASTER_WITNESS={self.state.directory}/".encode() in Path(f"/proc/{pid}/environ").read_bytes()
                text = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/maps").read_bytes()
                if marked or f"{REAL}/env/".encode() in text or self.state.directory.encode() in text:
                    found.append(process)
        return found

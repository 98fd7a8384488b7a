# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of ringmaster.gpu.bundle: makes a bundle on this machine and says how it gets on."""

from __future__ import annotations

import os
import subprocess

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.ringmaster.gpu.plugins.action.tune_plan import plain
from ansible_collections.ringmaster.gpu.plugins.module_utils import files
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import bundle_advice, bundle_make, bundle_request
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.given import ambiguous, found

TEXTS = (
    "directory", "name", "profile", "machine", "python", "distribution", "sglang_version", "sglang_cuda", "lock", "uv_lock", "index_url",
    "cuda_version", "cuda_driver_version", "kernel_module", "kernel", "dpkg_status", "repository_url", "repository_key", "host_packages",
)  # fmt: skip
LISTS = (
    "locks", "packages", "system_packages", "toolkit_packages", "build_packages", "driver_members", "repositories", "carry_anyway",
)  # fmt: skip
# Options that are paths on the controller, and versions that YAML may have read as numbers, with the variables that give them
PATHS = ("lock", "uv_lock", "dpkg_status", "repository_key", "host_packages")
VERSIONS = {"python": "bundle_python", "sglang_cuda": "sglang_cuda", "cuda_version": "cuda_version",
            "cuda_driver_version": "cuda_driver_version"}  # fmt: skip


class ActionModule(ActionBase):
    """Everything here happens on the controller."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        args = plain(self._task.args)
        given = {name: str(args.get(name) or "") for name in TEXTS} | {name: _list(args.get(name) or []) for name in LISTS}
        given |= {"part_mib": args.get("part_mib", 0), "driver_packages": args.get("driver_packages") or {}}
        beside = task_vars["playbook_dir"]
        given |= {name: found(given[name], beside) for name in PATHS}
        given["repositories"] = [{**row, "key": found(row.get("key") or "", beside)} for row in given["repositories"]]
        try:
            if problems := [text for name, variable in VERSIONS.items() if (text := ambiguous(args.get(name), variable))]:
                raise RingmasterError(" ".join(problems))
            request = bundle_request.read(given)
            made = bundle_make.make(request, self._say, boolean(args.get("refresh", False)), self._task.check_mode)
            manifest = {key: value for key, value in (made["manifest"] or {}).items() if key not in ("files", "parts")}
            for text in bundle_advice.lines(made["manifest"], str(request.folder), given["system_packages"]):
                self._say(text)
            result.update(changed=made["changed"], directory=str(request.folder), name=request.name, manifest=manifest)
        except RingmasterError as error:
            result.update(failed=True, msg=str(error))
        except OSError as error:
            result.update(failed=True, msg=str(files.explain(error.filename or os.fspath(given["directory"]), "write", error)))
        except subprocess.SubprocessError as error:
            result.update(failed=True, msg=f"A program of this machine fails: {error}")
        return result

    def _say(self, text):
        self._display.display(f"bundle: {text}")


def _list(value):
    """`-e bundle_packages=dkms,make` is text."""
    return [word.strip() for word in value.split(",")] if isinstance(value, str) else value

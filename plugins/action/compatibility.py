# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of ringmaster.gpu.compatibility: whether what is to be installed goes together, before anything is."""

from __future__ import annotations

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import compatibility, resolve

ARGUMENTS = ("gpus", "link", "flags", "patches", "accept", "fail")
VERSIONS = ("driver", "cuda", "sglang", "torch", "torch_cuda", "nccl", "flashinfer", "python")
LINKS = {"NVLink": True, "PCIe": False, "PCIe with P2P": False}


class ActionModule(ActionBase):
    """Nothing is asked of the host: its GPUs are given."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        result["changed"] = False
        args = self._task.args
        try:
            combination = combined(args, task_vars["inventory_hostname"])
            accepted, fail = _rows(args.get("accept")), boolean(args.get("fail", True))
        except (RingmasterError, TypeError) as error:
            result.update(failed=True, msg=str(error))
            return result
        findings = compatibility.check(combination)
        fatal = compatibility.refused(findings, accepted)
        said = [finding for finding in findings if finding not in fatal]
        result.update(findings=[finding.as_dict() for finding in findings], refused=[finding.row for finding in fatal])
        result["warnings"] = [f"{combination['host']}: {finding}" for finding in said]
        result["msg"] = "Nothing is known that does not go together." if not findings else " ".join(map(str, findings))
        if fatal and fail:
            anyway = f"To go on all the same: provision_accept={','.join(dict.fromkeys(finding.row for finding in fatal))}."
            result.update(failed=True, msg=f"{combination['host']}: {' '.join(map(str, fatal))} Nothing was changed. {anyway}")
        elif fatal:
            result["warnings"] += [f"{combination['host']}: {finding}" for finding in fatal]
        return result


def combined(args, host):
    """ARGS of the task as `compatibility.check` wants them. Raises RingmasterError naming the argument."""
    unknown = sorted(set(args) - {*ARGUMENTS, *VERSIONS})  # one that is misspelt would be checked by nobody
    if unknown:
        raise RingmasterError(f"{', '.join(unknown)} is no argument.", f"Arguments are {', '.join((*ARGUMENTS, *VERSIONS))}.")
    gpus = args.get("gpus") or []
    if not isinstance(gpus, list):
        raise RingmasterError(f"gpus is {gpus!r}; it has to be a list.", "Give it the gpus of ringmaster.gpu.pcie_info, or names.")
    link = args.get("link") or None
    if link is not None and link not in LINKS:
        raise RingmasterError(f"link is {link!r}.", f"It is one of {', '.join(LINKS)}, or left out.")
    return {
        "host": host,
        "gpus": gpus,
        "nvlink": LINKS.get(link),
        "flags": resolve.as_mapping("flags", args.get("flags")),
        "patches": args.get("patches"),
        **{name: args.get(name) for name in VERSIONS},
    }


def _rows(accept):
    """The ids of rows in ACCEPT. Raises RingmasterError for one that is none: it would be thought to be in force."""
    ids = [name.strip() for name in accept.split(",")] if isinstance(accept, str) else list(accept or ())
    known = [row["id"] for row in compatibility.data()["rows"]]
    unknown = [name for name in ids if name not in known]
    if unknown:
        raise RingmasterError(f"provision_accept (accept): {', '.join(map(str, unknown))} is no row.", f"Rows are {', '.join(known)}.")
    return ids

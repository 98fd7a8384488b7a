# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of ringmaster.gpu.bundle_host: reads the manifest, and looks whether what is to be copied is whole here."""

from __future__ import annotations

import os

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.ringmaster.gpu.plugins.module_utils import bundle_files
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        args = dict(self._task.args)
        bundle = os.path.expanduser(args.pop("bundle_dir", None) or "")
        try:
            if bundle:
                args["manifest"] = manifest_text(bundle)
                if boolean(args.get("manifest_only", False)):
                    return {**result, "changed": False, "manifest": bundle_files.parse(args["manifest"], bundle)}
            result.update(self._execute_module(module_args=args, task_vars=task_vars))
            if not result.get("failed") and result.get("missing"):
                whole_here(bundle, bundle_files.parse(args["manifest"], bundle), result["missing"])
        except RingmasterError as error:
            result.update(failed=True, msg=f"{task_vars['inventory_hostname']}: {error}")
        return result


def manifest_text(bundle):
    """The text of the manifest in BUNDLE."""
    path = os.path.join(bundle, bundle_files.MANIFEST)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise RingmasterError(f"bundle_dir: cannot read {path}: {reason}.", "Make the bundle first: see bundle.yml.") from error
    bundle_files.parse(text, path)
    return text


def whole_here(bundle, manifest, missing):
    """Raises RingmasterError when a file of MISSING, which is about to be copied, is not in BUNDLE as its manifest says."""
    wrong = bundle_files.faults(bundle, [row for row in bundle_files.carried(manifest) if row["path"] in set(missing)])
    if wrong:
        path, what = sorted(wrong.items())[0]
        raise RingmasterError(
            f"The bundle on the controller is not whole: {os.path.join(bundle, path)} ({what}), {len(wrong)} in all.",
            f"Bring it there again, or make it again with bundle.yml; `sha256sum -c {bundle_files.SUMS}` in it shows all.",
        )

#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: bundle_host
short_description: Look at a bundle on a host, and make it ready for use
version_added: 0.1.0
description:
  - Says what of a bundle is missing on the host, or is not what its manifest says, so that only that is copied.
  - With O(complete=true) it verifies every checksum, unpacks the parts, and writes a stamp, last of all, by which the next look is quick.
  - Refuses a bundle of another machine, distribution or Python than the host's, and one that there is no room for.
options:
  bundle_dir:
    description:
      - Directory of the bundle on the controller. Without it O(source) is needed.
      - What is to be copied is verified there, too, so that a damaged bundle is not taken for a damaged copy.
    type: path
  manifest:
    description: The text of the manifest. The controller's side of this module reads it in O(bundle_dir).
    type: str
  remote_dir:
    description: Directory on the host that bundles lie in, each under its name. Needed unless O(manifest_only).
    type: path
  source:
    description: Directory on the host that the bundle is in already, such as one of a memory stick. It is verified and left as it is.
    type: path
  manifest_only:
    description: Only read the manifest. With O(bundle_dir) the host is not asked at all.
    type: bool
    default: false
  complete:
    description: Verify and unpack what is there, and write the stamp. Fails while something is missing.
    type: bool
    default: false
  verify:
    description: Read every file again, although the stamp says that they were whole.
    type: bool
    default: false
  python:
    description: The interpreter on the host that has to be of the bundle's Python version. Without it C(python3.X) is looked for.
    type: path
  keep_parts:
    description: Leave the parts there when they are unpacked.
    type: bool
    default: false
attributes:
  check_mode:
    description: Tells what is missing and makes nothing.
    support: full
  diff_mode:
    description: The files are binary.
    support: none
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: What is missing
  ringmaster.gpu.bundle_host:
    bundle_dir: /srv/bundles/sglang-0.5.16-cu130
    remote_dir: /var/lib/ringmaster/bundle
  register: bundle
"""

RETURN = r"""
complete:
  description: Whether all of it is there and whole.
  returned: success
  type: bool
folder:
  description: Where to copy what is missing.
  returned: success
  type: str
path:
  description: Where the bundle's files are, or will be.
  returned: success
  type: str
missing:
  description: Files to copy, relative to O(bundle_dir) and RV(folder).
  returned: success
  type: list
  elements: str
missing_bytes:
  description: How much that is.
  returned: success
  type: int
manifest:
  description: The manifest.
  returned: success
  type: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import answer, bundle_files, bundle_host, files
from ..module_utils.errors import RingmasterError


def argument_spec():
    return {
        "bundle_dir": {"type": "path"},
        "manifest": {"type": "str"},
        "remote_dir": {"type": "path"},
        "source": {"type": "path"},
        "manifest_only": {"type": "bool", "default": False},
        "complete": {"type": "bool", "default": False},
        "verify": {"type": "bool", "default": False},
        "python": {"type": "path"},
        "keep_parts": {"type": "bool", "default": False},
    }


def manifest_text(given, source):
    """(text, where it is from) of the manifest: the controller's, or the one in SOURCE; both have to be one."""
    if not source:
        return given, "The bundle's manifest.json"
    path = os.path.join(source, bundle_files.MANIFEST)
    found = files.content(path)
    if found is None:
        raise RingmasterError(f"bundle_remote_path: there is no {path}.", "Name the directory of a bundle on the host.")
    text = found.decode(errors="replace")
    if given and given != text:
        raise RingmasterError(f"{path} is not the manifest of bundle_dir.", "Leave out one of the two, or bring that bundle there.")
    return text, path


def run(params, check_mode):
    text, where = manifest_text(params["manifest"], params["source"])
    manifest = bundle_files.parse(text, where)
    if params["manifest_only"]:
        return {"changed": False, "manifest": manifest}
    folder = os.path.join(params["remote_dir"], manifest["name"])
    given = (text, where, folder, params["source"] or "", params["verify"], params["python"] or "")
    if params["complete"] and not check_mode:
        files.make_directory(folder)
        return {**bundle_host.complete(*given, keep_parts=params["keep_parts"]), "folder": folder}
    state = bundle_host.look(*given)
    changed = not state["complete"] if params["complete"] else False
    if not state["complete"] and not check_mode:
        changed = bundle_host.prepare(folder, state)
    return {**state, "folder": folder, "changed": changed}


def main():
    module = AnsibleModule(
        argument_spec(),
        supports_check_mode=True,
        required_one_of=[("manifest", "source")],
        required_if=[("manifest_only", False, ["remote_dir"])],
    )
    answer.give(module, lambda: run(module.params, module.check_mode), module.params["remote_dir"] or "", "write")


if __name__ == "__main__":
    main()

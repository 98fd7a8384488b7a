# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The supervisor as one file on the target: a zipapp of these very modules, named by the hash of its content.

Ansible's own copy of a module is gone when the module ends, and the supervisor must outlive it.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import zipfile

from . import files, supervisor

PACKAGE = "ringmaster_target"
# Importing the supervisor here also makes Ansible carry it, and all that it imports, to the target.
_MAIN = f"import sys\nfrom {PACKAGE}.{supervisor.__name__.rpartition('.')[2]} import main\nsys.exit(main(sys.argv[1:]))\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # no dates inside: the same modules always give the same bytes


def sources():
    """{module: bytes} of the supervisor and all that it imports beside it."""
    found, queue = {}, ["supervisor"]
    while queue:
        name = queue.pop()
        if name not in found:
            # Through the loader of this very module: it may lie in a zip, and as a namespace the package itself has no loader.
            found[name] = __spec__.loader.get_data(os.path.join(os.path.dirname(__file__), f"{name}.py"))
            for node in ast.walk(ast.parse(found[name])):
                if isinstance(node, ast.ImportFrom) and node.level == 1:
                    queue += [node.module] if node.module else [alias.name for alias in node.names]
    return found


def build():
    """The zipapp's bytes."""
    members = {"__main__.py": _MAIN.encode(), f"{PACKAGE}/__init__.py": b""}
    members.update((f"{PACKAGE}/{name}.py", data) for name, data in sources().items())
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(members):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), members[name], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def install(state):
    """Put the zipapp into the state directory, unless it is there. Returns its path."""
    data = build()
    path = state.path("bin", f"ringmaster-{hashlib.sha256(data).hexdigest()[:16]}.pyz")
    if not os.path.exists(path):
        files.write_atomic(path, data, mode=0o700)
    return path

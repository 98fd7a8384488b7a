#!/usr/bin/env python3
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Table for tests/lab/aptrepo.py of what builds kernel modules and kernels: Debian's names, empty packages."""

from __future__ import annotations

import json

EMPTY = ("make", "gcc", "g++", "libnuma1", "python3-dev")
rows = [{"package": name, "version": "4.3-4.1", "depends": "libc6"} for name in EMPTY]
rows.append({"package": "dkms", "version": "3:3.0.10-8", "depends": "make"})
print(json.dumps({"origin": "Debian", "packages": rows}))

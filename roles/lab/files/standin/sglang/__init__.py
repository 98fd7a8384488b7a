# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for SGLang 0.5.16 on machines without GPUs: same command line, log shapes, endpoints and processes, no model."""

from __future__ import annotations

__version__ = "0.5.16+simulated"

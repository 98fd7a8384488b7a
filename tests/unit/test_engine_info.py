# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can be a model. The interpreter is asked for real by the scenarios."""

from __future__ import annotations

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import engine_info


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("hub", None),
        ("mistral", None),
        ("one.GGUF", None),
        ("empty", "has no config.json"),
        ("gone", "is no directory"),
        ("gone.gguf", "is no directory"),
        ("notes.txt", "is no directory"),
    ],
)
def test_models(tmp_path, path, problem):
    for name in ("hub/config.json", "mistral/params.json", "one.GGUF", "empty/README.md", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = engine_info.model_problem(str(tmp_path / path))
    assert found is None if problem is None else problem in found


@pytest.mark.parametrize("name", ["", None, "owner/model", "model"])
def test_names_of_a_hub_are_not_looked_at(name):
    assert engine_info.model_problem(name) is None

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets leave a host hidden, and come back whole."""

from __future__ import annotations

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import redaction

CONFIGURATION = {
    "label": "as found",
    "server": {"flags": {"api-key": "hunter2", "max-total-tokens": "4096", "tokenizer-path": "/m", "trust-remote-code": True}},
    "environment": {"HF_TOKEN": "hf_abc", "HTTPS_PROXY": "http://me:pw@proxy:1", "PATH": "/bin"},
}


def test_secrets_are_hidden_and_nothing_else():
    hidden = redaction.configuration(CONFIGURATION)
    assert hidden["server"]["flags"] == {**CONFIGURATION["server"]["flags"], "api-key": "***"}
    assert hidden["environment"] == {"HF_TOKEN": "***", "HTTPS_PROXY": "http://***@proxy:1", "PATH": "/bin"}


def test_reveal_undoes_it():
    assert redaction.reveal(redaction.configuration(CONFIGURATION), CONFIGURATION) == CONFIGURATION


@pytest.mark.parametrize(("name", "value"), [("HF_TOKEN", "hf_new"), ("HTTPS_PROXY", "http://you:pw@proxy:1"), ("NEW", "1")])
def test_a_value_given_for_a_run_stays(name, value):
    candidate = redaction.configuration(CONFIGURATION)
    candidate["environment"][name] = value
    assert redaction.reveal(candidate, CONFIGURATION)["environment"][name] == value


def test_what_a_server_prints_of_its_secrets_is_hidden():
    flags = {"api-key": "hunter2", "enable-key-cache": True, "short-key": "abc"}
    texts = redaction.secrets({"server": {"flags": flags}, "environment": {"HF_TOKEN": "hf_abc", "PATH": "/bin"}})
    assert texts == ["hunter2", "hf_abc"]
    said = {"evidence": [{"rank": None, "line": "ServerArgs(api_key='hunter2', abc=True)"}], "exit": 1}
    assert redaction.hide(said, texts) == {"evidence": [{"rank": None, "line": "ServerArgs(api_key='***', abc=True)"}], "exit": 1}

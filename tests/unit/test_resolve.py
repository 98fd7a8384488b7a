# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what was given to factors and a candidate."""

from __future__ import annotations

import copy

import pytest
import yaml
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import resolve

KNOWN_GOOD = {
    "label": "as found",
    "nccl": {"scope": "service", "override": False, "settings": {"NCCL_PROTO": "Simple"}},
    "server": {
        "python": "/opt/sglang/bin/python", "module": "sglang.launch_server", "listen": {"host": "0.0.0.0", "port": 8000},
        "flags": {"model-path": "/m", "tp-size": "8", "disable-custom-all-reduce": True, "mem-fraction-static": "0.88"},
    },
    "environment": {"NCCL_ALGO": "ring,tree", "OMP_NUM_THREADS": "8"},
    "patches": [],
}  # fmt: skip
TARGET = {"configuration": KNOWN_GOOD, "engine": {"sglang": "0.5.16"}, "link": None}


def resolved(given, inventory=None):
    return resolve.resolve(given, inventory or {}, copy.deepcopy(TARGET), nccl_version="2.28.9")


def candidate(given):
    return resolve.overlay(KNOWN_GOOD, resolved(given).factors)


def test_channels_are_one_factor_and_all_else_stays():
    found = resolved({"nccl_channels": "2"})
    assert ([factor.label for factor in found.factors], found.errors) == (["nccl_channels=2"], [])
    made = candidate({"nccl_channels": "2"})
    assert made["nccl"]["settings"] == {"NCCL_PROTO": "Simple", "NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "2"}
    assert (made["server"], made["environment"]) == (KNOWN_GOOD["server"], KNOWN_GOOD["environment"])


def test_overlay_leaves_known_good_alone():
    before = copy.deepcopy(KNOWN_GOOD)
    candidate({"nccl_algo": "Ring", "tune_flags": {"tp-size": "4"}, "tune_environment": {"OMP_NUM_THREADS": None}})
    assert before == KNOWN_GOOD


def test_a_value_in_the_process_environment_has_to_go_or_it_would_win():
    made = candidate({"nccl_algo": "Ring"})
    assert made["nccl"]["settings"]["NCCL_ALGO"] == "Ring"
    assert "NCCL_ALGO" not in made["environment"]
    assert made["unset"] == ["NCCL_ALGO"]


def test_what_known_good_has_and_nobody_reads_is_warned_of():
    target = copy.deepcopy(TARGET)
    target["configuration"]["environment"].update(NCCL_BUFSIZE="8388608", NCCL_VERSION="2.28.3-1", TORCH_NCCL_BLOCKING_WAIT="1")
    found = resolve.resolve({"nccl_channels": "2"}, {}, target, nccl_version="2.28.9")
    assert [text for text in found.warnings if "reads" in text] == [
        "Known-good has what nobody reads: NCCL has no NCCL_BUFSIZE, and reports no unknown name; did you mean NCCL_BUFFSIZE?"
    ]


def test_two_factors_are_counted_as_two():
    found = resolved({"nccl_channels": "2", "tune_flags": {"disable-radix-cache": True}})
    assert len(found.factors) == 2
    assert resolve.overlay(KNOWN_GOOD, found.factors)["label"] == "nccl_channels=2, --disable-radix-cache"


@pytest.mark.parametrize(
    ("given", "label"),
    [
        ({"nccl_proto": "Simple"}, "nccl_proto=Simple"),
        ({"tune_flags": {"tp": 8}}, "--tp-size 8"),
        ({"tune_flags": {"disable_custom_all_reduce": True}}, "--disable-custom-all-reduce"),
        ({"tune_flags": {"enable-mscclpp": False}}, "--enable-mscclpp (removed)"),
        ({"tune_environment": {"OMP_NUM_THREADS": 8}}, "OMP_NUM_THREADS=8"),
    ],
)
def test_what_is_in_force_is_no_factor(given, label):
    found = resolved(given)
    assert (found.factors, found.in_force, found.errors) == ([], [label], [])


@pytest.mark.parametrize(
    ("value", "flags"),
    [
        ("mem-fraction-static=0.8", {"mem-fraction-static": "0.8"}),
        ("--mem-fraction-static=0.8", {"mem-fraction-static": "0.8"}),
        ("disable-radix-cache", {"disable-radix-cache": True}),
        ('json-model-override-args={"a":1}', {"json-model-override-args": "{a:1}"}),
        ({"cuda-graph-bs": [1, 2]}, {"cuda-graph-bs": ["1", "2"]}),
    ],
)
def test_flags_as_text_or_mapping(value, flags):
    assert [factor.flags for factor in resolved({"tune_flags": value}).factors] == [flags]


def test_a_flag_is_taken_away():
    made = candidate({"tune_flags": {"disable-custom-all-reduce": None}})
    assert "disable-custom-all-reduce" not in made["server"]["flags"]


def test_an_environment_variable_is_set_and_taken_away():
    made = candidate({"tune_environment": {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": None}})
    assert made["environment"] == {"NCCL_ALGO": "ring,tree", "TOKENIZERS_PARALLELISM": "false"}
    assert (made["unset"], made["own_environment"]) == (["OMP_NUM_THREADS"], ["TOKENIZERS_PARALLELISM"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tune_flags": {"nnodes": 2}}, "nnodes 2"),
        ({"tune_environment": {"NCCL_ALGO": "Ring"}}, "nccl_extra"),
        ({"tune_flags": {"port": 9}}, "port"),
        ({"tune_flags": "--host=0.0.0.0"}, "host"),
        ({"nccl_channels": "many"}, "nccl_channels"),
    ],
)
def test_errors_name_the_variable(given, said):
    found = resolved(given)
    assert (found.factors, len(found.errors)) == ([], 1)
    assert said in found.errors[0]


def test_a_variable_of_the_wrong_type():
    with pytest.raises(RingmasterError, match=r"tune_flags is a list; it has to be a mapping"):
        resolved({"tune_flags": [1]})


def test_drift_is_told_and_never_a_factor():
    found = resolved({"nccl_channels": "2"}, {"nccl_proto": "LL", "sglang_flags": {"tp-size": 4, "trust-remote-code": True}})
    assert [factor.label for factor in found.factors] == ["nccl_channels=2"]
    text = " ".join(found.drift)
    for part in ("NCCL_PROTO=LL", "has Simple", "--tp-size 4", "has 8", "--trust-remote-code"):
        assert part in text
    assert resolved({}, {"nccl_proto": "Simple", "sglang_flags": {"tp-size": 8}}).drift == []


def test_inventory_lines_are_yaml_that_says_the_same():
    factors = resolved({"nccl_channels": "2", "tune_flags": {"tp": 4, "cuda-graph-bs": ["1", "2"]}}).factors
    assert yaml.safe_load("\n".join(resolve.inventory_lines(factors))) == {
        "nccl_channels": 2, "sglang_flags": {"tp-size": "4", "cuda-graph-bs": ["1", "2"]}}


def test_more_blocks_are_asked_for_once_each():
    steps = resolve.steps(3, 5, seed=1)
    assert [step["block"] for step in steps if step.get("ask")] == [4, 5]
    assert sum(1 for step in steps if step["block"] is None) == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tune_flags": {"a b": "1"}}, "'a b' is no name"),
        ({"tune_flags": "=a"}, "'' is no name"),
        ({"tune_flags": {"dtype": {"b": 1}}}, "plain text on one line"),
        ({"tune_flags": {"dtype": "a\nb"}}, "plain text on one line"),
        ({"tune_flags": {"model_path": "/other"}}, "another question"),
        ({"tune_flags": "help"}, "starts no server"),
        ({"tune_environment": {"": "1"}}, "'' is no name"),
        ({"tune_environment": {"A": "a\0b"}}, "plain text on one line"),
        ({"tune_environment": {"RINGMASTER_WITNESS": "/x"}}, "Ringmaster's own"),
        ({"tune_environment": {"PYTHONPATH": "/x"}}, "Ringmaster's own"),
    ],
)
def test_what_cannot_be_a_flag_or_a_variable_is_refused_before_anything_starts(given, said):
    found = resolved(given)
    assert found.factors == []
    assert said in " ".join(found.errors)


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ('{"disable-radix-cache": true}', {"disable-radix-cache": True}),
        ("disable-radix-cache=true", {"disable-radix-cache": True}),
        ("disable-custom-all-reduce=false", {"disable-custom-all-reduce": None}),
    ],
)
def test_text_from_the_command_line_means_what_it_says(text, flags):
    (factor,) = resolved({"tune_flags": text}).factors
    assert factor.flags == flags

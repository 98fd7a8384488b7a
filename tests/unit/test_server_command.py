# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Command lines of servers, there and back."""

from __future__ import annotations

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.module_utils.server_command import (
    arguments,
    flag_int,
    flag_name,
    flag_value,
    parse,
    parse_flags,
)

PYTHON = "/opt/sglang/bin/python"
START = [PYTHON, "-m", "sglang.launch_server"]


@pytest.mark.parametrize(
    "flags",
    [
        {"model-path": "/models/m"},
        {"model-path": "/models/with blank", "trust-remote-code": True, "tp-size": "8"},
        {"model-path": "/m", "cuda-graph-bs": ["1", "2", "4"], "mem-fraction-static": "0.88"},
        {"model-path": "/m", "json-model-override-args": '{"a": "b c"}', "chat-template": ""},
        {"model-path": "/m", "random-seed": "-1"},
        {"model-path": "/m", "api-key": "-aB3", "served-model-name": "--m", "lora-paths": ["a=/x", "b=/y"]},
    ],
)
def test_round_trip(flags):
    server = {"python": PYTHON, "module": "sglang.launch_server", "flags": flags}
    words = arguments(server, host="0.0.0.0", port=8000)
    assert words[:3] == START
    assert parse(words) == {**server, "listen": {"host": "0.0.0.0", "port": 8000}}


def test_a_value_with_a_dash_in_front_is_no_word_of_its_own():
    server = {"python": PYTHON, "flags": {"api-key": "-aB3", "lora-paths": ["-a=/x"]}}
    assert arguments(server, host="h", port=1)[3:5] == ["--api-key=-aB3", "--lora-paths=-a=/x"]


def test_what_is_off_is_left_out():
    server = {"python": PYTHON, "flags": {"model-path": "/m", "enable-mscclpp": False, "api-key": None}}
    assert arguments(server, host="h", port=1) == [*START, "--model-path", "/m", "--host", "h", "--port", "1"]


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["--tp", "8"], {"tp-size": "8"}),
        (["--tensor-parallel-size=8"], {"tp-size": "8"}),
        (["--tp_size", "8"], {"tp-size": "8"}),
        (["--model", "/m", "--trust-remote-code"], {"model-path": "/m", "trust-remote-code": True}),
        (["--model-path=/m=1", "--api-key="], {"model-path": "/m=1", "api-key": ""}),
        (["--cuda-graph-bs", "1", "2", "4", "--tp", "2"], {"cuda-graph-bs": ["1", "2", "4"], "tp-size": "2"}),
        (["--random-seed", "-1"], {"random-seed": "-1"}),
        (["--ep", "2", "--dp", "3", "--pp", "4"], {"ep-size": "2", "dp-size": "3", "pp-size": "4"}),
    ],
)
def test_spellings(words, flags):
    assert parse_flags(words) == flags


@pytest.mark.parametrize("name", ["tp", "--tp", "tp_size", "--tensor-parallel-size"])
def test_one_name_for_all_spellings(name):
    assert flag_name(name) == "tp-size"


def test_the_last_of_two_equal_flags_wins_as_in_argparse():
    assert parse_flags(["--tp", "2", "--tensor-parallel-size", "4"]) == {"tp-size": "4"}


def test_listen_has_sglangs_defaults():
    assert parse([*START, "--model-path", "/m"])["listen"] == {"host": "127.0.0.1", "port": 30000}


def test_options_of_python_itself():
    assert parse([PYTHON, "-X", "dev", "-m", "sglang.launch_server", "--model-path", "/m"])["flags"] == {"model-path": "/m"}


def test_sglang_serve_means_the_interpreter_of_the_script(tmp_path):
    script = tmp_path / "sglang"
    script.write_text("#!/opt/sglang/bin/python3.12 -s\nimport sglang\n")
    parsed = parse([str(script), "serve", "--model-path", "/m", "--port", "9"])
    assert (parsed["python"], parsed["module"], parsed["listen"]["port"]) == ("/opt/sglang/bin/python3.12", "sglang.launch_server", 9)


def test_sglang_serve_as_the_kernel_shows_it():
    assert parse([PYTHON, "/opt/sglang/bin/sglang", "serve", "--model-path", "/m"])["python"] == PYTHON


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "does not start SGLang"),
        (["/usr/bin/vllm", "serve", "m"], "does not start SGLang"),
        (["/usr/bin/numactl", "-N", "0", *START, "--model-path", "/m"], "'/usr/bin/numactl', which is no Python"),
        ([*START, "stray", "--model-path", "/m"], "'stray' where a flag was expected"),
        ([*START, "--model-path", "/m", "--port", "http"], "--port 'http'"),
    ],
)
def test_what_is_no_plain_command_is_refused(words, said):
    with pytest.raises(RingmasterError, match=said):
        parse(words)


@pytest.mark.parametrize(
    ("given", "held"),
    [(4, "4"), ("4", "4"), (0.5, "0.5"), (0, "0"), (True, True), (False, None), (None, None), ([1, "2"], ["1", "2"]), ("", "")],
)
def test_a_value_has_one_form(given, held):
    assert flag_value(given) == held
    assert type(flag_value(given)) is type(held)


@pytest.mark.parametrize(("flags", "value"), [({"tp-size": "4"}, 4), ({}, 1), ({"tp-size": True}, 1), ({"tp-size": "x"}, 1)])
def test_flag_int(flags, value):
    assert flag_int({"flags": flags}, "tp-size", 1) == value

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Server flags against the lists of SGLang's versions, and how they get into a unit."""

from __future__ import annotations

import shlex

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.ringmaster.gpu.plugins.filter import sglang_command, systemd_environment
from ansible_collections.ringmaster.gpu.plugins.module_utils import units
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import sglang_flags as flags_of

OLD, NEW = "0.5.16", "0.5.23"


def check(given, version=NEW):
    return flags_of.check(given, version, flags_of.known(version))


@pytest.mark.parametrize("version", [OLD, NEW])
def test_the_story_s_server_is_understood_by_every_version(version):
    story = {
        "trust-remote-code": True, "tp-size": 8, "mem-fraction-static": 0.88, "num-continuous-decode-steps": 4,
        "disable-custom-all-reduce": True, "speculative-algorithm": "EAGLE3", "speculative-draft-model-path": "/m",
    }  # fmt: skip
    found = check(story, version)
    assert found["errors"] == []
    assert list(found["flags"]) == list(story)
    assert [note for note in found["notes"] if "does nothing" in note] == found["notes"]
    assert len(found["notes"]) == 1


@pytest.mark.parametrize(
    ("given", "flags", "told"),
    [
        ({"cuda-graph-max-bs": 128}, {"cuda-graph-max-bs-decode": "128"}, "--cuda-graph-max-bs is --cuda-graph-max-bs-decode in"),
        ({"cuda_graph_max_bs": 128}, {"cuda-graph-max-bs-decode": "128"}, "--cuda-graph-max-bs is"),
        ({"enable-flashinfer-allreduce-fusion": True}, {"flashinfer-allreduce-fusion-backend": "auto"}, "backend auto in this SGLang"),
        ({"prefill-cp-mode": "in-seq-split"}, {"cp-strategy": "zigzag"}, "--cp-strategy zigzag"),
        ({"tp": 4}, {"tp-size": "4"}, None),
        ({"trust-remote-code": False, "dp": None}, {}, None),
        ({"cuda-graph-bs-decode": [1, 2, 4]}, {"cuda-graph-bs-decode": ["1", "2", "4"]}, None),
        ({"enable-flashinfer-allreduce-fusion": False}, {}, None),
        ({"lora-strict-loading": False}, {"no-lora-strict-loading": True}, None),
    ],
)
@pytest.mark.parametrize("version", [OLD, NEW])
def test_names_of_yesterday(given, flags, told, version):
    found = check(given, version)
    assert found["errors"] == []
    assert found["flags"] == flags
    assert (told is None and found["notes"] == []) or told in found["notes"][0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tp-sise": 2}, "SGLang 0.5.23 has no --tp-sise; did you mean --tp-size?"),
        ({"zzz": True}, "has no --zzz."),
        ({"disable-custom-all-reduce": "yes"}, "--disable-custom-all-reduce takes no value, and 'yes' was given"),
        ({"tp-size": True}, "--tp-size needs a value"),
        ({"tp-size": [1, 2]}, "takes one value, and a list was given; write that value alone."),
        ({"attention-backend": "tritn"}, "'tritn' is none of its values; did you mean triton?"),
        ({"attention-backend": "zzz"}, "there are aiter, ascend, compressed, cutedsl_mla, dsa, dsv4, fa3, fa4 and 17 more."),
        ({"attention-backend": "fa"}, "did you mean fa3 or fa4?"),
        ({"attention-backend": "FlashInfer"}, "did you mean flashinfer"),
        ({"kv-cache-dtype": "fp8"}, "did you mean fp8_e4m3 or fp8_e5m2?"),
        ({"mem-frac": 0.8}, "did you mean --mem-fraction-static?"),
        ({"enable-ep-moe": True}, "SGLang 0.5.23 has no --enable-ep-moe."),
        ({"torchao-confg": "int4"}, "SGLang 0.5.23 has no --torchao-confg."),
        ({"disable-custom-all-reduce": "false"}, "'false' was given; write true or false, without quotes."),
        ({"enable-flashinfer-allreduce-fusion": "no"}, "--enable-flashinfer-allreduce-fusion takes no value, and 'no' was given"),
        ({"disable-piecewise-cuda-graph": "false"}, "--disable-piecewise-cuda-graph takes no value, and 'false' was given"),
        ({"tp-size": "eight"}, "--tp-size: 'eight' is no whole number."),
        ({"tp-size": 8.0}, "--tp-size: '8.0' is no whole number."),
        ({"cuda-graph-bs-decode": [1, "two"]}, "--cuda-graph-bs-decode: 'two' is no whole number."),
        ({"mem-fraction-static": "0,88"}, "--mem-fraction-static: '0,88' is no number."),
        ({"preferred-sampling-params": {"top_p": 1}}, "preferred-sampling-params is a mapping; write its value as text, in quotes."),
        ({"cuda-graph-bs-decode": "1 2 4"}, "'1 2 4' is no whole number; write several as a list."),
        ({"lora-paths": [{"lora_name": "a"}]}, "lora-paths has a mapping, a list, true, false or null in it; write each value as text"),
        ({"lora-paths": [["a", "b"]]}, "lora-paths has a mapping, a list"),
        ({"lora-paths": ["a", None]}, "lora-paths has a mapping, a list"),
        ({"lora-paths": ["a=/x", "-b=/y"]}, "--lora-paths: '-b=/y' begins with a dash, which SGLang takes for another flag"),
        ({"json-model-override-args": "{'a': 1}"}, "\"{'a': 1}\" is no JSON (as text, in quotes)."),
        ({"model-loader-extra-config": "{a:1}"}, "'{a:1}' is no JSON"),
        ({"dist-init-addr": "a:1", "nccl-init-addr": "b:1"}, "dist-init-addr and nccl-init-addr are the same flag"),
        ({"lora-strict-loading": True, "no-lora-strict-loading": True}, "are the same flag"),
        ({"tp": 2, "tp-size": 2}, "tp and tp-size are the same flag, --tp-size"),
        ({"cuda-graph-max-bs": 1, "cuda-graph-max-bs-decode": 2}, "are the same flag"),
        ({"host": "0.0.0.0"}, "host is set by sglang_host"),
        ({"model": "/m"}, "model is set by sglang_model_path"),
    ],
)
def test_what_cannot_be_is_an_error(given, words):
    found = check(given)
    assert len(found["errors"]) == 1
    assert words in found["errors"][0]
    assert found["errors"][0].startswith("sglang_flags: ")


def test_what_sglang_s_parser_reads_is_taken():
    given = {"mem-fraction-static": 1, "chunked-prefill-size": -1, "context-length": "64k", "preferred-sampling-params": '{"top_p": 0.9}'}
    assert check(given)["errors"] == []


def test_everything_wrong_is_told_at_once():
    errors = " ".join(check({"tp-sise": 2, "attention-backend": "tritn"})["errors"])
    assert "--tp-sise" in errors
    assert "tritn" in errors


def test_flags_that_a_file_keeps_are_not_renamed():
    def wrong(kept, version):
        return " ".join(flags_of.check_kept(kept, version, flags_of.known(version)))

    kept = {"cuda-graph-max-bs": "128", "tp-size": "2"}
    assert wrong(kept, OLD) == ""
    assert "calls --cuda-graph-max-bs now --cuda-graph-max-bs-decode" in wrong(kept, NEW)
    assert "has no --collect-tokens-histogram" in wrong({"collect-tokens-histogram": True}, NEW)


def test_new_names_are_flags_of_some_version():
    tables = [flags_of.known(version) for version in (OLD, NEW)]
    for old, change in flags_of.changes()["renamed"].items():
        assert any(change["to"] in table for table in tables), old
        values = [*change.get("values", {}).values(), *([change["value"]] if change.get("value") else [])]
        for choices in filter(None, (table.get(change["to"], {}).get("choices") for table in tables)):
            assert set(values) <= set(choices), old


def test_the_command_of_a_unit_is_read_back():
    flags = {"model-path": "/a b", "json-model-override-args": '{"a": "50% $x"}', "trust-remote-code": True, "cuda-graph-bs": ["1", "2"]}
    line = sglang_command._sglang_command(flags, "/opt/sglang/bin/python", "0.0.0.0", "8000")
    start, listen = ["/opt/sglang/bin/python", "-m", "sglang.launch_server"], ["--host", "0.0.0.0", "--port", "8000"]
    words = ["--model-path", "/a b", "--json-model-override-args", '{"a": "50% $x"}', "--trust-remote-code", "--cuda-graph-bs", "1", "2"]
    assert units.exec_start(f"[Service]\nExecStart={line}\n") == [*start, *words, *listen]


def test_an_environment_file_is_read_back(tmp_path):
    variables = {"A": 'say "hi" 100% $HOME \\ end', "NUMBER": 1, "EMPTY": "", "GONE": None}
    path = tmp_path / "env"
    path.write_text(systemd_environment._systemd_environment(variables))
    assert units._environment_file(str(path)) == {"A": variables["A"], "NUMBER": "1", "EMPTY": ""}
    assert [shlex.split(line)[0] for line in path.read_text().splitlines()][0].startswith("A=")


@pytest.mark.parametrize(
    ("variables", "words"),
    [({"a b": "1"}, "'a b' is no name"), ({"A": "x\ny"}, "value of A has a line break"), ({"A": True}, "A is true; write it as text")],
)
def test_what_no_environment_file_can_say(variables, words):
    with pytest.raises(AnsibleFilterError, match=words):
        systemd_environment._systemd_environment(variables)

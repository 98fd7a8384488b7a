# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What role sglang is asked for: what the controller alone can tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import sglang_request
from role_lab import play, values, write_play

DIFF = "--- a/sglang/x.py\n+++ b/sglang/x.py\n@@ -1 +1 @@\n-a\n+b\n"
LOCK = f"sglang==0.5.16+local \\\n    --hash=sha256:{'0' * 64}\ntorch==2.11.0 \\\n    --hash=sha256:{'1' * 64}\n"
FILES = {"my.lock": LOCK, "bad.lock": "sglang>=0.5\n", "x.patch": DIFF, "no.patch": "hello\n"}
MANIFEST = {"name": "b1", "sglang": {"version": "0.5.16", "cuda": "13.0", "lock": "sglang/lock.txt"}}


def read(path):
    if path in FILES:
        return f"/there/{path}", FILES[path]
    if Path(path).is_absolute():
        return path, Path(path).read_text()
    raise RingmasterError(f"there is no file {path}.", "Mend the path.")


def asked(known=None, **values):
    options, problems = sglang_request.options_of(values)
    return {"problems": problems} if problems else sglang_request.check(options, read, known or {})


def patches(*items):
    return {"sglang_patches": [{"name": "x", **item} for item in items]}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"sglang_version": "latest"}, "sglang_version: 'latest' is no version of SGLang."),
        ({"sglang_version": "0.5.17"}, "sglang_version 0.5.17 for sglang_cuda 13.0: there is no lock file for that. This role has"),
        ({"sglang_cuda": 12.1}, "sglang_cuda is the number 12.1, which is what YAML reads 12.10 as, too."),
        ({"sglang_cuda": "cu128"}, "sglang_cuda: 'cu128' is no version of CUDA. Write it as \"12.8\", in quotes."),
        ({"sglang_cuda": "12.8.2"}, "sglang_cuda: '12.8.2' is no version of CUDA. Write it as \"12.8\", in quotes."),
        ({"sglang_cuda": "12"}, "sglang_cuda: '12' is no version of CUDA. This role has locks for 0.5.16-cu130, 0.5.23-cu130."),
        ({"sglang_packages": "gcc,g++"}, "sglang_packages is text, not a list;"),
        ({"sglang_cuda": "../x"}, "sglang_cuda: '../x' is no version"),
        ({"sglang_source": "onlin"}, "sglang_source must be one of: online, bundle, got: onlin"),
        ({"sglang_port": "many"}, "'sglang_port' is of type str"),
        ({"sglang_packages": "[]"}, """sglang_packages is text, not a list; say -e '{"sglang_packages": [...]}'."""),
        ({"sglang_flags": {"tp-sise": 2}}, "sglang_flags: SGLang 0.5.16 has no --tp-sise; did you mean --tp-size?"),
        ({"sglang_flags": 7}, "sglang_flags is a int; it has to be a mapping."),
        ({"sglang_flags": {"served-model-name": {"a": 1}}}, "sglang_flags: served-model-name is a mapping; write its value as text"),
        ({"sglang_flags": {"served-model-name": "a\nExecStartPre=/x"}}, "--served-model-name: its value has a line break"),
        ({"sglang_flags": {"cuda-graph-bs": []}}, "needs a value."),
        ({"sglang_environment": {"A": ["b"]}}, "sglang_environment: A is a list; write it as text."),
        ({"sglang_environment": {False: "1", "A": "1"}}, "False is no name of an environment variable. Put the name in quotes: YAML reads"),
        ({"sglang_environment": {"a b": "1"}}, "sglang_environment: 'a b' is no name of an environment variable."),
        ({"sglang_lock": "no.lock"}, "sglang_lock: there is no file no.lock."),
        ({"sglang_lock": "bad.lock"}, "sglang_lock: /there/bad.lock: The lock file has the line 'sglang>=0.5'."),
        ({"sglang_lock": "my.lock", "sglang_version": "0.5.23"}, "/there/my.lock has 0.5.16+local, and sglang_version is 0.5.23."),
        (patches({}), "sglang_patches: Patch x is to be present and has no diff."),
        (patches({"patch": "none.patch"}), "sglang_patches: Patch x: there is no file none.patch."),
        (patches({"patch": "no.patch"}), "sglang_patches: Patch x: "),
        (patches({"patch": "x.patch", "diff": DIFF}), "sglang_patches: Patch x has both patch (a file) and diff (text)."),
        (patches({"diff": DIFF}, {"diff": DIFF}), "sglang_patches: Patch x is listed twice."),
        (patches({"diff": DIFF, "versions": [">0.5.16"]}), "Patch x is for sglang >0.5.16; to be installed is 0.5.16."),
        (patches({"diff": DIFF, "package": "torch", "versions": ["<2.11"]}), "Patch x is for torch <2.11; to be installed is 2.11.0."),
        (patches({"diff": DIFF, "version": "0.5.16"}), "sglang_patches.version is not known; known are diff, name, package, patch,"),
        (patches({"diff": DIFF, "package": "toch"}), "Patch x: toch is not in the lock file."),
    ],
)
def test_what_cannot_be(values, words):
    found = asked(**{"sglang_lock": "my.lock" if "sglang_patches" in values else "", **values})
    assert words in " ".join(found["problems"])


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("sglang_home", ["opt/sglang", "", "/", "//", None, "/opt/a\nb"], ["/opt/sglang/", "/opt/a b", "/opt/ä"]),
        ("sglang_home", ["~/sglang", "$HOME/sglang", "/opt/$x", "/opt/a%h", "/opt/a'b", "/$x"], []),
        ("sglang_service", ["a/b", "a b", "a.socket", "sg\nlang", "sglang@", "sglang@.service", "-x", ".."], []),
        ("sglang_service", [], ["", None, "sglang", "sglang@1", "a.b.service", "sglang-kimi-k2.5", "sglang@k2.5"]),
        ("sglang_user", ["", None, "a b", "a\nExecStart=/x", 1000, ["a"]], ["sglang", "root", "a.b"]),
        ("sglang_model_path", ["/opt/m\n", ["/a"], "~/m", "./m", "../m", "$HOME/m", " /m", "/m ", "-m"], []),
        ("sglang_model_path", [], ["", None, "/opt/my model", "org/name", "m", "s3://bucket/m", "/opt/$m", "/opt/.m/~"]),
        ("sglang_host", ["", None, "::\nX=1", "0.0.0.0 --x", "-x"], ["::1", "0.0.0.0", "fe80::1%eth0"]),
        ("sglang_port", [0, -1, 65536], [1, "8000"]),
        ("sglang_keep_environments", [-1], [0]),
        ("sglang_settle_s", [-1, "nan", "inf"], [0, 0.5]),
        ("sglang_drain_timeout_s", [-1], [0]),
        ("sglang_build_timeout_s", [0], [1]),
        ("sglang_packages", ["gcc g++", [""], ["--allow-unauthenticated"], "gcc,g++", ""], [[], ["libc6:amd64", "g++"]]),
        ("sglang_index_url", ["", "pypi", "ftp://x", None, "https://a b"], ["http://127.0.0.1:8081/simple", "https://u:p@x/simple"]),
        ("sglang_version", [["0.5.16"], "0.5.１６"], ["0.5.16"]),
    ],
)
def test_what_becomes_a_path_a_unit_or_an_argument(name, wrong, right):
    for value in wrong:
        assert [text for text in asked(**{name: value})["problems"] if name in text], value
    for value in right:
        assert asked(**{name: value})["problems"] == [], value


@pytest.mark.parametrize(
    ("name", "value"),
    [("sglang_environment", ["T=hf_secret"]), ("sglang_environment", "T='hf_secret"), ("sglang_environment", '{"T": "hf_secret'),
     ("sglang_environment", {"T": "hf_secret\n"}), ("sglang_environment", {"T": ["hf_secret"]}), ("sglang_index_url", "u:hf_secret@x")],
)  # fmt: skip
def test_a_secret_that_cannot_be_is_not_told(name, value):
    problems = asked(**{name: value})["problems"]
    assert name in problems[0]
    assert "hf_secret" not in str(problems)


def test_all_of_it_is_told_at_once():
    values = {"sglang_flags": {"zzz": 1}, "sglang_environment": {"A": True}, "sglang_lock": "no.lock", **patches({"patch": "none.patch"})}
    assert [text.split(":")[0] for text in asked(**values)["problems"]] == [
        "sglang_flags", "sglang_environment", "sglang_lock", "sglang_patches"
    ]  # fmt: skip


@pytest.mark.parametrize("cuda", [13.0, "13.0"])
def test_what_can_be(cuda):
    found = asked(sglang_cuda=cuda, sglang_flags="cuda-graph-max-bs=8", **patches({"patch": "x.patch", "versions": "<0.5.17"}))
    assert found["problems"] == []
    assert found["flags"] == {"cuda-graph-max-bs-decode": "8"}
    assert found["notes"]
    assert found["lock"].endswith("roles/sglang/files/locks/0.5.16-cu130.txt")


def test_patches_name_an_environment_by_what_they_are():
    by_file = asked(**patches({"patch": "x.patch"}))["patches_suffix"]
    assert by_file == asked(**patches({"diff": DIFF}))["patches_suffix"]
    assert by_file != asked(**patches({"diff": DIFF.replace("+b", "+c")}))["patches_suffix"]
    assert asked(**patches({"patch": "gone.patch", "state": "absent"}))["patches_suffix"] == ""


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ({**MANIFEST, "sglang": None}, "The bundle b1 has no SGLang."),
        ({**MANIFEST, "sglang": {"version": "0.5.23", "cuda": "13.0"}}, "The bundle b1 has SGLang 0.5.23 for CUDA 13.0, and"),
        ({**MANIFEST, "sglang": {"version": "0.5.16", "cuda": "12.8"}}, "for CUDA 12.8, and sglang_version is 0.5.16, sglang_cuda 13.0."),
    ],
)
def test_a_bundle_of_another_sglang(manifest, words):
    assert words in " ".join(asked({"manifest": manifest}, sglang_source="bundle")["problems"])


def test_a_bundle_of_this_sglang_needs_no_lock_here():
    assert asked({"manifest": MANIFEST}, sglang_source="bundle", sglang_cuda=13.0)["problems"] == []


SLIM = {**MANIFEST, "sglang": {**MANIFEST["sglang"], "flags": {"attention-backend": "triton", "grammar-backend": "none"}}}


def test_a_slim_bundle_serves_with_its_flags():
    given = {"sglang_source": "bundle", "sglang_model_path": "/m", "sglang_flags": {"attention_backend": "triton"}}
    said = "The bundle b1 is slim and lacks what SGLang takes by itself. Add to sglang_flags: grammar-backend: none."
    assert asked({"manifest": SLIM}, **given)["problems"] == [said]
    assert asked({"manifest": SLIM}, **{**given, "sglang_model_path": ""})["problems"] == []
    both = asked({"manifest": SLIM}, **{**given, "sglang_flags": {"attention-backend": "fa3", "grammar-backend": "none"}})
    assert both["problems"] == []
    assert both["notes"] == ["The bundle b1 is slim and made for --attention-backend=triton; sglang_flags has fa3."]


def test_a_version_that_is_not_on_record_is_checked_by_the_names_of_its_environment():
    given = {"sglang_version": "0.5.99", "sglang_source": "bundle", "sglang_flags": {"tp-size": 2, "new-flag": True}}
    assert asked(**given)["checked"] is False
    assert asked({"names": ["tp-size", "new-flag"]}, **given)["checked"] is True
    assert "0.5.99 has no --new-flag" in asked({"names": ["tp-size"]}, **given)["problems"][0]


def test_what_tune_yml_keeps_has_to_go_with_it():
    kept = {"kept": {"cuda-graph-max-bs": "128"}}
    assert asked(kept, sglang_version="0.5.16")["problems"] == []
    assert "rollback.yml" in asked(kept, sglang_version="0.5.23")["problems"][0]


def test_relative_paths_are_those_of_the_role_the_playbook_and_the_working_directory(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files/one.patch").write_text(DIFF)
    (tmp_path / "two.patch").write_text(DIFF)
    names = ["one.patch", "two.patch", "patches/flashinfer-fusion-sm120.patch", "roles/sglang/files/patches/flashinfer-fusion-sm120.patch"]
    variables = {
        "sglang_lock": "roles/sglang/files/locks/0.5.16-cu130.txt",
        "sglang_patches": [{"name": f"p{number}", "patch": name} for number, name in enumerate(names)],
    }
    asked = {"ansible.builtin.include_role": {"name": "ringmaster.gpu.sglang", "tasks_from": "request"}, "vars": variables}
    told = {"ansible.builtin.debug": {"msg": "<{{ __sglang_request.lock }}>"}}
    assert f"<{Path.cwd()}/{variables['sglang_lock']}>" in play(write_play(tmp_path, [asked, told]), tmp_path, {})


def test_true_as_text_is_the_text_of_a_variable_and_the_switch_of_a_flag():
    assert asked(sglang_environment="SGLANG_X=true")["problems"] == []
    assert asked(sglang_flags="trust-remote-code=true")["flags"] == {"trust-remote-code": True}
    assert asked(sglang_flags='json-model-override-args={"a":1}')["problems"] == [
        "sglang_flags: --json-model-override-args: '{a:1}' is no JSON (as text, in quotes)."
    ]


def test_a_unit_s_name_is_that_of_a_service(tmp_path):
    names = ["sglang", "sglang.service", "sglang-k2.5", "sglang@k2.5", "sglang@0.service"]
    found = values(sglang_request.LOCKS.parents[1], ["_sglang_unit"], tmp_path, [{"sglang_service": name} for name in names])
    units = [one["_sglang_unit"] for one in found]
    assert units == ["sglang.service", "sglang.service", "sglang-k2.5.service", "sglang@k2.5.service", "sglang@0.service"]


@pytest.mark.parametrize(
    ("files", "given", "said"),
    [
        (["config.json"], "", None),
        (["params.json"], "", None),
        (["a b.gguf"], "a b.gguf", None),
        (["tokenizer.json"], "", "/config.json or MODEL/params.json is not there, or user sglang"),
        (["config.json"], "none.gguf", "/none.gguf is not there"),
    ],
)
def test_models_in_the_forms_that_sglang_reads(tmp_path, files, given, said):
    model = tmp_path / "model"
    model.mkdir()
    for name in files:
        (model / name).write_text("{}")
    looked = {"ansible.builtin.include_role": {"name": "ringmaster.gpu.sglang", "tasks_from": "model"}}
    path = str(model / given).rstrip("/")
    variables = {"sglang_model_path": path, "_sglang_user_there": False, "ansible_become": False}
    output = play(write_play(tmp_path, [looked]), tmp_path, variables, rc=2 if said else 0)
    assert (said or "").replace("MODEL", path) in " ".join(output.split())


def test_a_secret_among_the_flags_is_not_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("ANSIBLE_VERBOSITY", "3")
    asked = {"ansible.builtin.include_role": {"name": "ringmaster.gpu.sglang", "tasks_from": "request"}}
    use = {"ansible.builtin.debug": {"msg": "<{{ __sglang_request.flags['api-key'] | hash('md5') }}>"}}
    for flags, shown in (({"api-key": "hush-hush"}, False), ({"served-model-name": "hush-hush"}, True)):
        tasks = [{**asked, "vars": {"sglang_flags": flags}}, *([] if shown else [use])]
        said = play(write_play(tmp_path, tasks), tmp_path, {})
        assert (flags.popitem()[1] in said.partition("TASK")[2]) == shown, said

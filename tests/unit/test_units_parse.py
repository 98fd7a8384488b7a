# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Texts of systemd, read by its own rules."""

from __future__ import annotations

import os
import subprocess

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import units_parse

GENERATOR = "/usr/lib/systemd/user-environment-generators/30-systemd-environment-d-generator"
ENVIRONMENT_FILES = [
    ("A=1\nB=2\n", {"A": "1", "B": "2"}),
    ('A={"a": 1}\n', {"A": '{"a": 1}'}),  # a quote amid a value is a sign like any other
    ("A=it's\nB=2\n", {"A": "it's", "B": "2"}),
    ("A=a   b  \n", {"A": "a   b"}),
    ("  A = x \n", {"A": "x"}),
    ("export A=b\nB-C=2\n1A=3\n=4\nD\n", {}),
    ("# A=1\n; B=2\n  # C=3\nD=#4 ; x\n", {"D": "#4 ; x"}),
    ("A=\"two\nlines\"\nB='three\n\nlines'\n", {"A": "two\nlines", "B": "three\n\nlines"}),
    ("A=one\\\n  two\nB=2\n", {"A": "one  two", "B": "2"}),
    ('A="one\\\n two"\n', {"A": "one two"}),
    ('A="a\\nb \\" \\\\ \\` \\t"\n', {"A": 'a\\nb " \\ ` \\t'}),
    ("A='a\\nb \\'\nB=\\a\\\\b\\ \n", {"A": "a\\nb \\", "B": "a\\b "}),
    ('A="x" \'y\'z\nB= "x" "y"\n', {"A": "xyz", "B": "xy"}),
    ('A="not closed\nB=2\n', {"A": "not closed\nB=2\n"}),
    ("A='not closed", {"A": "not closed"}),
    ("A=last", {"A": "last"}),
    ("A=1\r\nB='2'\r\n", {"A": "1", "B": "2"}),
    ("A=1\nA=2\n", {"A": "2"}),
    ("A=äö 模\n", {"A": "äö 模"}),
]


@pytest.mark.parametrize(("text", "found"), [*ENVIRONMENT_FILES, ("A=\nB=''\n", {"A": "", "B": ""}), ("A=$B ${C}\n", {"A": "$B ${C}"})])
def test_an_environment_file(text, found):
    assert units_parse.environment_file(text) == found


@pytest.mark.parametrize("tail", ["\\", '"\\', "'\\", "\\\n", "", '"', "="])
def test_every_environment_file_can_be_read(tail):
    assert set(units_parse.environment_file(f"A=1\nB=x{tail}")) == {"A", "B"}
    assert set(units_parse.environment_file(f"A=1\nB={tail}")) == {"A", "B"}


@pytest.mark.skipif(not os.path.exists(GENERATOR), reason="no systemd-environment-d-generator")
@pytest.mark.parametrize(("text", "found"), ENVIRONMENT_FILES)
def test_systemd_itself_reads_it_like_that(tmp_path, text, found):
    (tmp_path / "environment.d").mkdir()
    (tmp_path / "environment.d/zz.conf").write_bytes(text.encode())
    done = subprocess.run([GENERATOR], env={"XDG_CONFIG_HOME": str(tmp_path)}, capture_output=True, text=True, check=True)
    shown = dict(word.partition("=")[::2] for word in units_parse.words(done.stdout.replace("=$'", "='")))
    assert {name: value for name, value in shown.items() if name in "ABCD"} == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a  b\tc", ["a", "b", "c"]),
        ('"a b" \'c d\'e f"g h"', ["a b", "c de", "fg h"]),
        ('"" x', ["", "x"]),
        ('"A={\\"a\\": 1}" B=2', ['A={"a": 1}', "B=2"]),
        ('"A=\\$HOME \\`x\\`"', ["A=$HOME `x`"]),  # as systemctl shows a value
        ("\"A=two\\nlines\" 'B=\\x41\\102'", ["A=two\nlines", "B=AB"]),
        ('"\\303\\244 \\u00e4 \\U0001f600 \\ud800 \\xff"', ["ä ä 😀 \ufffd \ufffd"]),
        ("a\\qb \\s", ["a\\qb", " "]),  # what is no escape stays
        ("a\u00a0b\u2028c", ["a\u00a0b\u2028c"]),
        ('a "b', None),
        ("it's", None),
        ("", []),
    ],
)
def test_words(text, found):
    assert units_parse.words(text) == found


START = "/p/python -m sglang.launch_server --model-path /m"


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (f"ExecStart={START}\n", ""),
        (f"ExecStart = {START}\n", ""),
        (f"  ExecStart={START}  \n", ""),
        (f"ExecStart={START}\r\nUser=x\r\n", ""),
        (f"ExecStart={START} \\\r\n  --tp 2\r\n", "--tp 2"),
        (f"ExecStart={START} \\\n; --tp 4\n  # --dp 2\n  --pp 2\n", "--pp 2"),
        (f"ExecStart={START} \\\\\n--tp 2\n", "\\"),  # this backslash is one that is meant
        (f"#ExecStart=/bin/a\nExecStart=/bin/b\nExecStart=\nExecStart=-!{START}\n;ExecStart=/bin/c\n", ""),
        (f"ExecStartPre=/bin/a\nExecStart={START}\nExecStartPost=/bin/b\n", ""),
        (f"ExecStart={START} 100%% $$x a$b\n", "100% $x a$b"),
    ],
)
def test_the_command_of_a_unit(text, more):
    assert units_parse.exec_start(f"# /etc/systemd/system/a.service\n[Service]\n{text}\n") == [*START.split(), *more.split()]
    assert units_parse.unresolved(text) == []


@pytest.mark.parametrize(
    ("words", "signs"),
    [
        ("--model-path /m/%i", ["%i"]),
        ("--model-path ${MODEL} --port $PORT", ["${MODEL}", "$PORT"]),
        ("--model-path /m/${A}-${B}", ["${A}", "${B}"]),
        ("--x '%h$$' %%i $${A} 5% 5%%", ["%h"]),
    ],
)
def test_what_only_systemd_can_replace(words, signs):
    assert units_parse.unresolved(f"[Service]\nExecStart=/bin/%a\nExecStart=/bin/a {words}\n") == signs

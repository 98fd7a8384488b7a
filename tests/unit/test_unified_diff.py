# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Unified diffs: what is read and refused, what is applied and reversed, and the same done by patch(1) and git(1)."""

from __future__ import annotations

import difflib
import random
import shutil
import subprocess

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import unified_diff
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.module_utils.unified_diff_parse import parse

X = "pkg/x.py"
HEAD = f"--- a/{X}\n+++ b/{X}\n"
ONE = HEAD + "@@ -2,3 +2,3 @@\n two\n-three\n+THREE\n four\n"
TEN = b"one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n"


def apply(text, content, near=0):
    (patch,) = parse(text)
    return unified_diff.apply(content, patch, near)


def undo(text, content, near=0):
    (patch,) = parse(text)
    return unified_diff.apply(content, unified_diff.reverse(patch), near)


# --- what applies: name, diff, before, after, offset. Each is reversed, too.

APPLIES = [
    ("a line", ONE, TEN, TEN.replace(b"three", b"THREE"), 0),
    ("no a/ and b/", ONE.replace("a/", "").replace("b/", ""), TEN, TEN.replace(b"three", b"THREE"), 0),
    ("other first folders", ONE.replace("a/", "orig/").replace("b/", "new/"), TEN, TEN.replace(b"three", b"THREE"), 0),
    ("dates after tabs", ONE.replace(".py\n", ".py\t2026-01-01 00:00:00.0 +0000\n"), TEN, TEN.replace(b"three", b"THREE"), 0),
    ("a comment ahead", "# why\n\nFrom: me\n" + ONE, TEN, TEN.replace(b"three", b"THREE"), 0),
    ("a mail's signature below", ONE + "-- \n2.39.5\n\n", TEN, TEN.replace(b"three", b"THREE"), 0),
    ("git's heads", f"diff --git a/{X} b/{X}\nindex 1..2 100644\n" + ONE, TEN, TEN.replace(b"three", b"THREE"), 0),
    ("a function in the hunk's head", ONE.replace("3 @@", "3 @@ def f():"), TEN, TEN.replace(b"three", b"THREE"), 0),
    ("counts of one left out", HEAD + "@@ -3 +3 @@\n-three\n+THREE\n", TEN, TEN.replace(b"three", b"THREE"), 0),
    ("no newline after the diff", ONE[:-1], TEN, TEN.replace(b"three", b"THREE"), 0),
    ("a wrong new start", ONE.replace("+2,3", "+99,3"), TEN, TEN.replace(b"three", b"THREE"), 0),
    ("lines added above", ONE, b"zero\n" + TEN, b"zero\n" + TEN.replace(b"three", b"THREE"), 1),
    ("lines gone above", ONE, TEN[4:], TEN[4:].replace(b"three", b"THREE"), -1),
    ("two hunks", HEAD + "@@ -1,2 +1,3 @@\n one\n+and\n two\n@@ -8,3 +9,2 @@\n eight\n-nine\n ten\n", TEN,
     b"one\nand\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nten\n", 0),
    ("two hunks, both off", HEAD + "@@ -1,2 +1,3 @@\n one\n+and\n two\n@@ -8,3 +9,2 @@\n eight\n-nine\n ten\n", b"\n\n" + TEN,
     b"\n\none\nand\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nten\n", 2),
    ("hunks that touch", HEAD + "@@ -1 +1 @@\n-one\n+1\n@@ -2 +2 @@\n-two\n+2\n", TEN, b"1\n2\n" + TEN[8:], 0),
    ("an empty line whose blank was lost", HEAD + "@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n", b"a\n\nb\n", b"a\n\nc\n", 0),
    ("a newline at the end comes", HEAD + "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n", b"a\nb", b"a\nb\n", 0),
    ("a newline at the end goes", HEAD + "@@ -1,2 +1,2 @@\n a\n-b\n+b\n\\ Kein Zeilenumbruch\n", b"a\nb\n", b"a\nb", 0),
    ("no newline on both sides", HEAD + "@@ -1,2 +1,2 @@\n-a\n+c\n b\n\\ No newline at end of file\n", b"a\nb", b"c\nb", 0),
    ("a file with CRLF", HEAD + "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+c\r\n", b"a\r\nb\r\n", b"a\r\nc\r\n", 0),
    ("CRLF becomes LF", HEAD + "@@ -1 +1 @@\n-a\r\n+a\n", b"a\r\n", b"a\n", 0),
    ("a form feed is no end of a line", HEAD + "@@ -1,2 +1,2 @@\n a\fb\n-c\n+d\n", b"a\fb\nc\n", b"a\fb\nd\n", 0),
    ("lines that look like heads", HEAD + "@@ -1,2 +1,2 @@\n-- x\n+++ y\n -- z\n", b"- x\n-- z\n", b"++ y\n-- z\n", 0),
    ("beyond ASCII", HEAD + "@@ -1 +1 @@\n-é\n+→\n", "é\n".encode(), "→\n".encode(), 0),
    ("an empty file gets lines", HEAD + "@@ -0,0 +1,2 @@\n+a\n+b\n", b"", b"a\nb\n", 0),
    ("a file loses all lines", HEAD + "@@ -1,2 +0,0 @@\n-a\n-b\n", b"a\nb\n", b"", 0),
    ("a new file", f"--- /dev/null\n+++ b/{X}\n@@ -0,0 +1,2 @@\n+a\n+b\n", None, b"a\nb\n", 0),
    ("a new file, no newline", f"--- /dev/null\n+++ b/{X}\n@@ -0,0 +1 @@\n+a\n\\ No newline at end of file\n", None, b"a", 0),
    ("a file goes", f"--- a/{X}\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n", b"a\nb\n", None, 0),
    ("a new empty file", f"diff --git a/{X} b/{X}\nnew file mode 100644\nindex 0..e\n", None, b"", 0),
    ("an empty file goes", f"diff --git a/{X} b/{X}\ndeleted file mode 100644\nindex e..0\n", b"", None, 0),
]  # fmt: skip


@pytest.mark.parametrize(("text", "before", "after", "offset"), [row[1:] for row in APPLIES], ids=[row[0] for row in APPLIES])
def test_applies_and_reverses(text, before, after, offset):
    (patch,) = parse(text)
    assert patch.path == X
    assert unified_diff.apply(before, patch) == (after, offset)
    assert unified_diff.apply(after, unified_diff.reverse(patch)) == (before, offset)
    assert unified_diff.state({X: before}, [patch]) == "absent"
    assert unified_diff.state({X: after}, [patch]) == "present"


# --- what does not fit: name, diff, content, words of the message

MISFITS = [
    ("another line", ONE, TEN.replace(b"four", b"4"), "pkg/x.py: hunk 1, line 4: expected 'four\\n', found '4\\n'"),
    ("no fuzz at the rim", ONE, TEN.replace(b"two", b"2"), "hunk 1, line 2: expected 'two\\n', found '2\\n'"),
    ("a blank more", ONE, TEN.replace(b"four", b"four "), "found 'four \\n'"),
    ("CRLF is told", ONE, TEN.replace(b"\n", b"\r\n"), "found 'two\\r\\n'"),
    ("the file ends early", ONE, b"one\ntwo\nthree\n", "hunk 1, line 4: expected 'four\\n', found the end of the file"),
    ("an empty file", ONE, b"", "found the end of the file"),
    ("no file", ONE, None, "pkg/x.py is not there"),
    ("fits twice elsewhere", ONE, b"0\n" + TEN + TEN, "does not fit at line 2, and fits at lines 3 and 13"),
    ("hunks unequally far off", HEAD + "@@ -1 +1 @@\n-one\n+1\n@@ -3 +3 @@\n-three\n+3\n", TEN.replace(b"two\n", b"two\n2.5\n"),
     "hunk 2, line 3: expected 'three\\n', found '2.5\\n'"),
    ("the second hunk differs, off", HEAD + "@@ -1 +1 @@\n-one\n+1\n@@ -3 +3 @@\n-3\n+x\n", b"0\n" + TEN,
     "hunk 2, line 4 (+1 lines off): expected '3\\n', found 'three\\n'"),
    ("the new file is there", f"--- /dev/null\n+++ b/{X}\n@@ -0,0 +1 @@\n+a\n", b"a\n", "is there already"),
    ("the file to go is another", f"--- a/{X}\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", b"a\nb\n", "expected 2 bytes, found 4 bytes"),
    ("the file is not empty", HEAD + "@@ -0,0 +1 @@\n+a\n", b"b\n", "expected 0 bytes"),
    ("a newline at the end is expected", HEAD + "@@ -1 +1 @@\n-a\n+b\n", b"a", "expected 'a\\n', found 'a'"),
    ("none is expected", HEAD + "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n", b"a\n", "expected 'a', found 'a\\n'"),
    ("none is expected in the middle", HEAD + "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n", b"a\nc\n", "expected 'a'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "content", "words"), [row[1:] for row in MISFITS], ids=[row[0] for row in MISFITS])
def test_misfits_are_told(text, content, words):
    with pytest.raises(unified_diff.Mismatch) as caught:
        apply(text, content)
    assert words in str(caught.value)


# --- what is refused as it is read: name, diff, words of the message

REFUSED = [
    ("nothing", "", "names no file"),
    ("prose", "please change three to THREE\n", "names no file"),
    ("a context diff", "*** a/x\n--- b/x\n***************\n*** 1 ****\n! a\n--- 1 ----\n! b\n", "names no file"),
    ("a renamed file", "diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n", "renames a file"),
    ("a copied file", "diff --git a/x b/y\nsimilarity index 100%\ncopy from x\ncopy to y\n", "copies a file"),
    ("two names", "--- a/x.py\n+++ b/y.py\n@@ -1 +1 @@\n-a\n+b\n", "Renames are refused"),
    ("a name and its backup", "--- x.py.orig\n+++ x.py\n@@ -1 +1 @@\n-a\n+b\n", "makes x.py of x.py.orig"),
    ("a binary file", "diff --git a/x b/x\nindex 1..2\nBinary files a/x and b/x differ\n", "changes a binary file"),
    ("git's binary patch", "diff --git a/x b/x\nGIT binary patch\nliteral 1\n", "changes a binary file"),
    ("a mode", "diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", "changes the mode"),
    ("a link", "diff --git a/x b/x\nnew file mode 120000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+y\n", "a link or a submodule"),
    ("a merge", "diff --cc x\n--- a/x\n+++ b/x\n@@@ -1,1 -1,1 +1,1 @@@\n- a\n++b\n", "the diff of a merge"),
    ("a hunk alone", "@@ -1 +1 @@\n-a\n+b\n", "belongs to no file"),
    ("a file without a hunk", HEAD, "has no hunk"),
    ("both names null", "--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "both names"),
    ("a hunk's head that is none", HEAD + "@@ -x +1 @@\n-a\n+b\n", "is no head of a hunk"),
    ("numbers beyond all", HEAD + "@@ -" + "9" * 5000 + " +1 @@\n-a\n+b\n", "is no head of a hunk"),
    ("too few lines", HEAD + "@@ -1,3 +1,3 @@\n a\n-b\n+c\n", "other numbers of lines"),
    ("too many of one kind", HEAD + "@@ -1,2 +1,3 @@\n a\n-b\n-c\n+d\n", "other numbers of lines"),
    ("too many lines", ONE + " five\n", "more lines than its head says"),
    ("a line more that goes", ONE + "-five\n", "more lines than its head says"),
    ("line 0", HEAD + "@@ -0,1 +0,1 @@\n-a\n+b\n", "begins at line 0"),
    ("lines after the end", HEAD + "@@ -1,2 +1,2 @@\n-a\n\\ No newline\n-b\n+c\n+d\n", "after the end of the file"),
    ("hunks in the wrong order", HEAD + "@@ -5 +5 @@\n-a\n+b\n@@ -1 +1 @@\n-c\n+d\n", "before the one ahead of it ends"),
    ("hunks that overlap", HEAD + "@@ -1,2 +1,2 @@\n-a\n+b\n c\n@@ -2 +2 @@\n-c\n+d\n", "before the one ahead of it ends"),
    ("no context", HEAD + "@@ -5,0 +6 @@\n+a\n", "has no context"),
    ("no context left", HEAD + "@@ -5 +4,0 @@\n-a\n", "has no context"),
    ("a new file with old lines", f"--- /dev/null\n+++ b/{X}\n@@ -1 +1 @@\n-a\n+b\n", "lines on both sides"),
    ("the same file twice", ONE + ONE, "changes pkg/x.py twice"),
    ("quotes that stay open", '--- "a/x\n+++ "b/x\n@@ -1 +1 @@\n-a\n+b\n', "quotes"),
]


@pytest.mark.parametrize(("text", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refused(text, words):
    with pytest.raises(RingmasterError) as caught:
        parse(text)
    assert words in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../x", "pkg/../../x", "a//etc/passwd", "pkg//x", "pkg/..", "pkg/x\0y", '"a/pkg/\\056\\056/x"', '"/etc/passwd"', ""],
)
@pytest.mark.parametrize("form", ["--- {0}\n+++ {0}\n", "--- /dev/null\n+++ {0}\n", "--- {0}\n+++ /dev/null\n"])
def test_paths_that_leave_the_root(path, form):
    new, gone = "/dev/null\n+" in form, "+++ /dev/null" in form
    hunk = "@@ -0,0 +1 @@\n+b\n" if new else "@@ -1 +0,0 @@\n-b\n" if gone else "@@ -1 +1 @@\n-a\n+b\n"
    with pytest.raises(RingmasterError, match="leaves the root"):
        parse(form.format(path) + hunk)


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("a/my file.py\t", "my file.py"),
        ('"a/tab\\there.py"', "tab\there.py"),
        ('"a/\\303\\251.py"\t2026-01-01', "é.py"),
        ('"a/quote\\"back\\\\.py"', 'quote"back\\.py'),
        ("a/./pkg/./x.py", "pkg/x.py"),
    ],
)
def test_names(written, path):
    new = written.replace("a/", "b/", 1)
    assert [one.path for one in parse(f"--- {written}\n+++ {new}\n@@ -1 +1 @@\n-a\n+b\n")] == [path]


def test_several_files_and_the_mode_of_a_new_one():
    text = "diff --git a/n.sh b/n.sh\nnew file mode 100755\n--- /dev/null\n+++ b/n.sh\n@@ -0,0 +1 @@\n+a\n"
    text += "diff --git a/e.py b/e.py\nnew file mode 100644\ndiff --git a/g.py b/g.py\ndeleted file mode 100644\n"
    found = parse(ONE + text)
    assert [(patch.path, patch.kind, patch.mode) for patch in found] == [
        (X, "change", 0o644), ("n.sh", "create", 0o755), ("e.py", "create", 0o644), ("g.py", "delete", 0o644),
    ]  # fmt: skip


def test_a_whole_diff_with_crlf_says_which_ends_differ():
    with pytest.raises(unified_diff.Mismatch, match=r"expected 'two\\r\\n', found 'two\\n'"):
        apply(ONE.replace("\n", "\r\n"), TEN)


STATES = [
    ("one of two files", {X: TEN.replace(b"three", b"THREE"), "pkg/y.py": TEN}, "neither"),
    ("both", {X: TEN.replace(b"three", b"THREE"), "pkg/y.py": TEN.replace(b"three", b"THREE")}, "present"),
    ("none", {X: TEN, "pkg/y.py": TEN}, "absent"),
    ("a third thing", {X: TEN, "pkg/y.py": TEN.replace(b"three", b"drei")}, "neither"),
    ("a file gone", {X: TEN, "pkg/y.py": None}, "neither"),
]


@pytest.mark.parametrize(("contents", "state"), [row[1:] for row in STATES], ids=[row[0] for row in STATES])
def test_state_of_two_files(contents, state):
    assert unified_diff.state(contents, parse(ONE + ONE.replace(X, "pkg/y.py"))) == state


def test_state_that_reads_both_ways():
    again = HEAD + "@@ -1,2 +1,3 @@\n a\n+a\n a\n"
    assert unified_diff.state({X: b"a\na\na\na\n"}, parse(again)) == "unclear"
    assert unified_diff.state({X: b"a\na\n"}, parse(again)) == "absent"


def test_where_to_look_first():
    twice = b"0\n" + TEN + TEN
    assert apply(ONE, twice, near=11)[1] == 11
    assert undo(ONE, twice.replace(b"three", b"THREE"), near=11)[1] == 11


def test_never_looked_for_ahead_of_the_first_line():
    assert apply(ONE, b"one\nx\ntwo\nthree\nfour\nend\n", near=-5) == (b"one\nx\ntwo\nTHREE\nfour\nend\n", 1)


# --- random edits, and the real programs


def edited(seed):
    """(diff of difflib, before, after) of a random file and random edits; few different lines, so that much fits in several places."""
    chance = random.Random(seed)
    words = ["a", "b", "", " ", "\tx", "- m", "+ p", "-- ", "é", "@@ -1 +1 @@", "c\r", "\\ n"]
    before = [chance.choice(words) if chance.random() < 0.5 else f"line {number}" for number in range(chance.randint(1, 40))]
    after = list(before)
    for _edit in range(chance.randint(1, 6)):
        at, length = chance.randint(0, len(after)), chance.randint(0, 3)
        after[at : at + length] = [chance.choice(words) for _ in range(chance.randint(0, 3))]
    sides = []
    for lines in (before, after):
        text = "\n".join(lines)
        sides.append(text + "\n" if text and (chance.random() < 0.8 or not lines[-1]) else text)
    pieces = ([line + "\n" for line in side.split("\n")[:-1]] + [side.split("\n")[-1]] * (not side.endswith("\n")) for side in sides)
    diff = []
    for line in difflib.unified_diff(*([one for one in piece if one] for piece in pieces), f"a/{X}", f"b/{X}", n=chance.randint(1, 4)):
        diff.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(diff), *(side.encode() for side in sides)


@pytest.mark.parametrize("seed", range(0, 400, 40))
def test_random_edits_apply_and_reverse(seed):
    done = 0
    for one in range(seed, seed + 40):
        diff, before, after = edited(one)
        if before == after:
            continue
        (patch,) = parse(diff)
        assert unified_diff.apply(before, patch) == (after, 0), one
        assert unified_diff.apply(after, unified_diff.reverse(patch)) == (before, 0), one
        done += 1
    assert done > 30


PROGRAMS = {
    "patch": ["patch", "--fuzz=0", "--batch", "--binary", "-p1", "--input", "the.diff"],
    "git": ["git", "apply", "-p1", "--unidiff-zero", "the.diff"],
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_as_the_real_programs_do(program, tmp_path):
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    (tmp_path / "pkg").mkdir()
    compared = 0
    for seed in range(60):
        diff, before, after = edited(seed)
        if before == after or not before or not after:  # patch(1) removes a file that it empties
            continue
        (tmp_path / "the.diff").write_bytes(diff.encode())
        (tmp_path / X).write_bytes(before)
        done = subprocess.run(PROGRAMS[program], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (seed, done.stdout, done.stderr)
        (patch,) = parse(diff)
        assert unified_diff.apply(before, patch)[0] == (tmp_path / X).read_bytes(), seed
        compared += 1
    assert compared > 40


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
def test_diffs_of_git(tmp_path):
    """New, deleted, empty, executable and oddly named files, as git itself writes them."""
    run = lambda *words: subprocess.run(["git", *words], cwd=tmp_path, capture_output=True, text=True, check=True).stdout  # noqa: E731
    run("init", "--quiet")
    (tmp_path / "pkg").mkdir()
    before = {X: TEN, "pkg/gone.py": b"a\nb", "pkg/empty_gone.py": b"", "pkg/é\t\".py": b"a\n", "pkg/my file.py": b"a\n"}
    after = {X: TEN.replace(b"six\n", b""), "pkg/new.py": b"n", "pkg/empty.py": b"", "pkg/é\t\".py": b"b\n", "pkg/my file.py": b"b\n"}
    for name, content in before.items():
        (tmp_path / name).write_bytes(content)
    run("add", "--all")
    tree = run("write-tree").strip()
    for name in before:
        (tmp_path / name).unlink()
    for name, content in after.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "pkg/new.py").chmod(0o755)
    run("add", "--all")
    found = parse(run("diff", "--no-renames", "--cached", tree))
    paths = sorted({*before, *after})
    assert sorted(patch.path for patch in found) == paths
    assert next(patch.mode for patch in found if patch.path == "pkg/new.py") == 0o755
    contents = {path: before.get(path) for path in paths}
    wanted = {path: after.get(path) for path in paths}
    assert unified_diff.apply_all(contents, found)[0] == wanted
    assert unified_diff.apply_all(wanted, [unified_diff.reverse(patch) for patch in found])[0] == contents

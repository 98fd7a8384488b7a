# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Source patches on real virtual environments with a small package: the stack, all or none, and what cuts a change off."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import patched_environment, source_patches
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from source_patch_lab import FIVE, GATE, MANY, ON_FIVE, ROOT, TEN, X_FIVE, X_ON_FIVE, X_TEN, Environment, X, Y, diff, item, line, make_venv


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    return make_venv(tmp_path_factory.mktemp("venv") / "venv")


@pytest.fixture
def environment(venv, tmp_path):
    return Environment(venv, tmp_path)


# --- one patch


def test_put_on_again_and_taken_away(environment):
    before = environment.files()
    result = environment.change({"name": "gate", "diff": GATE, "versions": [">=1.2", "<1.3"]})
    assert (result["changed"], result["applied"], result["files"]) == (True, ["gate"], [str(environment.site / "toy/sub/y.py")])
    assert "+    return major in (9, 10, 12)" in result["diff"][0]["prepared"]
    assert environment.imports("y.gate(12)") == "True"
    assert result["patches"] == [{"name": "gate", "package": "toy", "version": "1.2.3", "sha256": source_patches.digest(GATE)}]
    seen = environment.files()
    again = environment.change({"name": "gate", "diff": GATE, "versions": [">=1.2", "<1.3"]})
    assert (again["changed"], again["applied"], again["diff"]) == (False, [], [])
    assert environment.files() == seen
    gone = environment.change({"name": "gate", "state": "absent"})  # the diff is in the record
    assert (gone["changed"], gone["removed"], gone["patches"]) == (True, ["gate"], [])
    assert environment.imports("y.gate(12)") == "False"
    assert environment.files() == before
    assert not environment.change({"name": "gate", "state": "absent"})["changed"]


def test_record(environment):
    environment.change({"name": "many", "diff": MANY})
    record = environment.record("many")
    assert (record["package"], record["version"], record["diff"], record["sha256"]) == ("toy", "1.2.3", MANY, source_patches.digest(MANY))
    files = {file["path"]: file for file in record["files"]}
    assert files["toy/x.py"] == {
        "path": "toy/x.py", "before": source_patches.digest(X), "after": source_patches.digest(X_FIVE), "offset": 0,
    }  # fmt: skip
    assert files["toy/new/z.py"]["before"] is None
    assert files["toy/data.txt"]["after"] is None


def test_files_come_and_go_with_their_folders(environment):
    before = environment.files()
    environment.change({"name": "many", "diff": MANY})
    assert environment.read("toy/new/z.py") == "z = 1\n"
    assert (environment.site / "toy/new/z.py").stat().st_mode & 0o777 == 0o644
    assert not (environment.site / "toy/data.txt").exists()
    environment.change({"name": "many", "state": "absent"})
    assert environment.files() == before
    assert not (environment.site / "toy/new").exists()


def test_the_cache_of_uv_stays_as_it_was_and_modes_are_kept(environment):
    (environment.site / "toy/x.py").chmod(0o640)
    environment.change({"name": "five", "diff": FIVE})
    assert (environment.cache / "toy/x.py").read_text() == X
    assert (environment.site / "toy/x.py").stat().st_mode & 0o777 == 0o640


def test_bytecode_of_the_same_size_and_second_is_not_taken(environment):
    """Python takes a .pyc whose source has the same size and, to the second, the same time."""
    same_size = diff("toy/sub/y.py", Y, Y.replace("(9, 10)", "(9, 12)"))
    source = environment.site / "toy/sub/y.py"
    assert environment.imports("y.gate(12)") == "False"
    assert list(source.parent.glob("__pycache__/y.*.pyc"))
    time_ns = source.stat().st_mtime_ns
    environment.change({"name": "gate", "diff": same_size})
    os.utime(source, ns=(time_ns, time_ns))
    assert environment.imports("y.gate(12)") == "True"


def test_check_mode_changes_nothing_and_says_the_same(environment):
    before = environment.files()
    foretold = environment.change({"name": "many", "diff": MANY}, check_mode=True)
    assert environment.files() == before
    assert not (environment.path / patched_environment.FOLDER).exists()
    assert foretold == environment.change({"name": "many", "diff": MANY})


def test_of_a_link(environment, tmp_path):
    (tmp_path / "current").symlink_to(environment.path)
    result = patched_environment.change(str(tmp_path / "current"), [item("gate", GATE)], False, False)
    assert result["files"] == [str(environment.site / "toy/sub/y.py")]


# --- refused: patches, words. Nothing changes.

REFUSED = {
    "version": ([item("gate", GATE, versions=[">=1.3"])], "Patch gate is for toy >=1.3; installed is 1.2.3"),
    "bound": ([item("gate", GATE, versions=["1.3"])], "'1.3' is no bound"),
    "package": ([item("gate", GATE, package="nothing")], "nothing is not installed in the environment itself"),
    "context": ([item("gate", GATE.replace("other()", "another()"))], "toy/sub/y.py: hunk 1, line 5: expected 'def another():\\n', found"),
    "syntax": ([item("gate", GATE.replace("(9, 10, 12)", "(9, 10"))], "toy/sub/y.py: "),
    "no diff": ([item("gate")], "is to be present and has no diff"),
    "prose": ([item("gate", "see above\n")], "Patch gate: The diff names no file"),
    "twice": ([item("gate", GATE), item("gate", FIVE)], "listed twice"),
    "name": ([item("../gate", GATE)], "cannot be named '../gate'"),
    "the journal's name": ([item("journal", GATE)], "cannot be named 'journal'"),
    "second of two": ([item("five", FIVE), item("gate", GATE.replace("9", "8"))], "Patch gate does not fit toy 1.2.3: toy/sub/y.py"),
    "wrong order": ([item("on-five", ON_FIVE), item("five", FIVE)], "Patch on-five does not fit"),
    "one file of two": ([item("both", FIVE + GATE.replace("9", "8"))], "toy/sub/y.py: hunk 1"),
    "absent, other context": ([item("gate", GATE.replace("other", "an"), state="absent")], "neither wholly in"),
    "a file that is not there": ([item("no", diff("toy/no.py", "a\n", "b\n"))], "toy/no.py is not there"),
    "a path of the repository": ([item("no", diff("python/toy/new.py", None, "b\n"))], "git diff --relative=python"),
    "a changed path of the repository": ([item("no", diff("src/python/toy/x.py", "a\n", "b\n"))], "git diff --relative=src/python"),
    "out of the root": ([item("no", diff("../../x.py", "a\n", "b\n"))], "leaves the root"),
}


@pytest.mark.parametrize("check_mode", [False, True])
@pytest.mark.parametrize(("patches", "words"), REFUSED.values(), ids=REFUSED)
def test_refused(environment, patches, words, check_mode):
    before = environment.files()
    with pytest.raises(RingmasterError) as caught:
        environment.change(*patches, check_mode=check_mode)
    assert words in str(caught.value)
    assert environment.files() == before


def test_syntax_is_that_of_the_environments_python(environment):
    with pytest.raises(RingmasterError, match=r"What the patches make is no Python: .*toy/sub/y\.py: .*Nothing was changed"):
        environment.change({"name": "gate", "diff": GATE.replace("(9, 10, 12)", "(9, 10")})


def test_links_are_not_followed(environment, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "y.py").write_text(Y)
    shutil.rmtree(environment.site / "toy/sub")
    (environment.site / "toy/sub").symlink_to(outside)
    with pytest.raises(RingmasterError, match=r"toy/sub is a link, .*outside of the environment"):
        environment.change({"name": "gate", "diff": GATE})
    (environment.site / "toy/sub").unlink()
    (environment.site / "toy/sub").mkdir()
    (environment.site / "toy/sub/y.py").symlink_to(outside / "y.py")  # uv's link mode symlink
    with pytest.raises(RingmasterError, match=r"y\.py is a link"):
        environment.change({"name": "gate", "diff": GATE})
    assert (outside / "y.py").read_text() == Y


def test_a_package_of_the_base_interpreter_does_not_count(environment, tmp_path):
    shutil.move(environment.site / "toy-1.2.3.dist-info", tmp_path / "toy-1.2.3.dist-info")
    shutil.move(environment.site / "toy", tmp_path / "toy")
    (environment.site / "base.pth").write_text(f"{tmp_path}\n")
    with pytest.raises(RingmasterError, match="toy is not installed in the environment itself"):
        environment.change({"name": "gate", "diff": GATE})


def test_no_environment(tmp_path):
    with pytest.raises(RingmasterError, match="is no folder on this host"):
        patched_environment.change(str(tmp_path / "no"), [], False, False)
    with pytest.raises(RingmasterError, match="does not answer: No such file.*Build it first"):
        patched_environment.change(str(tmp_path), [item("gate", GATE)], False, False)


# --- several patches


def test_the_list_gives_the_order(environment):
    environment.change({"name": "five", "diff": FIVE}, {"name": "on-five", "diff": ON_FIVE})
    assert environment.read("toy/x.py") == X_ON_FIVE
    assert not environment.change({"name": "five", "diff": FIVE}, {"name": "on-five", "diff": ON_FIVE})["changed"]
    with pytest.raises(RingmasterError, match="on-five does not fit"):  # the lower one cannot go alone
        environment.change({"name": "five", "state": "absent"}, {"name": "on-five", "diff": ON_FIVE})
    assert environment.read("toy/x.py") == X_ON_FIVE
    environment.change({"name": "five", "state": "absent"}, {"name": "on-five", "state": "absent"})
    assert environment.read("toy/x.py") == X


def test_independent_ones_come_and_go_in_the_middle(environment):
    five, ten, gate = ({"name": name, "diff": text} for name, text in (("five", FIVE), ("ten", TEN), ("gate", GATE)))
    environment.change(five, gate)
    result = environment.change(ten, five, gate)
    assert (result["applied"], result["removed"]) == (["ten"], [])
    assert environment.read("toy/x.py") == X_TEN.replace("line_5 = 5", "line_5 = 'five'")
    environment.change({"name": "ten", "state": "absent"}, five, gate)
    assert environment.read("toy/x.py") == X_FIVE


def test_another_diff_under_the_same_name(environment):
    environment.change({"name": "five", "diff": FIVE}, {"name": "gate", "diff": GATE})
    text, wanted = line(5, "line_5 = 'V'\n")
    result = environment.change({"name": "five", "diff": text}, {"name": "gate", "diff": GATE})
    assert (result["applied"], result["removed"]) == (["five"], ["five"])
    assert environment.read("toy/x.py") == wanted
    assert environment.record("five")["diff"] == text


def test_not_listed_any_more(environment):
    environment.change({"name": "five", "diff": FIVE}, {"name": "ten", "diff": TEN}, {"name": "gate", "diff": GATE})
    kept = environment.change({"name": "gate", "diff": GATE})
    assert (kept["changed"], kept["unlisted"]) == (False, ["five", "ten"])
    assert [patch["name"] for patch in kept["patches"]] == ["five", "ten", "gate"]
    result = environment.change({"name": "gate", "diff": GATE}, exclusive=True)
    assert (result["changed"], result["removed"], result["unlisted"]) == (True, ["five", "ten"], ["five", "ten"])
    assert environment.read("toy/x.py") == X
    assert environment.record("gate")["order"] == 1


STACKS = [
    ("as it is", "abc", "abc", False, "abc"),
    ("a new one on top", "ab", "abc", False, "abc"),
    ("another order", "abc", "cab", False, "cab"),
    ("unlisted ones stay above what they were above", "axb", "ab", False, "axb"),
    ("and at the bottom", "xab", "ab", False, "xab"),
    ("several", "axyb", "ab", False, "axyb"),
    ("above what is still there", "axb", "b", False, "axb"),
    ("nothing listed", "xy", "", False, "xy"),
    ("nothing listed, exclusive", "xy", "", True, ""),
    ("exclusive", "axb", "ba", True, "ba"),
    ("absent ones go", "abc", "a-bc", False, "ac"),
    ("above one that goes", "axb", "-ab", False, "xb"),
]


@pytest.mark.parametrize(("recorded", "listed", "exclusive", "wanted"), [row[1:] for row in STACKS], ids=[row[0] for row in STACKS])
def test_stack(recorded, listed, exclusive, wanted):
    absent = {name for sign, name in zip(listed, listed[1:], strict=False) if sign == "-"}
    items = [item(name, state="absent" if name in absent else "present") for name in listed.replace("-", "")]
    result = source_patches.stack([{"name": name} for name in recorded], items, exclusive)
    assert "".join(each["name"] for each in result) == wanted


# --- what others did to the files


def test_put_on_by_hand_is_adopted(environment):
    environment.write("toy/sub/y.py", Y.replace("(9, 10)", "(9, 10, 12)"))
    result = environment.change({"name": "gate", "diff": GATE})
    assert (result["changed"], result["adopted"], result["applied"], result["files"]) == (True, ["gate"], [], [])
    assert environment.record("gate")["files"][0]["before"] == source_patches.digest(Y)
    assert not environment.change({"name": "gate", "diff": GATE})["changed"]


def test_put_on_by_hand_and_to_be_absent(environment):
    environment.write("toy/sub/y.py", Y.replace("(9, 10)", "(9, 10, 12)"))
    assert environment.change({"name": "gate", "diff": GATE, "state": "absent"})["removed"] == ["gate"]
    assert environment.read("toy/sub/y.py") == Y


def test_absent_from_a_version_it_is_not_for(environment):
    other = GATE.replace("other()", "another()")
    assert not environment.change({"name": "gate", "diff": other, "state": "absent", "versions": ["<1"]})["changed"]


def test_taken_away_by_hand(environment):
    environment.change({"name": "gate", "diff": GATE})
    environment.write("toy/sub/y.py", Y)
    result = environment.change({"name": "gate", "diff": GATE})
    assert (result["changed"], result["gone"], result["applied"]) == (True, ["gate"], ["gate"])
    environment.write("toy/sub/y.py", Y)
    result = environment.change({"name": "gate", "state": "absent"})
    assert (result["changed"], result["gone"], result["removed"], result["files"]) == (True, ["gate"], [], [])


def test_a_foreign_change_elsewhere_stays_and_is_told_once(environment):
    environment.change({"name": "five", "diff": FIVE})
    environment.write("toy/x.py", "# mine\n" + X_FIVE)
    result = environment.change({"name": "five", "diff": FIVE})
    assert (result["foreign"], result["files"]) == ([str(environment.site / "toy/x.py")], [])
    assert result["offsets"] == {"five": {"toy/x.py": 1}}
    again = environment.change({"name": "five", "diff": FIVE})
    assert (again["changed"], again["foreign"]) == (False, [])
    environment.change({"name": "five", "state": "absent"})
    assert environment.read("toy/x.py") == "# mine\n" + X


def test_a_foreign_change_of_its_own_lines_is_refused(environment):
    environment.change({"name": "five", "diff": FIVE}, {"name": "gate", "diff": GATE})
    environment.write("toy/x.py", X_FIVE.replace("five", "cinq"))
    before = environment.files()
    with pytest.raises(RingmasterError, match=r"Patch five is neither .*taken away: toy/x\.py: hunk 1, line 5: .*'five'.*'cinq'"):
        environment.change({"name": "five", "state": "absent"}, {"name": "gate", "diff": GATE})
    assert environment.files() == before


def test_half_taken_away_by_hand_is_refused(environment):
    environment.change({"name": "many", "diff": MANY})
    environment.write("toy/x.py", X)
    with pytest.raises(RingmasterError, match="Patch many is neither wholly in"):
        environment.change({"name": "many", "diff": MANY})


def test_where_several_places_fit_the_record_tells(environment):
    """The upper block reads as the patch leaves the lower one, and lies where the diff says once a patch below has added lines."""
    base = "if a:\n    b = 3\nelse:\nx\nif a:\n    b = 1\nelse:\n"
    four = {"name": "four", "diff": diff("toy/data.txt", base, "1\n2\n3\n4\n" + base)}
    lower = {"name": "lower", "diff": diff("toy/data.txt", base, base.replace("b = 1", "b = 3"), lines=1)}
    environment.write("toy/data.txt", base)
    assert environment.change(four, lower)["offsets"] == {"lower": {"toy/data.txt": 4}}
    environment.change(four, {"name": "lower", "state": "absent"})
    assert environment.read("toy/data.txt") == "1\n2\n3\n4\n" + base
    environment.change(four, lower)
    environment.write("toy/data.txt", "1\n2\n3\n4\n" + base)  # taken away by hand: the upper block is none of it
    assert environment.change(four, {"name": "lower", "state": "absent"})["gone"] == ["lower"]
    assert environment.read("toy/data.txt") == "1\n2\n3\n4\n" + base


def test_a_damaged_record(environment):
    environment.change({"name": "five", "diff": FIVE})
    (environment.path / patched_environment.FOLDER / "five.json").write_text("{}")
    with pytest.raises(RingmasterError, match=r"five\.json is not what Ringmaster wrote there"):
        environment.change({"name": "five", "diff": FIVE})
    (environment.path / patched_environment.FOLDER / "journal.json").write_text("[]")
    with pytest.raises(RingmasterError, match=r"journal\.json is not what Ringmaster wrote there"):
        environment.change({"name": "five", "diff": FIVE})


# --- an environment in use


def test_an_environment_in_use_does_not_change(environment):
    program = [environment.path / "bin/python", "-c", "print(flush=True); input()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        server.stdout.readline()
        before = environment.files()
        for check_mode in (False, True):
            with pytest.raises(RingmasterError, match=rf"is in use, by 1 processes such as {server.pid} .*Stop that server"):
                environment.change({"name": "five", "diff": FIVE}, check_mode=check_mode)
        assert environment.files() == before
        assert not environment.change()["changed"]
        server.communicate(b"\n")
    assert environment.change({"name": "five", "diff": FIVE})["changed"]


def test_patches_are_rehearsed_on_an_environment_in_use(environment):
    def rehearse(diff):
        item = {"name": "x", "state": "present", "diff": diff, "package": "toy", "versions": []}
        return patched_environment.change(str(environment.path), [item], True, False, rehearse=True)

    before = environment.files()
    with subprocess.Popen([environment.path / "bin/python", "-c", "print(flush=True); input()"], stdin=-1, stdout=-1) as server:
        server.stdout.readline()
        assert rehearse(FIVE)["applied"] == ["x"]
        with pytest.raises(RingmasterError, match=r"Patch x does not fit toy 1\.2\.3"):
            rehearse(FIVE.replace("line_4", "line_44"))
        server.communicate(b"\n")
    assert environment.files() == before


def test_a_worker_that_renamed_itself_is_found_by_its_libraries(environment):
    library = environment.site / "toy/lib.so"
    library.write_bytes(bytes(4096))
    code = f"import mmap\nwith open({str(library)!r}) as file: m = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
    program = ["sglang::scheduler", "-c", code + "print(flush=True); input()"]
    with subprocess.Popen(program, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        worker.stdout.readline()
        with pytest.raises(RingmasterError, match=f"in use.*{worker.pid}"):
            environment.change({"name": "five", "diff": FIVE})
        worker.communicate(b"\n")


def test_who_patches_may_run_out_of_the_environment(environment):
    """Ansible's interpreter for the host may be the environment's own."""
    code = f"import sys, json; sys.path.insert(0, {str(ROOT / 'collections')!r})\n"
    code += "from ansible_collections.ringmaster.gpu.plugins.module_utils import patched_environment\n"
    code += "print(patched_environment.change(sys.argv[1], json.loads(sys.argv[2]), False, False)['changed'])"
    outer = [environment.path / "bin/python", "-c", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"]
    words = [environment.path / "bin/python", "-c", code, environment.path, json.dumps([item("five", FIVE)])]
    done = subprocess.run([*outer, *words], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


def test_two_runs_at_once(environment):
    descriptor = os.open(environment.path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(RingmasterError, match="Another run is patching"):
        environment.change({"name": "five", "diff": FIVE})
    os.close(descriptor)
    assert environment.change({"name": "five", "diff": FIVE})["changed"]


# --- cut off

CHILD = """
import os, signal, sys, json
sys.path.insert(0, {collections!r})
from ansible_collections.ringmaster.gpu.plugins.module_utils import files, patched_environment
left = {left}
def counted(call):
    def wrapper(*arguments, **options):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    return wrapper
for name in ("rename", "unlink", "mkdir", "rmdir"):
    setattr(os, name, counted(getattr(os, name)))
patched_environment.change({environment!r}, json.loads({wanted!r}), False, False)
"""


def cut_off(environment, left, *patches):
    """Whether a run that brings PATCHES ended before its LEFTth change of a directory, where it is killed."""
    wanted = json.dumps([item(**each) for each in patches])
    code = CHILD.format(collections=str(ROOT / "collections"), left=left, environment=str(environment.path), wanted=wanted)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode == 0


def test_killed_at_every_step(environment):
    """kill -9 before each rename, removal and new folder: the next run, even of nothing, finds all of the old or all of the new."""
    both = {"name": "five", "diff": FIVE}, {"name": "gate", "diff": GATE}
    environment.change(*both)
    many = [{"name": "five", "state": "absent"}, {"name": "gate", "state": "absent"}, {"name": "many", "diff": MANY}]
    old = environment.files()
    foretold = environment.change(*many, check_mode=True)
    environment.change(*many)
    new = environment.files()
    environment.change({"name": "many", "state": "absent"}, *both)
    assert environment.files() == old
    undone = 0
    for left in range(1, 60):
        if cut_off(environment, left, *many):
            break
        half = environment.files()
        journal = environment.path / patched_environment.FOLDER / "journal.json"
        if journal.exists() and left % 2:  # check mode sees what was before, and writes nothing
            seen = patched_environment.change(str(environment.path), [item(**each) for each in many], False, True)
            assert seen["diff"] == foretold["diff"]
            assert environment.files() == half
        is_open = journal.exists()
        result = environment.change()
        assert result["undone"] == is_open
        undone += is_open
        found = environment.files()
        assert found == old or (found == new and not is_open), left
        environment.change({"name": "many", "state": "absent"}, *both)
    else:
        pytest.fail("never came to its end")
    assert undone >= 8
    assert environment.files() == new


def test_a_failure_half_way_is_put_back(environment, monkeypatch):
    before, write = environment.files(), patched_environment.files.write_atomic

    def fail(path, data, **options):
        if path.endswith("sub/y.py"):
            raise RingmasterError("Cannot write.")
        write(path, data, **options)

    monkeypatch.setattr(patched_environment.files, "write_atomic", fail)
    with pytest.raises(RingmasterError, match="Cannot write"):
        environment.change({"name": "many", "diff": MANY})
    assert environment.files() == before
    assert not (environment.site / "toy/new").exists()


def test_a_disk_that_swallows_is_noticed(environment, monkeypatch):
    before, write = environment.files(), patched_environment.files.write_atomic

    def damaged(path, data, **options):
        write(path, data[:-1] if path.endswith("sub/y.py") and b"12" in data else data, **options)

    monkeypatch.setattr(patched_environment.files, "write_atomic", damaged)
    with pytest.raises(RingmasterError, match=r"y\.py does not read as it was written"):
        environment.change({"name": "many", "diff": MANY})
    assert environment.files() == before


FULL = """
import sys
sys.path[:0] = sys.argv[1:3]
from pathlib import Path
import source_patch_lab as lab
environment = lab.Environment.__new__(lab.Environment)
environment.path = Path(sys.argv[3])
steps = [{"name": "many", "diff": lab.MANY}, {"name": "many", "state": "absent"}]
whole = [environment.files()]
environment.change(steps[0])
whole.append(environment.files())
environment.change(steps[1])
refused = 0
for free_blocks in range(12):
    filler = environment.path / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            file.truncate(max(0, file.tell() // 4096 - free_blocks) * 4096)
    for step in steps:
        try:
            environment.change(step)
        except Exception as error:
            assert "disk is full" in str(error), error
            refused += 1
        assert environment.files() in whole or (environment.path / "ringmaster-patches/journal.json").exists(), free_blocks
    filler.unlink()
    environment.change(steps[1])
    assert environment.files() == whole[0], free_blocks
print(refused)
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")
def test_full_disk(environment, tmp_path):
    """Every number of free blocks from none on: done or refused, and whole in both cases."""
    small = tmp_path / "small"
    small.mkdir()
    script = 'mount -t tmpfs -o size=128k none "$5" || exit 77; cp -a "$6/." "$5"; exec "$1" -c "$2" "$3" "$4" "$5"'
    words = [sys.executable, FULL, ROOT / "collections", ROOT / "tests/unit", small, environment.path]
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", *words], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert 2 <= int(done.stdout) < 24


# --- versions

SUITS = [
    ("0.5.16", [">=0.5.15", "<0.5.19"], True),
    ("0.5.19", [">=0.5.15", "<0.5.19"], False),
    ("0.5.9", [">=0.5.15"], False),
    ("0.5.19rc1", ["<0.5.19"], False),
    ("0.5.18.post1", ["<0.5.19"], True),
    ("0.5.19.dev3+g12ab", ["<0.5.19"], False),
    ("0.5.19rc1", ["<0.5.19rc2"], True),
    ("0.5.15rc1", [">=0.5.15"], False),
    ("0.5.15.post1", [">0.5.15"], False),
    ("0.5.16", [">0.5.15"], True),
    ("0.5.16+cu130", ["==0.5.16"], True),
    ("0.5.16.0", ["==0.5.16"], True),
    ("0.5.16", ["!=0.5.16"], False),
    ("0.6", ["<=0.6.0"], True),
    ("1.0a1", ["<1.0b1", ">=1.0.dev1"], True),
    ("2.11.0+cu130", [" >= 2.11 "], True),
    ("0.5.16", [], True),
]


@pytest.mark.parametrize(("version", "bounds", "wanted"), SUITS)
def test_suits(version, bounds, wanted):
    assert source_patches.suits(version, bounds) == wanted


def test_suits_as_pip_reads_them():
    """All pairs of a set of versions and each sign, against the library that pip uses."""
    specifiers = pytest.importorskip("packaging.specifiers")
    versions = "1.0 1.0.0 1.1 1.0a1 1.0b2 1.0rc1 1.0.post1 1.0.dev1 1.0rc1.dev2 1.0.post1.dev1 1.10 0.9.9".split()  # noqa: SIM905 - one line
    for version in [*versions, "1.0+cu130"]:
        for other in versions:
            for sign in (">=", "<=", "==", "!=", "<", ">"):
                wanted = specifiers.SpecifierSet(f"{sign}{other}", prereleases=True).contains(version)
                assert source_patches.suits(version, [f"{sign}{other}"]) == wanted, (version, sign, other)


@pytest.mark.parametrize("bounds", [["~=1.0"], [">=one"], ["1.0"], [">="]])
def test_bounds_that_are_none(bounds):
    with pytest.raises(RingmasterError, match="is no (bound|version)"):
        source_patches.suits("1.0", bounds)


def test_every_python_of_a_target(tmp_path):
    """The diff code and the stack, by each Python that a target may have."""
    found = [path for minor in range(9, 14) for path in sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))[-1:]]
    if not found:
        pytest.skip("no other Pythons on this machine")
    library = tmp_path / "module_utils"
    shutil.copytree(ROOT / "plugins/module_utils", library, ignore=shutil.ignore_patterns("__pycache__"))
    code = "from module_utils import patched_environment, source_patches; import json, sys\n"
    code += "installed = {'toy': {'version': '1.2.3', 'root': '/r'}}\n"
    code += "plan = source_patches.plan([], json.loads(sys.argv[1]), False, installed, lambda *_: sys.argv[2].encode())\n"
    code += "print(plan.contents['/r', 'toy/sub/y.py'][1].decode(), end='')"
    for python in found:
        command = [python, "-B", "-c", code, json.dumps([item("gate", GATE)]), Y]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.stdout == Y.replace("(9, 10)", "(9, 10, 12)"), (python, done.stderr)

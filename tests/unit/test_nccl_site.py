# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rendered sitecustomize files, run by every Python interpreter of this machine that a target may have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import nccl_site
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

SYSTEM = Path("/usr/bin/python3")
SETTINGS = {"NCCL_PROTO": "LL", "NCCL_MAX_NCHANNELS": "2", "NCCL_DEBUG_FILE": "/tmp/a 'b' \"c\" \\ é.%h"}
BLOCK = nccl_site.render_block(SETTINGS, False)


def interpreters():
    """{name: path or None} of the Pythons that are supported on targets."""
    found = {}
    for minor in range(9, 14):
        candidates = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
        found[f"3.{minor}"] = str(candidates[-1]) if candidates else None
    found["system"] = str(SYSTEM) if SYSTEM.exists() else None
    return found


@pytest.fixture(scope="module", params=interpreters())
def python(request):
    path = interpreters()[request.param]
    if path is None:
        pytest.skip(f"no Python {request.param} on this machine")
    return path


@pytest.fixture(scope="module")
def venv(python, tmp_path_factory):
    """The interpreter of a venv made from each Python: its site-packages may be written."""
    directory = tmp_path_factory.mktemp("venv")
    subprocess.run([python, "-m", "venv", "--without-pip", directory], check=True)
    return str(directory / "bin/python")


@pytest.fixture
def own_venv(tmp_path):
    """A venv of the running Python's base, fresh for one test."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    return str(tmp_path / "venv/bin/python")


def site(tmp_path, name, content):
    directory = tmp_path / name
    directory.mkdir(exist_ok=True)
    (directory / "sitecustomize.py").write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(directory)


def run(python, paths, code="", **environment):
    """(stdout, stderr, returncode) of CODE with PATHS as PYTHONPATH."""
    clean = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "PYTHONPATH": ":".join(paths), **environment}
    done = subprocess.run([python, "-B", "-c", code], env=clean, capture_output=True, text=True, check=False)
    return done.stdout.strip(), done.stderr.strip(), done.returncode


def ours(override=False, **settings):
    return nccl_site.render(settings or SETTINGS, override=override, chain=True)


SHOW = "import os, json; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('NCCL_')}))"


# The whole file (scope service)


def test_settings_are_in_force_and_a_witness_says_so(python, tmp_path):
    directory, witness = site(tmp_path, "ours", ours()), tmp_path / "witness"
    witness.mkdir()
    code = f"{SHOW}; print(os.getpid(), os.getppid())"
    out, errors, code_returned = run(python, [directory], code, RINGMASTER_WITNESS=str(witness), NCCL_PROTO="Simple")
    values, pids = out.splitlines()
    in_force = {**SETTINGS, "NCCL_PROTO": "Simple"}
    assert (errors, code_returned, json.loads(values)) == ("", 0, in_force)
    (file,) = witness.iterdir()
    told = json.loads(file.read_text())
    pid, ppid = map(int, pids.split())
    assert file.name == f"{pid}.json"
    assert told == {
        "pid": pid, "ppid": ppid, "file": f"{directory}/sitecustomize.py", "prefix": told["prefix"],
        "applied": {name: SETTINGS[name] for name in ("NCCL_MAX_NCHANNELS", "NCCL_DEBUG_FILE")}, "kept": {"NCCL_PROTO": "Simple"},
        "replaced": {}, "nccl": in_force,
    }  # fmt: skip
    assert run(python, [], "import sys; print(sys.prefix)")[0] == told["prefix"]


def test_override_replaces_and_says_what(python, tmp_path):
    directory = site(tmp_path, "ours", ours(override=True))
    out, _errors, _code = run(python, [directory], SHOW, RINGMASTER_WITNESS=str(tmp_path), NCCL_PROTO="Simple")
    assert json.loads(out) == SETTINGS
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_text())["replaced"] == {"NCCL_PROTO": "Simple"}


@pytest.mark.parametrize("witness", ["/nonexistent/w", "/proc", "/dev/full", "", "\udce9"])
def test_an_unusable_witness_directory_harms_nothing(python, tmp_path, witness):
    out, errors, code = run(python, [site(tmp_path, "ours", ours())], SHOW, RINGMASTER_WITNESS=witness)
    assert (json.loads(out), errors, code) == (SETTINGS, "", 0)


@pytest.mark.skipif(not os.path.isdir("/dev/shm") or os.geteuid() != 0, reason="needs root for a full file system")
def test_a_full_disk_leaves_no_half_witness(tmp_path):
    script = f"""
        mount -t tmpfs -o size=4k tmpfs {tmp_path}/full && head -c 4096 /dev/zero > {tmp_path}/full/fill
        RINGMASTER_WITNESS={tmp_path}/full PYTHONPATH={site(tmp_path, "ours", ours())} {sys.executable} -c '{SHOW.replace("'", '"')}'
        ls {tmp_path}/full"""
    (tmp_path / "full").mkdir()
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("no mount namespaces here")
    assert (json.loads(done.stdout.splitlines()[0]), done.stdout.splitlines()[1:], done.stderr) == (SETTINGS, ["fill"], "")


def test_the_shadowed_file_runs_after_ours_and_gets_the_name(python, tmp_path):
    foreign = "import os\nseen = os.environ['NCCL_PROTO']\nos.environ.setdefault('NCCL_PROTO', 'no')\nos.environ['NCCL_ALGO'] = 'Ring'\n"
    paths = [site(tmp_path, "first", "") + "/none", site(tmp_path, "ours", ours()), site(tmp_path, "theirs", foreign)]
    code = "import sitecustomize as s, sys; print(s.seen, s.__file__, s.__name__, s.__spec__.name, s is sys.modules['sitecustomize'])"
    out, errors, _code = run(python, paths, code, RINGMASTER_WITNESS=str(tmp_path))
    assert (out, errors) == (f"LL {paths[2]}/sitecustomize.py sitecustomize sitecustomize True", "")
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_text())["nccl"] == {**SETTINGS, "NCCL_ALGO": "Ring"}


@pytest.mark.parametrize(
    "foreign",
    ["1/0", "raise ImportError('x', name='sitecustomize')", "import nonesuch", "def f(:", "raise SystemExit(3)", "raise KeyboardInterrupt",
     "# -*- coding: nonesense -*-", "x = '\\xff'"],
)  # fmt: skip
def test_a_broken_foreign_file_acts_as_it_does_without_ours(python, tmp_path, foreign):
    theirs = site(tmp_path, "theirs", foreign.encode("latin-1").replace(b"\\xff", b"\xff"))
    _out, errors_alone, code_alone = run(python, [theirs], SHOW)
    out, errors, code = run(python, [site(tmp_path, "ours", ours()), theirs], SHOW, RINGMASTER_WITNESS=str(tmp_path))
    assert code == code_alone
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_text())["nccl"] == SETTINGS
    if code == 0:
        assert (errors, json.loads(out)) == (errors_alone, SETTINGS)
    else:  # SystemExit and the like end every Python, with us and without us
        assert errors.splitlines()[0] == errors_alone.splitlines()[0]


def test_two_of_ours_links_and_doubled_paths_end(python, tmp_path):
    first, second = site(tmp_path, "a", ours(NCCL_PROTO="LL")), site(tmp_path, "b", ours(NCCL_ALGO="Ring"))
    third = site(tmp_path, "c", "print('foreign ran')")
    (tmp_path / "link").symlink_to(first)
    out, errors, _code = run(python, [first, second, str(tmp_path / "link"), first, second, third, third], SHOW)
    assert (out.splitlines()[0], json.loads(out.splitlines()[1]), errors) == ("foreign ran", {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}, "")


def test_a_foreign_file_that_chains_itself(python, tmp_path):
    """As tracing tools do: take the own directory off the path and import the next one."""
    wrapper = (
        "import os, sys\nhere = os.path.dirname(__file__)\nsys.path.remove(here)\nmine = sys.modules.pop('sitecustomize')\n"
        "try:\n    import sitecustomize\nexcept ImportError:\n    sys.modules['sitecustomize'] = mine\nprint('wrapper')\n"
    )
    theirs, last = site(tmp_path, "theirs", wrapper), site(tmp_path, "last", "print('last')")
    for paths in ([site(tmp_path, "ours", ours()), theirs, last], [theirs, site(tmp_path, "ours", ours()), last]):
        out, errors, _code = run(python, paths, SHOW)
        *words, values = out.splitlines()
        assert (words, json.loads(values), errors) == (["last", "wrapper"], SETTINGS, "")


def test_a_deleted_working_directory(python, tmp_path):
    directory = site(tmp_path, "ours", ours())
    (tmp_path / "gone").mkdir()
    script = f"import os; os.chdir({str(tmp_path / 'gone')!r}); os.rmdir(os.getcwd()); os.execv({python!r}, [{python!r}, '-c', {SHOW!r}])"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": directory}
    done = subprocess.run([sys.executable, "-S", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout) == SETTINGS, done.stderr


def test_a_spawned_worker_keeps_what_its_parent_decided(python, tmp_path):
    """SGLang sets NCCL_CUMEM_ENABLE in the launcher and spawns its schedulers, where our file runs again."""
    (tmp_path / "main.py").write_text(
        "import multiprocessing as m, os\ndef child():\n    print(os.environ['NCCL_CUMEM_ENABLE'], os.environ['NCCL_PROTO'])\n"
        "if __name__ == '__main__':\n    os.environ['NCCL_CUMEM_ENABLE'] = '1'\n    p = m.get_context('spawn').Process(target=child)\n"
        "    p.start(); p.join()\n"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": site(tmp_path, "ours", ours(NCCL_CUMEM_ENABLE="0", NCCL_PROTO="LL"))}
    done = subprocess.run([python, tmp_path / "main.py"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "1 LL\n"


def test_it_imports_nothing(python, tmp_path):
    """Every process of a server pays for it; importlib.util alone would be half of Python's own start."""
    show = "import sys; print(*sorted(sys.modules.keys() - {'sitecustomize'}))"
    last = site(tmp_path, "last", "")
    assert run(python, [site(tmp_path, "ours", ours()), last], show)[0] == run(python, [last], show)[0]


@pytest.mark.parametrize("settings", [{"LD_PRELOAD": "x"}, {"NCCL_X": "a\nimport os"}, {"NCCL_X": "\0"}, {"nccl_x": "1"}, {"NCCL_X": 1}])
def test_what_cannot_be_rendered_is_refused(settings):
    with pytest.raises(RingmasterError, match=r"NCCL_X|LD_PRELOAD|nccl_x"):
        nccl_site.render(settings, override=False, chain=True)


# The shadowed venv


def test_a_venv_of_the_systems_python_runs_ours_only_on_pythonpath(tmp_path):
    if not SYSTEM.exists() or not nccl_site.probe(str(SYSTEM))["shadowed"]:
        pytest.skip("the system's Python has no sitecustomize of its own")
    subprocess.run([SYSTEM, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = str(tmp_path / "venv/bin/python")
    found = nccl_site.probe(python)
    (Path(found["purelib"]) / "sitecustomize.py").write_bytes(ours())
    seen = nccl_site.read_back(python, {})
    assert (seen["nccl"], seen["witness"]) == ({}, None)
    problem = nccl_site.verify(python, {}, SETTINGS)[0]
    assert found["site_file"] in problem
    assert "did not run" in problem
    # On PYTHONPATH it is first, and the system's own hook is still executed.
    directory = site(tmp_path, "ours", ours())
    hook = tmp_path / "apport_python_hook.py"
    hook.write_text("def install():\n    print('apport installed')\n")
    out, errors, _code = run(python, [directory, str(tmp_path)], SHOW)
    if "apport" in Path(found["site_real"]).read_text():
        assert out.splitlines()[0] == "apport installed"
    assert (json.loads(out.splitlines()[-1]), errors) == (SETTINGS, "")
    assert nccl_site.verify(python, {"PYTHONPATH": directory}, SETTINGS) == []


# The block (scope interpreter)

FOREIGN = {
    "empty": b"",
    "no newline": b"x = 1",
    "comment only, no newline": b"# note",
    "docstring only, no newline": b'"""doc"""',
    "cookie only, no newline": b"# coding: latin-1",
    "debian": b"# install the hook\ntry:\n    import nonesuch\nexcept ImportError:\n    pass\n",
    "crlf": b'"""doc\r\nmore"""\r\nfrom __future__ import annotations\r\nx = 1\r\n',
    "cr": b"# a\rx = 1\ry = 2\r",
    "mixed line ends": b"# a\r\nx = 1\ny = 2\r\n\r\n\n",
    "latin-1": b"#!/usr/bin/python3\n# -*- coding: latin-1 -*-\nx = '\xe9'\n",
    "cookie in line 2 after a blank": b"\n# vim: set fileencoding=iso-8859-15 :\nx = '\xa4'",
    "byte order mark": b"\xef\xbb\xbfx = 1\n",
    "byte order mark alone": b"\xef\xbb\xbf",
    "byte order mark and docstring": b'\xef\xbb\xbf"""d"""\nx = 1\n',
    "shebang": b"#!/usr/bin/env python3\nx = 1\n",
    "future": b"# c\n\n'a' \"b\" \\\n  'c'  # doc\n\nfrom __future__ import (\n  annotations,  # why\n  division\n)\nx = 1\n",
    "future without docstring": b"from __future__ import annotations\nfrom __future__ import division",
    "code after the future": b"from __future__ import annotations\nimport os; x = 1",
    "a lone backslash": b"\\\n\nfrom __future__ import annotations\n",
    "docstring and code in one line": b"'doc'; x = 1\n",
    "bytes first": b"b'no docstring'\nx = 1\n",
    "f-string first": b"f'{1}'\nx = 1\n",
    "cookie in line 3 means nothing": b"# a\n# b\n# coding: nonesuch\nx = 1\n",
    "form feed": b"\x0c# a\n\x0cx = 1\n",
    "raises": b'"""d"""\n1/0\n',
    "indented continuation": b"x = (\n 1)\nif x:\n\ty = 2",
    "trailing blanks": b"x = 1\n\n   \n\t",
}


@pytest.mark.parametrize("content", [None, *FOREIGN.values()], ids=["no file", *FOREIGN])
def test_a_block_comes_and_goes_without_a_trace(content):
    merged = nccl_site.merge(content, BLOCK)
    other = nccl_site.merge(merged, nccl_site.render_block({"NCCL_ALGO": "Ring"}, True))
    assert nccl_site.merge(merged, BLOCK) == merged
    assert nccl_site.merge(other, BLOCK) == merged
    for with_block in (merged, other):
        assert nccl_site.merge(with_block, None) == content
        compile(with_block, "sitecustomize.py", "exec", dont_inherit=True)
    assert nccl_site.merge(content, None) == content


def test_every_sequence_of_pieces_comes_back():
    pieces = [b"\xef\xbb\xbf", b"# c", b"# coding: utf-8", b'"""d"""', b"from __future__ import annotations", b"x = 1"]
    pieces += [b"\n", b"\r\n", b"\r"]
    compiled = 0
    for number in range(len(pieces) ** 5):
        digits, rest = [], number
        for _ in range(5):
            rest, digit = divmod(rest, len(pieces))
            digits.append(digit)
        if number % 5:  # one in five will do
            continue
        content = b"".join(pieces[digit] for digit in digits)
        try:
            merged = nccl_site.merge(content, BLOCK)
        except RingmasterError:
            with pytest.raises(SyntaxError):
                compile(content, "x", "exec", dont_inherit=True)
            continue
        assert nccl_site.merge(merged, None) == content
        try:
            compile(content, "x", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            continue
        compile(merged, "x", "exec", dont_inherit=True)
        compiled += 1
    assert compiled > 1000


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("python", ["3.9", "3.13"], indirect=True)
def test_the_block_runs_before_the_foreign_code(python, tmp_path, name):
    content = nccl_site.merge(FOREIGN[name], BLOCK)
    left = "import sys; print('_ringmaster_apply' in vars(sys.modules.get('sitecustomize', os)))"
    out, errors, code = run(python, [site(tmp_path, "d", content)], f"{SHOW}; {left}")
    values, left_over = out.splitlines()
    assert (json.loads(values), left_over, code) == (SETTINGS, "False", 0)
    assert errors.splitlines()[1:] == (["ZeroDivisionError: division by zero"] if name == "raises" else [])


def test_a_file_without_a_place_for_the_block_is_found_out(python):
    content = b"from __future__ import division; 1/0\n"
    assert nccl_site.merge(nccl_site.merge(content, BLOCK), None) == content
    with pytest.raises(RingmasterError, match="/f would not compile in .*__future__"):
        nccl_site.compile_check(python, nccl_site.merge(content, BLOCK), "/f")


def test_docstring_and_future_are_kept(tmp_path):
    content = nccl_site.merge(FOREIGN["crlf"], BLOCK)
    code = "import sitecustomize as s; print(repr(s.__doc__), s.annotations.compiler_flag > 0, s.x)"
    out, _errors, _code = run(sys.executable, [site(tmp_path, "d", content)], code)
    assert out == "'doc\\nmore' True 1"


def test_later_foreign_changes_survive_the_removal():
    merged = nccl_site.merge(b'"""doc"""', BLOCK)
    assert nccl_site.merge(merged + b"y = 1\n", None) == b'"""doc"""\ny = 1\n'
    made = nccl_site.merge(None, BLOCK)
    assert nccl_site.merge(made + b"y = 1\n", None) == b"y = 1\n"
    assert nccl_site.merge(merged.replace(b"\n", b"\r\n"), None) in (b'"""doc"""', b'"""doc"""\r\n')


DAMAGED = [BLOCK + BLOCK, BLOCK[:-30], b"# BEGIN RINGMASTER NCCL\n", b"# END RINGMASTER NCCL\n", b"# coding: nonesuch\n", b"'''open"]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_files_are_refused(content):
    with pytest.raises(RingmasterError, match="sitecustomize file"):
        nccl_site.merge(content, BLOCK)


# Asking interpreters


def test_probe(python, venv):
    found = nccl_site.probe(python, environment={"NCCL_DEBUG": "INFO"})
    assert found["nccl"] == {"NCCL_DEBUG": "INFO"}
    assert os.path.exists(os.path.join(found["stdlib"], "os.py"))
    assert found["site_real"] == (found["site_file"] and os.path.realpath(found["site_file"]))
    inside = nccl_site.probe(venv)
    assert (inside["version"], inside["base_prefix"]) == (found["version"], found["base_prefix"])
    assert inside["prefix"] == str(Path(venv).parents[1])


def test_probe_hears_through_noise(tmp_path):
    directory = site(tmp_path, "noisy", "import atexit\nprint('RINGMASTER-PROBE {}')\natexit.register(print, 'bye')\n")
    found = nccl_site.probe(sys.executable, environment={"PYTHONPATH": directory})
    assert found["site_file"] == f"{directory}/sitecustomize.py"


def test_probe_names_what_is_wrong(tmp_path):
    text = tmp_path / "text"
    text.write_text("hello")
    cases = {str(tmp_path / "none"): "is not there", str(text): "not executable", str(tmp_path): "not executable"}
    cases["/bin/true"] = "did not answer"
    text_executable = tmp_path / "executable"
    text_executable.write_text("hello")
    text_executable.chmod(0o755)
    cases[str(text_executable)] = "not an interpreter"
    for path, words in cases.items():
        with pytest.raises(RingmasterError, match=words) as caught:
            nccl_site.probe(path)
        assert path in str(caught.value)
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    with pytest.raises(RingmasterError, match=r"did not answer in 0\.2 s"):
        nccl_site._run(str(slow), [], None, timeout_s=0.2)
    with pytest.raises(RingmasterError, match="SystemExit|exit 1"):
        nccl_site.probe(sys.executable, environment={"PYTHONPATH": site(tmp_path, "exits", "raise SystemExit('no Python today')")})


def test_target_file(own_venv, tmp_path):
    assert nccl_site.target_file("service", python="/none", site_dir="/s") == "/s/sitecustomize.py"
    found = nccl_site.probe(own_venv)
    path = nccl_site.target_file("interpreter", python=own_venv, site_dir="/s")
    assert path == (found["site_real"] or f"{found['purelib']}/sitecustomize.py")
    link = {**found, "site_real": "/etc/python3.11/sitecustomize.py"}
    assert nccl_site.target_file("interpreter", python=own_venv, site_dir="/s", found=link) == "/etc/python3.11/sitecustomize.py"
    for change in ({"site_real": "/x/sitecustomize.pyc"}, {"no_site": True}, {"site_real": None, "purelib": "/elsewhere"}):
        with pytest.raises(RingmasterError, match="nccl_scope=service"):
            nccl_site.target_file("interpreter", python=own_venv, site_dir="/s", found={**found, **change})


def test_verify_names_the_winner(python, tmp_path):
    mine = site(tmp_path, "mine", ours())
    assert nccl_site.verify(python, {"PYTHONPATH": mine}, SETTINGS, path=f"{mine}/sitecustomize.py") == []
    setter = site(tmp_path, "setter", "import os\nos.environ['NCCL_PROTO'] = 'Simple'\n")
    stale = site(tmp_path, "stale", ours(NCCL_PROTO="LL128"))
    other = site(tmp_path, "other", ours())
    usercustomize = tmp_path / "user"
    usercustomize.mkdir()
    (usercustomize / "usercustomize.py").write_text("import os\nos.environ['NCCL_PROTO'] = 'Simple'\n")
    one = {"NCCL_PROTO": "LL"}
    cases = [
        ({"PYTHONPATH": f"{setter}:{mine}"}, (), f"it imports {setter}/sitecustomize.py instead"),
        ({"PYTHONPATH": f"{mine}:{setter}"}, (), f"{setter}/sitecustomize.py changes it after"),
        ({"PYTHONPATH": f"{other}:{mine}"}, (), f"runs {other}/sitecustomize.py, another sitecustomize of Ringmaster, before"),
        ({"PYTHONPATH": mine, "NCCL_PROTO": "Simple"}, (), "was set to 'Simple' before sitecustomize ran"),
        ({"PYTHONPATH": mine}, ("-I",), "started with -I or -E"),
        ({"PYTHONPATH": mine}, ("-S",), "started with -S"),
        ({}, (), "instead" if nccl_site.probe(python)["site_file"] else "finds no sitecustomize"),
    ]
    for environment, flags, words in cases:
        (problem,) = nccl_site.verify(python, environment, one, path=f"{mine}/sitecustomize.py", flags=flags)
        assert words in problem
    (problem,) = nccl_site.verify(python, {"PYTHONPATH": stale}, one)
    assert f"{stale}/sitecustomize.py set NCCL_PROTO to 'LL128', not to 'LL'" in problem
    (problem,) = nccl_site.verify(str(Path(python)), {"PYTHONPATH": f"{mine}:{usercustomize}"}, one)
    assert f"{usercustomize}/usercustomize.py" in problem


def test_rehearsal_refuses_before_anything_is_written(python):
    content = nccl_site.merge(b"import os\nos.environ['NCCL_PROTO'] = 'Simple'\n", BLOCK)
    with pytest.raises(RingmasterError, match=r"NCCL_PROTO is 'Simple' in the end, not 'LL': other code of /real/sitecustomize\.py"):
        nccl_site.rehearse(python, content, {"NCCL_PROTO": "LL"}, "/real/sitecustomize.py")


def test_compile_check_asks_the_target(python):
    version = tuple(map(int, nccl_site.probe(python)["version"].split(".")))
    source = b"match 1:\n    case 1: pass\n"
    if version >= (3, 10):
        nccl_site.compile_check(python, source, "/f")
    else:
        with pytest.raises(RingmasterError, match="/f would not compile"):
            nccl_site.compile_check(python, source, "/f")
    with pytest.raises(RingmasterError, match="SyntaxError"):
        nccl_site.compile_check(python, b"# coding: utf-8\nx = '\xff'\n", "/f")


def test_stale_bytecode_would_win_and_is_removed(tmp_path):
    directory = Path(site(tmp_path, "d", ours(NCCL_MAX_NCHANNELS="16")))
    file = directory / "sitecustomize.py"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(directory)}

    def value():
        code = "import os; print(os.environ['NCCL_MAX_NCHANNELS'])"
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout.strip()

    assert value() == "16"
    stamp = file.stat().st_mtime_ns
    file.write_bytes(ours(NCCL_MAX_NCHANNELS="32"))
    os.utime(file, ns=(stamp, stamp))
    assert value() == "16"  # Python looks at size and second only
    assert len(nccl_site.remove_stale_bytecode(str(file))) == 1
    assert not (directory / "__pycache__").exists()
    assert value() == "32"


def test_debians_link_is_cleaned_with_its_conffile():
    assert nccl_site._import_paths("/etc/python3.11/sitecustomize.py")[1] == "/usr/lib/python3.11/sitecustomize.py"
    assert nccl_site._import_paths("/opt/x/sitecustomize.py") == ["/opt/x/sitecustomize.py"]


def test_users_of_finds_the_servers_of_that_interpreter(own_venv, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "second"], check=True)
    second = str(tmp_path / "second/bin/python")
    words = ["-c", "import time; print(1, flush=True); time.sleep(60)", "sglang.launch_server"]
    server = subprocess.Popen([own_venv, *words], stdout=subprocess.PIPE)
    by_stander = subprocess.Popen([own_venv, *words[:2], "/opt/sglang/x.py"], stdout=subprocess.PIPE)
    try:
        server.stdout.readline()
        by_stander.stdout.readline()

        def pids(python, path):
            users = [user["pid"] for user in nccl_site.users_of(nccl_site.probe(python), path)]
            return [pid for pid in users if pid in (server.pid, by_stander.pid)]

        private = f"{nccl_site.probe(own_venv)['purelib']}/sitecustomize.py"
        assert pids(own_venv, private) == [server.pid]
        assert pids(second, f"{nccl_site.probe(second)['purelib']}/sitecustomize.py") == []
        assert pids(second, f"{nccl_site.probe(second)['stdlib']}/sitecustomize.py") == [server.pid]  # shared by both venvs
        assert "sglang.launch_server" in nccl_site.users_of(nccl_site.probe(own_venv), private)[0]["cmdline"]
    finally:
        for process in (server, by_stander):
            process.kill()
            process.communicate()

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Role nccl and its module, run for real against interpreters of temporary virtual environments."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.ringmaster.gpu.plugins.filter.nccl_settings import FilterModule
from ansible_collections.ringmaster.gpu.plugins.module_utils import nccl_site
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.modules import nccl_sitecustomize
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import catalogue

ROOT = Path(__file__).resolve().parents[2]
ROLE = ROOT / "roles/nccl"
SETTINGS = {"NCCL_MAX_NCHANNELS": "2", "NCCL_PROTO": "LL"}


@pytest.fixture
def server(tmp_path):
    """(interpreter, its purelib) of a fresh virtual environment; its base has no sitecustomize of its own."""
    for base in [Path(sys.base_prefix) / "bin/python3", *sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3"), reverse=True)]:
        if not nccl_site.probe(str(base))["shadowed"]:
            subprocess.run([base, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
            python = str(tmp_path / "venv/bin/python")
            return python, Path(nccl_site.probe(python)["purelib"])
    return pytest.skip("every Python of this machine has a sitecustomize of its own")


def play(tmp_path, variables, *arguments, rc=0, interpreter=sys.executable):
    """(whether the role changed anything on localhost, output)."""
    playbook = tmp_path / "play.yml"
    playbook.write_text("- hosts: localhost\n  gather_facts: false\n  roles: [ringmaster.gpu.nccl]\n")
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "-c", "local", str(playbook), *arguments]
    variables = {"ansible_python_interpreter": interpreter, "ringmaster_state_dir": str(tmp_path / "state"), **variables}
    environment = {**os.environ, "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default", "ANSIBLE_LOCAL_TEMP": str(tmp_path / "tmp"),
                   "ANSIBLE_REMOTE_TEMP": str(tmp_path / "tmp"), "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run([*command, "-e", json.dumps(variables)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == rc, output
    return "changed=1" in done.stdout, output


def arguments(python, site_dir="/none", **given):
    defaults = {"scope": "service", "settings": SETTINGS, "override": False, "state": "present"}
    return {"python": python, "site_dir": str(site_dir), **defaults, **given}


def run(python, site_dir="/none", check_mode=False, **given):
    return nccl_sitecustomize.run(arguments(python, site_dir, **given), check_mode)


def change(script, *wanted):
    """A Python script that runs the module with each of the argument sets WANTED."""
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / 'collections')!r})\n"
        "from ansible_collections.ringmaster.gpu.plugins.modules import nccl_sitecustomize\n"
        + "".join(f"print(nccl_sitecustomize.run({each!r}, False)['changed'])\n" for each in wanted)
    )


def identity(path):
    status = os.stat(path)
    return status.st_ino, status.st_mtime_ns, Path(path).read_bytes()


# The role


def test_documentation_and_defaults_have_the_same_keys():
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    options = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    assert defaults.keys() == options.keys()
    controls = yaml.safe_load((ROLE / "vars/main.yml").read_text())["_nccl_controls"]
    assert set(defaults) - set(controls) == set(catalogue.FACTOR_VARIABLES)


def test_the_role_from_nothing_and_back(server, tmp_path):
    python, _purelib = server
    oldest = [*Path.home().glob(".pyenv/versions/3.9.*/bin/python"), sys.executable]  # what a target may have, where it is there
    interpreter = str(oldest[0])
    variables = {"sglang_python": python, "nccl_channels": "2", "nccl_proto": "LL", "nccl_extra": {"NCCL_DEBUG": "INFO"}}
    file = tmp_path / "state/site/sitecustomize.py"

    changed, output = play(tmp_path, variables, "--check", "--diff", interpreter=interpreter)
    assert changed
    assert '+    "NCCL_MAX_NCHANNELS": \'2\',' in output
    assert not (tmp_path / "state").exists()

    assert play(tmp_path, variables, interpreter=interpreter)[0]
    expected = {"NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "2", "NCCL_PROTO": "LL", "NCCL_DEBUG": "INFO"}
    assert nccl_site.verify(python, {"PYTHONPATH": str(file.parent)}, expected, path=str(file)) == []
    assert nccl_site.probe(python)["nccl"] == {}
    first = identity(file)
    assert file.stat().st_mode & 0o777 == 0o644

    assert not play(tmp_path, variables, interpreter=interpreter)[0]
    assert identity(file) == first

    _changed, output = play(tmp_path, {**variables, "nccl_proto": "Simple"}, "--check", "--diff", interpreter=interpreter)
    lines = [line for line in output.splitlines() if line.startswith(("+", "-"))]
    assert lines == [f"--- before: {file}", f"+++ after: {file}", "-    \"NCCL_PROTO\": 'LL',", "+    \"NCCL_PROTO\": 'Simple',"]
    assert identity(file) == first

    assert play(tmp_path, {**variables, "nccl_state": "absent"}, interpreter=interpreter)[0]
    assert not file.parent.exists()
    assert not play(tmp_path, {**variables, "nccl_state": "absent"}, interpreter=interpreter)[0]


def test_the_role_refuses_what_is_wrong_before_anything_is_written(server, tmp_path):
    python, _purelib = server
    cases = [
        ({"nccl_chanels": 2}, "nccl_channels"),
        ({"sglang_python": "/none/python", "nccl_proto": "LL"}, "/none/python is not there"),
    ]
    for variables, words in cases:
        _changed, output = play(tmp_path, {"sglang_python": python, **variables}, rc=2)
        assert words in output
        assert "Traceback" not in output
    _changed, output = play(tmp_path, {"nccl_proto": "LL"}, rc=2)
    assert "sglang_python" in output
    assert not (tmp_path / "state").exists()


def test_warnings_of_the_catalogue_are_shown(server, tmp_path):
    _changed, output = play(tmp_path, {"nccl_python": server[0], "nccl_proto": "LL128", "nccl_version": "2.28.9"}, "--check")
    assert "data corruption" in output


def test_the_filter_reports_all_errors_at_once():
    settings = FilterModule().filters()["nccl_settings"]
    assert settings({"nccl_channels": 2, "nccl_proto": None})["settings"] == {"NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "2"}
    with pytest.raises(AnsibleFilterError, match=r"(?s)nccl_buffsize.*nccl_nthreads|nccl_nthreads.*nccl_buffsize"):
        settings({"nccl_buffsize": 1000000, "nccl_nthreads": 100})
    with pytest.raises(AnsibleFilterError, match="dict"):
        settings("nccl_channels=2")


# The module: scope interpreter


FOREIGN = [None, b"", b"import os\r\nx = 1", b"#!/bin/sh\n# coding: latin-1\nx = '\xe9'\n", b'"""doc"""']


@pytest.mark.parametrize("content", FOREIGN, ids=["none", "empty", "crlf", "latin-1", "docstring"])
@pytest.mark.parametrize("linked", [False, True], ids=["file", "link"])
def test_interpreter_scope_comes_and_goes(server, tmp_path, content, linked):
    python, purelib = server
    path, real = purelib / "sitecustomize.py", purelib / "sitecustomize.py"
    if linked and content is not None:
        real = tmp_path / "etc/sitecustomize.py"  # as Debian's conffile behind a link
        real.parent.mkdir()
        path.symlink_to(real)
    if content is not None:
        real.write_bytes(content)
        real.chmod(0o640)

    planned = run(python, scope="interpreter", check_mode=True)
    assert nccl_site.probe(python)["nccl"] == {}
    done = run(python, scope="interpreter")
    assert planned == done
    assert (done["changed"], done["path"], done["real_path"]) == (True, str(path), str(real))
    assert (done["values"], done["kept"], done["shadowed"]) == (SETTINGS, [], [])
    assert nccl_site.probe(python)["nccl"] == SETTINGS
    assert path.is_symlink() == (linked and content is not None)
    assert real.stat().st_mode & 0o777 == (0o644 if content is None else 0o640)

    first = identity(real)
    assert run(python, scope="interpreter")["changed"] is False
    assert identity(real) == first

    subprocess.run([python, "-c", ""], env={}, check=True)  # leaves bytecode behind
    assert run(python, scope="interpreter", settings={"NCCL_PROTO": "L2"})["values"] == {"NCCL_PROTO": "L2"}
    assert run(python, scope="interpreter", state="absent", check_mode=True)["changed"]
    gone = run(python, scope="interpreter", state="absent")
    assert gone["diff"]["after"] == (content or b"").decode(errors="backslashreplace")
    assert (real.read_bytes() if real.exists() else None) == content
    assert nccl_site.probe(python)["nccl"] == {}
    assert not run(python, scope="interpreter", state="absent")["changed"]


def test_interpreter_scope_waits_for_no_running_server(server, tmp_path):
    python, _purelib = server
    run(python, scope="interpreter")
    words = ["-c", "import time; print(1, flush=True); time.sleep(60)", "sglang.launch_server"]
    process = subprocess.Popen([python, *words], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        assert not run(python, scope="interpreter")["changed"]  # nothing to do is no disturbance
        for change in ({"settings": {}}, {"state": "absent"}):
            words = rf"process {process.pid} .*sglang.launch_server.*Stop that server, or .*nccl_scope=service"
            with pytest.raises(RingmasterError, match=words):
                run(python, scope="interpreter", **change)
        assert run(python, tmp_path / "site")["changed"]  # scope service disturbs nobody
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for mounts of its own")
def test_the_systems_own_conffile_behind_its_link(tmp_path):
    """On copies, mounted over the originals for these few processes alone."""
    system = Path("/usr/bin/python3")
    found = nccl_site.probe(str(system)) if system.exists() else {"site_file": None, "site_real": None}
    if found["site_file"] == found["site_real"]:
        pytest.skip("the system's Python has no sitecustomize behind a link")
    link, real = Path(found["site_file"]), Path(found["site_real"])
    wanted = arguments(str(system), scope="interpreter")
    change(tmp_path / "present.py", wanted, wanted)
    change(tmp_path / "other.py", {**wanted, "settings": {**SETTINGS, "NCCL_PROTO": "L2"}})
    change(tmp_path / "absent.py", {**wanted, "state": "absent"})
    show = f"env -i {system} -c 'import os; print(os.environ.get(\"NCCL_PROTO\"))'"
    script = f"""
        cp -a {real.parent} {tmp_path}/etc && mount --bind {tmp_path}/etc {real.parent} || exit 77
        mkdir -p {tmp_path}/cache && mount --bind {tmp_path}/cache {link.parent}/__pycache__ || exit 77
        {sys.executable} {tmp_path}/present.py; {show}; ls {tmp_path}/cache
        {sys.executable} {tmp_path}/other.py; {show}; readlink {link}
        {sys.executable} {tmp_path}/absent.py; {show}; cat {real}"""
    before = identity(real)
    apart = ["unshare", "--mount", "--pid", "--fork", "--mount-proc"]
    done = subprocess.run([*apart, "sh", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no mount namespaces here")
    present, unchanged, value, *cached, changed, new_value, target, absent, nothing = done.stdout[: -len(before[2])].splitlines()
    assert (present, unchanged, value) == ("True", "False", "LL"), done.stderr
    assert any(name.startswith("sitecustomize.") for name in cached)  # what could be stale
    assert (changed, new_value, target) == ("True", "L2", str(real))
    assert (absent, nothing) == ("True", "None")
    assert done.stdout.endswith(before[2].decode())
    assert identity(real) == before


# The module: what must not happen


def test_a_foreign_assignment_or_a_broken_file_is_found_before_writing(server):
    python, purelib = server
    file = purelib / "sitecustomize.py"
    for content, words in [
        (b"import os\nos.environ['NCCL_PROTO'] = 'Simple'\n", f"NCCL_PROTO is 'Simple' in the end, not 'LL': other code of {file}"),
        (b"def f(:\n", str(file)),
        (b"x = 1\ndef f(:\n", f"{file} would not compile"),
        (b"from __future__ import division; x = 1\n", f"{file} would not compile"),
    ]:
        file.write_bytes(content)
        before = identity(file)
        with pytest.raises(RingmasterError, match="Nothing was changed|Mend") as caught:
            run(python, scope="interpreter")
        assert words in str(caught.value)
        assert identity(file) == before


def test_what_was_set_before_is_kept_and_reported(server, tmp_path):
    python, purelib = server
    (purelib / "early.pth").write_text("import os; os.environ.setdefault('NCCL_PROTO', 'Simple')\n")
    for check_mode in (True, False, False):
        done = run(python, tmp_path / "site", check_mode=check_mode)
        assert done["kept"] == ["NCCL_PROTO was set to 'Simple' before sitecustomize ran and stays so (wanted: 'LL')."]
        assert done["values"] == {**SETTINGS, "NCCL_PROTO": "Simple"}
    assert run(python, tmp_path / "site", override=True)["values"] == SETTINGS


def test_a_file_that_is_not_ours_stays(server, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("x = 1\n")
    for state in ("present", "absent"):
        with pytest.raises(RingmasterError, match="not a file of Ringmaster"):
            run(server[0], tmp_path, state=state)
    assert (tmp_path / "sitecustomize.py").read_text() == "x = 1\n"


def test_values_must_be_text_or_numbers(server, tmp_path):
    with pytest.raises(RingmasterError, match="True of NCCL_X"):
        run(server[0], tmp_path / "site", settings={"NCCL_X": True})
    assert run(server[0], tmp_path / "site", settings={"NCCL_X": 2})["values"] == {"NCCL_X": "2"}
    assert run(server[0], tmp_path / "site", settings={})["values"] == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_an_unwritable_place_is_named_with_the_way_out():
    place = Path(tempfile.mkdtemp(prefix="ringmaster-test-"))
    try:
        place.chmod(0o755)
        (place / "sitecustomize.py").write_bytes(nccl_site.render(SETTINGS, override=False, chain=True))
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setgid(65534)
                os.setuid(65534)
                run("/none", place, state="absent", check_mode=True)
            except RingmasterError as error:
                os.write(writer, str(error).encode())
            finally:
                os._exit(0)
        os.close(writer)
        os.waitpid(child, 0)
        with os.fdopen(reader) as pipe:
            assert pipe.read() == (
                f"User 65534 cannot write {place}/sitecustomize.py. Run the play with `become: true`, or choose a path that it may write."
            )
    finally:
        shutil.rmtree(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a full file system")
def test_a_full_disk_leaves_the_former_file(server, tmp_path):
    python, _purelib = server
    (tmp_path / "full").mkdir()
    before = nccl_site.render({}, override=False, chain=True)
    (tmp_path / "before").write_bytes(before)
    change(tmp_path / "change.py", arguments(python, tmp_path / "full"))
    script = f"""
        cd {tmp_path} && mount -t tmpfs -o size=12k tmpfs full && cp before full/sitecustomize.py || exit 77
        head -c 1M /dev/zero > full/fill 2>/dev/null
        {sys.executable} change.py 2>&1 | tail -1
        ls -A full; cmp before full/sitecustomize.py && echo same"""
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no mount namespaces here")
    message, *rest = done.stdout.splitlines()
    assert "The disk is full" in message
    assert f"{tmp_path}/full/sitecustomize.py" in message
    assert rest == ["fill", "sitecustomize.py", "same"]

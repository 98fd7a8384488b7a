# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SGLang environments built for real, of small wheels: what makes one whole, what is refused, and that a failed build changes nothing."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from functools import partial
from pathlib import Path

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import environments, environments_build, environments_service, environments_uv
from ansible_collections.ringmaster.gpu.plugins.module_utils.environments_lock import parse
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

PYTHON = os.path.realpath(sys.executable)
NAME = "0.5.16-cu130-test"
IMPORT = "import sglang, sys; print(sglang.__file__, *sys.path)"


def wheel(folder, name, version, files=(), needs=""):
    """A pure wheel; its line in a lock."""
    info = f"{name}-{version}.dist-info"
    texts = {f"{name}/{path}": text for path, text in dict(files).items()}
    texts[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    texts[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    sums = {path: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode() for path, text in texts.items()}
    texts[f"{info}/RECORD"] = "".join(f"{path},sha256={one},\n" for path, one in sums.items()) + f"{info}/RECORD,,\n"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for place, text in texts.items():
            archive.writestr(zipfile.ZipInfo(place), text)
    return f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """{wheels, lock, uv_lock}: small wheels and, packed as its own wheel is, a uv: the real one where there is one."""
    wheels = tmp_path_factory.mktemp("wheels")
    lock = wheel(wheels, "torch", "2.11.0") + wheel(wheels, "sglang", "0.5.16", {"__init__.py": ""}, "Requires-Dist: torch==2.11.0\n")
    real = Path(sys.executable).parent / "uv"
    program = str(real) if real.exists() else shutil.which("uv")
    if program is None:
        pytest.skip("no uv: make setup-dev")
    uv = wheels / f"uv-9.9.9-py3-none-manylinux_2_17_{os.uname().machine}.whl"
    with zipfile.ZipFile(uv, "w") as archive:
        archive.write(program, "uv-9.9.9.data/scripts/uv")
    uv_lock = f"uv==9.9.9 \\\n    --hash=sha256:{hashlib.sha256(uv.read_bytes()).hexdigest()}\n"
    return {"wheels": str(wheels), "lock": lock, "uv_lock": uv_lock}


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch):
    """Waiting for every disk of a busy machine would be most of the time here."""
    monkeypatch.setattr(environments_build.os, "sync", lambda: None)


@pytest.fixture
def home(tmp_path):
    return str(tmp_path / "sglang")


@pytest.fixture
def build(home, stock):
    def build(lock=None, name=NAME, **more):
        source = more.pop("source", {"wheels": stock["wheels"]})
        uv_lock = more.pop("uv_lock", stock["uv_lock"])
        return environments_build.build(
            home, name, lock or stock["lock"], source=source, uv_lock_text=uv_lock, asked_python=more.pop("asked_python", PYTHON), **more
        )

    return build


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_a_built_environment_is_whole(build, home, stock, tool):
    stamp = build(tool=tool)
    assert environments.fault(home, NAME, parse(stock["lock"])["sha256"]) is None
    assert stamp["versions"] == {"sglang": "0.5.16", "torch": "2.11.0", "flashinfer-python": None}
    assert stamp["tool"].startswith(tool)
    assert not os.path.exists(os.path.join(home, "cache"))
    done = subprocess.run([environments.python(home, NAME), "-I", "-c", IMPORT], capture_output=True, text=True)
    assert done.stdout.startswith(environments.path(home, NAME))


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_a_lock_that_overrides_its_packages_is_installed_as_it_stands(build, stock, tmp_path, tool):
    newer = wheel(Path(stock["wheels"]), "torch", "2.12.0")
    lock = newer + "".join(stock["lock"].partition("sglang==")[1:])
    with pytest.raises(RingmasterError, match="torch"):
        build(lock, tool=tool)
    assert build(f"# no-deps: torch is newer than sglang asks for\n{lock}", tool=tool)["versions"]["torch"] == "2.12.0"


def spoil_stamp(place):
    os.unlink(os.path.join(place, environments.STAMP))


def spoil_stamp_text(place):
    Path(place, environments.STAMP).write_text("{")


def spoil_python(place):
    os.unlink(os.path.join(place, "bin/python"))


def spoil_packages(place):
    shutil.rmtree(next(Path(place).glob("lib/*/site-packages/torch-*.dist-info")))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_stamp, "half-built"),
        (spoil_stamp_text, "half-built"),
        (spoil_python, "does not start"),
        (spoil_packages, "was changed after"),
    ],
)
def test_what_is_not_whole_is_built_anew(build, home, spoil, words):
    build()
    spoil(environments.path(home, NAME))
    assert words in environments.fault(home, NAME)
    assert words in environments.listing(home, sizes=False)[0]["fault"]
    build()
    assert environments.fault(home, NAME) is None


def test_what_is_whole_is_left_alone(build, home):
    first = build()
    assert build() == first


def broken_hash(lock):
    return re.sub(r"sha256:.{8}", "sha256:00000000", lock, count=1)


@pytest.mark.parametrize(
    ("tool", "spoil", "words"),
    [
        ("uv", broken_hash, "(?i)hash"),
        ("pip", broken_hash, "(?i)hash"),
        ("uv", lambda lock: lock.replace("2.11.0", "2.12.0"), "torch"),
        ("uv", lambda lock: "sglang==" + lock.partition("sglang==")[2], "torch"),
    ],
)
def test_a_build_that_fails_leaves_nothing_but_its_log(build, home, stock, tool, spoil, words):
    build(name="0.5.15-cu130-old")
    environments.switch(home, "0.5.15-cu130-old")
    with pytest.raises(RingmasterError, match=words) as error:
        build(lock=spoil(stock["lock"]), tool=tool)
    log = environments.log_path(home, NAME)
    assert log in str(error.value)
    assert Path(log).read_text()
    assert environments.names(home) == ["0.5.15-cu130-old"]
    assert environments.linked(home) == "0.5.15-cu130-old"


def test_uv_is_checked_before_it_runs(build, home, stock):
    with pytest.raises(RingmasterError, match="its lock does not have"):
        build(uv_lock=broken_hash(stock["uv_lock"]), tool="uv")
    with pytest.raises(RingmasterError, match="has no uv 9.9.8"):
        build(uv_lock=stock["uv_lock"].replace("9.9.9", "9.9.8"), tool="uv")
    assert environments.names(home) == []


@pytest.mark.parametrize(
    ("asked", "allowed", "words"),
    [
        ("/nonexistent/python", "", "/nonexistent/python is not there"),
        (PYTHON, ">=3.99", "sglang_base_python: .* is 3[.].*; this SGLang needs Python >=3.99"),
        ("", ">=3.99", "^This SGLang needs Python >=3.99; .*python3 is 3[.].*name it in sglang_base_python"),
        ("/bin/true", "", "is no Python that starts"),
    ],
)
def test_an_interpreter_that_will_not_do(asked, allowed, words):
    with pytest.raises(RingmasterError, match=words):
        environments_build.base_python(asked, allowed)


def test_no_room_is_told_before(home, stock):
    with pytest.raises(RingmasterError, match="MiB free, and this environment needs about 999999999 MiB"):
        environments_build.plan(home, NAME, "# disk: 999999999 MiB\n" + stock["lock"], PYTHON)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", ".lock"])
def test_a_name_is_no_path(name):
    with pytest.raises(RingmasterError, match="no name of an environment"):
        environments.check_name(name)


def test_a_build_that_takes_too_long_is_ended(build, home):
    with pytest.raises(RingmasterError, match="took too long and was ended.*sglang_build_timeout_s"):
        build(timeout_s=0)
    assert environments.names(home) == []


def test_one_change_at_a_time(build, home):
    said = rf"the build of something, pid {os.getpid()}, since 2"
    with environments.locked(home, "the build of something"):
        assert re.search(said, environments.holder(home))
        with pytest.raises(RingmasterError, match=said):
            build()
    assert environments.holder(home) is None
    build()


def test_who_holds_the_lock_for_an_instant_does_not_keep_others_from_it(home):
    with environments.locked(home, "any"):
        pass
    look = "import fcntl, sys, time; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_SH); print(flush=True); time.sleep(0.3)"
    with subprocess.Popen([sys.executable, "-c", look, os.path.join(home, ".lock")], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with environments.locked(home, "a switch"):
            assert environments.holder(home)


def test_the_lock_lasts_as_long_as_what_was_started(home):
    with environments.locked(home, "a build") as descriptor:
        child = subprocess.Popen(["sleep", "60"], pass_fds=[descriptor])
    with pytest.raises(RingmasterError, match="Another change"), environments.locked(home, "another"):
        pass
    child.kill()
    child.wait()
    with environments.locked(home, "another"):
        pass


def test_what_is_in_the_place_of_the_link_is_told(home):
    os.makedirs(os.path.join(home, "current"))
    with pytest.raises(RingmasterError, match="current is no link to an environment. Move it away"):
        environments.linked(home)


def test_switch_and_back(build, home):
    build(name="a")
    build(name="b")
    for name in ("a", "a", "b"):
        environments.switch(home, name)
    assert (environments.linked(home), environments.linked(home, "previous")) == ("b", "a")
    assert os.path.exists(os.path.join(home, "current/bin/python"))
    with pytest.raises(RingmasterError, match="is in force"):
        environments.refuse_removal(home, "b")
    environments.remove(home, "a")
    assert environments.linked(home, "previous") is None


def test_what_runs_keeps_its_environment(build, home):
    build(name="a")
    running = subprocess.Popen([environments.python(home, "a"), "-c", "import time; time.sleep(60)"])
    try:
        for _attempt in range(50):
            if environments.users(home, "a"):
                break
            time.sleep(0.1)
        assert [user["pid"] for user in environments.users(home, "a")] == [running.pid]
        os.mkdir(environments.path(home, "half"))
        rows = {row["name"]: (row["users"], row["fault"]) for row in environments.listing(home, sizes=False)}
        assert rows == {"a": ([running.pid], None), "half": ([], "is half-built")}
        os.rmdir(environments.path(home, "half"))
        with pytest.raises(RingmasterError, match=f"is in use .pid {running.pid}"):
            environments.refuse_removal(home, "a")
        spoil_stamp(environments.path(home, "a"))
        with pytest.raises(RingmasterError, match="is half-built, and is in force or in use"):
            build(name="a")
        assert environments.superfluous(home, 0) == []
    finally:
        running.kill()
        running.wait()
    assert environments.superfluous(home, 0) == ["a"]


def test_what_goes(build, home):
    for number, name in enumerate(("a", "b", "c", "d")):
        build(name=name)
        stamp = environments.stamp(home, name)
        environments.files.write_json(os.path.join(environments.path(home, name), environments.STAMP), {**stamp, "built": f"202{number}"})
    environments.switch(home, "a")
    environments.switch(home, "b")
    os.mkdir(environments.path(home, "half"))
    assert environments.superfluous(home, 2) == ["c", "half"]  # a was in force before, d is the newest
    assert environments.superfluous(home, 0) == ["a", "c", "d", "half"]


# --- an index over HTTP, with a password


@contextlib.contextmanager
def serving(folder, seen):
    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.path, self.headers.get("Authorization")))
            if self.headers.get("Authorization") != "Basic " + base64.b64encode(b"reader:s3cr et").decode():
                self.send_response(401)
                self.send_header("WWW-Authenticate", "Basic")
                self.end_headers()
                return
            super().do_GET()

        do_HEAD = do_GET

        def log_message(self, *_arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture
def index(stock, tmp_path):
    for path in Path(stock["wheels"]).iterdir():
        folder = tmp_path / "index/simple" / path.name.partition("-")[0]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / path.name).symlink_to(path)
        (folder / "index.html").write_text("".join(f'<a href="{name}">{name}</a>' for name in os.listdir(folder)))
    return str(tmp_path / "index")


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_an_index_without_tls_will_do(build, index, tool):
    """Every file has its checksum. 127.1 is this machine to the resolver, and one that pip does not trust."""
    with serving(index, []) as port:
        assert build(source={"index_url": f"http://reader:s3cr%20et@127.1:{port}/simple"}, tool=tool)["tool"].startswith(tool)


def test_from_an_index_whose_password_nobody_sees(build, home, index):
    seen = []
    with serving(index, seen) as port:
        build(source={"index_url": f"http://reader:s3cr%20et@127.0.0.1:{port}/simple"}, tool="uv")
        with pytest.raises(RingmasterError, match="401|403|Unauthorized|uthenticat|sglang_index_url") as error:
            build(name="other", source={"index_url": f"http://reader:wr0ng@127.0.0.1:{port}/simple"})
    assert "s3cr" not in Path(environments.log_path(home, NAME)).read_text()
    assert "wr0ng" not in str(error.value) + Path(environments.log_path(home, "other")).read_text()
    assert any(path.startswith("/simple/uv/") for path, _header in seen)


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        (None, []),
        ("https://pypi.org/simple", []),
        ("https://me:p%40ss@host/simple", ["p%40ss", "p@ss"]),
        ("https://token@host/simple", ["token"]),
    ],
)
def test_what_is_secret_in_a_url(url, secrets):
    assert environments_uv.secrets_of(url) == secrets


# --- a trimmed site directory, for a host whose base interpreter has the rest


@pytest.fixture
def site(tmp_path):
    site = tmp_path / "site"
    (site / "sglang").mkdir(parents=True)
    (site / "sglang/__init__.py").touch()
    (site / "sglang-0.5.16.dist-info").mkdir()
    (site / "sglang-0.5.16.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.16\n")
    return site


def test_a_trimmed_site(build, home, stock, site):
    stamp = build("# disk: 999999999 MiB\n" + stock["lock"], source={"site": str(site)})
    assert (stamp["versions"]["sglang"], stamp["tool"]) == ("0.5.16", "copy")
    done = subprocess.run([environments.python(home, NAME), "-I", "-c", IMPORT], capture_output=True, text=True)
    assert done.stdout.startswith(environments.path(home, NAME))
    below = subprocess.run([PYTHON, "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True)
    assert below.stdout.strip() in done.stdout.split()


def test_a_trimmed_site_for_another_host(build, home, stock, site):
    """What the bundle left out because "the host has it" has to be there."""
    with pytest.raises(RingmasterError, match=r"for a host that has no-such-package; .* has not. .*bundle_host_packages"):
        build(stock["lock"], source={"site": str(site), "below": ["pip", "no_such.package"]})
    assert not os.path.exists(environments.path(home, NAME))
    assert build(stock["lock"], source={"site": str(site), "below": ["PIP", "sglang"]})["tool"] == "copy"


def test_programs_of_the_base_interpreter_s_packages_are_found(build, home, stock, site, tmp_path):
    """ninja, without which no kernel is compiled, may be a package of the base interpreter's: only beside that one."""
    base = tmp_path / "base"
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", base], check=True)
    (base / "bin/ninja").write_text("#!/bin/sh\necho it compiles\n")
    (base / "bin/ninja").chmod(0o755)
    build(stock["lock"], source={"site": str(site)}, asked_python=str(base / "bin/python"))
    folder = Path(environments.python(home, NAME)).parent
    assert subprocess.check_output([folder / "ninja"], text=True) == "it compiles\n"
    assert str(folder.resolve()) == subprocess.check_output(
        [folder / "python", "-c", "import os, sys; print(os.path.dirname(sys.executable))"], text=True
    ).strip()  # python itself is the environment's own


# --- what a server runs


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["HOME/environments/0.5.16-cu130-x/bin/python", "-m", "sglang.launch_server"], "0.5.16-cu130-x"),
        (["/usr/bin/python3", "HOME/environments/0.5.16-cu130-x/bin/python"], None),
        (["sglang::scheduler"], None),
        ([], None),
    ],
)
def test_the_environment_of_a_command(tmp_path, words, name):
    words = [word.replace("HOME", str(tmp_path)) for word in words]
    assert environments_service.environment_of(words, str(tmp_path)) == name


def test_the_flags_that_are_kept(tmp_path, monkeypatch):
    path = tmp_path / "50-ringmaster.conf"
    monkeypatch.setattr(environments_service.units, "drop_in_path", lambda unit: str(path))
    assert environments_service.kept_flags("sglang") is None
    start = '"/opt/sglang/bin/python" "-m" "sglang.launch_server" "--model-path" "/m" "--tp" "2" "--host" "h" "--trust-remote-code"'
    path.write_text(f"[Service]\nExecStart=\nExecStart={start}\n")
    assert environments_service.kept_flags("sglang") == {"tp-size": "2", "trust-remote-code": True}
    path.write_text('[Service]\nExecStart="unfinished\n')
    assert environments_service.kept_flags("sglang") is None

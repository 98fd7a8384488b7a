# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The test node itself: what the API is asked for happens to a real container, and a task ends well only then."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import container
import pytest
from host import locked
from pve_node import HERE, Node, innermost_pid, inside, left, pct, pve, ssh, until

SCENARIO = "pvelab"
PRIVILEGED, UNPRIVILEGED, FAILING = GUESTS = 121, 122, 123
# At the very first systemd cannot be asked yet, and then says neither of these.
UP = "for look in $(seq 300); do systemctl is-system-running --wait | grep -qxE 'running|degraded' && break; sleep 0.2; done"


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("containers need root")
    if os.environ.get("CI") == "true":
        subprocess.run([HERE / "lxc.py", "install"], check=True)
    if not shutil.which("lxc-start"):
        pytest.skip("needs LXC: tests/lab/lxc.py install")
    state = tmp_path_factory.mktemp("pve")
    with locked("test-pve"):  # two runs of these tests on a machine: one after the other
        pve("up", "--name", SCENARIO, "--state", state, "--node", "pve1")
        try:
            yield Node(json.loads((state / "connection.json").read_text()))
        finally:
            pve("down", "--name", SCENARIO, "--state", state)
            assert left(SCENARIO, GUESTS) == []


@pytest.fixture
def running(node):
    """Make and start a container; gone when the test is over."""
    made = []

    def run(vmid, **options):
        made.append(vmid)
        node.done(node.create(vmid, start=1, **options))
        return vmid

    yield run
    node.forget(*made)


def test_up_again_changes_nothing(node):
    state = Path(node.connection["root"]["ca_path"]).parent
    assert json.loads(pve("up", "--name", SCENARIO, "--state", state)) == node.connection
    assert (state / "connection.json").stat().st_mode & 0o777 == 0o600


def test_a_scenario_is_up_once(node, tmp_path):
    argv = [sys.executable, HERE / "pve.py", "up", "--name", SCENARIO, "--state", tmp_path / "other"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"{SCENARIO} is up already, from {Path(node.connection['root']['ca_path']).parent}" in done.stderr


@pytest.mark.parametrize("who", ["token", "user", "root_token"])
def test_devices_are_refused_to_all_but_root(node, who):
    with pytest.raises(
        Exception, match="403 Forbidden: Permission check failed .configuring device passthrough is only allowed for root@pam"
    ):
        node.create(FAILING, who=who, unprivileged=1, dev0="/dev/nvidia0")
    assert pct("status", FAILING).returncode == 2


def test_a_token_makes_a_container_without_devices(node):
    node.done(node.create(FAILING, who="token", unprivileged=1))
    assert (pct("status", FAILING).stdout, node.state(FAILING)["status"]) == ("status: stopped\n", "stopped")
    node.done(node.api("token").lxc(FAILING).delete())
    assert pct("status", FAILING).returncode == 2


def test_the_whole_way(node, tmp_path):
    """Created, started, entered, reached by SSH, rebooted, shut down, destroyed."""
    (tmp_path / "weights").write_text("x", encoding="ascii")
    tmp_path.chmod(0o755)  # the folders above stay closed to all but this machine's root, who mounts
    vmid = UNPRIVILEGED
    devices = {"dev0": "/dev/nvidia0,gid=44,mode=0660", "dev1": "/dev/nvidiactl"}
    node.done(node.create(vmid, unprivileged=1, **devices, mp0=f"{tmp_path},mp=/models,ro=1", mp1="local-lvm:1,mp=/data"))
    assert pct("status", vmid).stdout == "status: stopped\n"
    node.done(node.container(vmid).status.start.post())
    assert node.state(vmid)["status"] == "running"

    assert inside(vmid, "hostname; cat /proc/self/uid_map").split() == [f"host-{vmid}", "0", "100000", "65536"]
    assert inside(vmid, "stat -c '%A %u %g %n' /dev/nvidia*").splitlines() == [
        "crw-rw---- 0 44 /dev/nvidia0",
        "crw-rw---- 0 0 /dev/nvidiactl",
    ]
    assert (
        inside(vmid, "echo x > /dev/nvidia0; cat /models/weights; echo y > /data/y; touch /models/z 2>/dev/null || echo read-only")
        == "xread-only"
    )

    worker = inside(vmid, "sleep 600 < /dev/nvidia0 > /dev/null 2>&1 & echo $!")
    seen = [pid for pid in Path("/proc").glob("[0-9]*") if innermost_pid(pid) == worker and "sleep" in (pid / "comm").read_text()]
    assert len(seen) == 1
    groups = (seen[0] / "cgroup").read_text()
    assert re.search(rf"^0::/lxc/{vmid}/ns", groups, re.MULTILINE)
    assert {re.sub(r"^\d+:[^:]*:/lxc/(\d+)/.*", r"\1", line + "/") for line in groups.splitlines()} == {str(vmid)}
    assert os.readlink(seen[0] / "fd/0") == "/dev/nvidia0"

    address = f"10.77.0.{vmid + 100}"
    inside(vmid, UP)
    assert ssh(node, address, "true").returncode == 255  # nobody's key is in it
    key = node.connection["public_key"]
    assert pct("exec", vmid, "--", "sh", "-c", "cat > /root/.ssh/authorized_keys", input=f"{key}\n").returncode == 0
    assert ssh(node, address, "hostname").stdout == f"host-{vmid}\n"

    before = node.state(vmid)["pid"]
    node.done(node.container(vmid).status.reboot.post(timeout=30))
    assert node.state(vmid)["pid"] != before
    assert inside(vmid, "cat /data/y") == "y"
    node.done(node.container(vmid).status.shutdown.post(timeout=30))
    assert (pct("status", vmid).stdout, node.state(vmid)["status"]) == ("status: stopped\n", "stopped")
    node.done(node.container(vmid).delete())
    assert pct("status", vmid).returncode == 2
    assert not container.CONTAINERS.joinpath(f"rm-test-{SCENARIO}-{vmid}").exists()


def test_what_is_added_to_a_running_container_is_in_it(node, running, tmp_path):
    for vmid in (running(UNPRIVILEGED, unprivileged=1), running(PRIVILEGED, unprivileged=0)):
        node.container(vmid).config.put(dev0="/dev/nvidia1,gid=44,mode=0666", mp0=f"{tmp_path},mp=/new/models,ro=1")
        assert inside(vmid, "stat -c '%A %u %g' /dev/nvidia1; echo x > /dev/nvidia1") == "crw-rw-rw- 0 44"
        assert inside(vmid, "touch /new/models/x 2>/dev/null || echo read-only") == "read-only"
        node.done(node.container(vmid).status.reboot.post(timeout=30))
        assert inside(vmid, "stat -c '%A %u %g' /dev/nvidia1") == "crw-rw-rw- 0 44"


def test_a_device_that_is_gone_keeps_it_from_starting(node):
    standin = Path(node.connection["devices_root"] + "/dev/nvidia1")
    node.done(node.create(FAILING, unprivileged=1, dev0="/dev/nvidia0", dev1="/dev/nvidia1"))
    device = standin.stat().st_rdev
    standin.unlink()
    try:
        exit_status, log = node.ends(node.container(FAILING).status.start.post())
        assert (exit_status, log[-1]) == ("Device /dev/nvidia1 does not exist", "TASK ERROR: Device /dev/nvidia1 does not exist")
        assert (pct("status", FAILING).stdout, node.state(FAILING)["status"]) == ("status: stopped\n", "stopped")
        with pytest.raises(Exception, match="500 Internal Server Error: Device /dev/nvidia1 does not exist"):
            node.container(FAILING).config.put(dev2="/dev/nvidia1")
        standin.write_text("", encoding="ascii")
        assert node.ends(node.container(FAILING).status.start.post())[0] == "/dev/nvidia1 is not a device"
        node.container(FAILING).config.put(delete="dev1")
        node.done(node.container(FAILING).status.start.post())
    finally:
        standin.unlink(missing_ok=True)
        os.mknod(standin, 0o020666, device)
        node.forget(FAILING)


@pytest.mark.parametrize(
    ("options", "exit_status", "logged"),
    [
        (
            {"mp0": "/no/such/directory,mp=/models"},
            f"startup for container '{FAILING}' failed",
            "directory '/no/such/directory' does not exist",
        ),
        # lxc-start itself fails: a directory cannot be mounted where a file is.
        ({"mp0": "/srv,mp=/etc/hostname"}, f"startup for container '{FAILING}' failed", "Failed to run lxc.hook.pre-start for container"),
        ({"net0": "name=eth0,bridge=vmbr9,ip=10.77.0.223/24"}, "bridge 'vmbr9' does not exist", "TASK ERROR"),
    ],
)
def test_a_container_that_does_not_start_fails_the_task(node, options, exit_status, logged):
    try:
        found, log = node.ends(node.create(FAILING, start=1, **options))
        assert found == exit_status, log
        assert logged in "\n".join(log)
        assert (pct("status", FAILING).stdout, node.state(FAILING)["status"]) == ("status: stopped\n", "stopped")
    finally:
        node.forget(FAILING)


def test_an_address_has_one_holder(node, running):
    running(PRIVILEGED)
    try:
        found, _log = node.ends(node.create(FAILING, start=1, net0=f"name=eth0,bridge=vmbr0,ip=10.77.0.{PRIVILEGED + 100}/24"))
        assert found == f"address 10.77.0.{PRIVILEGED + 100} belongs to rm-test-{SCENARIO}-{PRIVILEGED} on this machine"
    finally:
        node.forget(FAILING)


@pytest.mark.parametrize(("vmid", "unprivileged"), [(PRIVILEGED, 0), (UNPRIVILEGED, 1)])
def test_what_a_container_does_by_itself_is_noticed(node, running, vmid, unprivileged):
    running(vmid, unprivileged=unprivileged)
    before = node.state(vmid)["pid"]
    inside(vmid, f"{UP}; systemctl reboot")
    until(lambda: node.state(vmid)["pid"] not in (before, None))
    inside(vmid, f"{UP}; systemctl poweroff")
    until(lambda: node.state(vmid)["status"] == "stopped")


def test_pct_ends_as_on_proxmox(node, running):
    gone = pct("exec", 999, "--", "true")
    assert (gone.returncode, "Configuration file 'nodes/" in gone.stderr, "/lxc/999.conf' does not exist" in gone.stderr) == (2, True, True)
    vmid = running(PRIVILEGED, unprivileged=0)
    assert pct("exec", vmid, "--", "sh", "-c", "echo out; echo err >&2; exit 7").returncode == 7
    assert pct("exec", vmid, "echo", "no dashes").stdout == "no dashes\n"
    environment = {**os.environ, "CALLER": "here"}
    assert pct("exec", vmid, "--", "printenv", "CALLER", env=environment).stdout == "here\n"
    assert pct("exec", vmid, "--keep-env", "0", "--", "printenv", "CALLER", env=environment).returncode == 1
    assert pct("push", vmid, __file__, "/root/pushed", "--perms", "0640", "--user", "1", "--group", "2").returncode == 0
    assert inside(vmid, "stat -c '%a %u %g %s' /root/pushed") == f"640 1 2 {Path(__file__).stat().st_size}"
    node.done(node.container(vmid).status.stop.post())
    stopped = pct("exec", vmid, "--", "true")
    assert stopped.returncode == 1
    assert f"lxc-attach: {vmid}:" in stopped.stderr
    assert pct("push", vmid, __file__, "/root/pushed").returncode == 255
    assert pct("status", "x1").returncode == 255


def test_requests_are_written_down_without_their_bodies(node):
    lines = Path(node.connection["requests"]).read_text().splitlines()
    assert {"method": "POST", "path": "/api2/json/nodes/pve1/lxc"} in [json.loads(line) for line in lines]
    assert node.connection["root"]["api_password"] not in "".join(lines)


def test_a_server_that_was_killed_leaves_nothing_after_down(node, tmp_path):
    """A second node on this machine; the first one's containers are not its own."""
    name = f"{SCENARIO}-2"
    found = json.loads(pve("up", "--name", name, "--state", tmp_path, "--node", "pve2"))
    second = Node(found)
    second.done(second.create(FAILING, start=1))
    node.done(node.create(PRIVILEGED))
    os.kill(found["pid"], 9)
    pve("down", "--name", name, "--state", tmp_path)
    assert {record["vmid"] for record in container.records().values() if "vmid" in record and record["scenario"] in (name, SCENARIO)} == {
        PRIVILEGED
    }
    assert not list(tmp_path.glob("connection.json"))
    node.forget(PRIVILEGED)

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Proxmox VE answers and the fake does not: written down by hand from its source, and served over HTTPS.

Each case says what PVE does: it ends a description with a new line, ends tasks with warnings, stats a device when it is configured, shows
raw LXC keys, keeps what it could not apply as pending."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
import urllib.parse

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from fakepve.certs import make_cert
from pve_lab import WHOLE, info, run

BASE = "/nodes/pve1/lxc/101"
UPID = "UPID:pve1:0000C530:1001A7DC9:656F1A2B:{type}:101:root@pam!t:"  # a node that is up for long: nine digits
CONFIG = {
    "arch": "amd64",
    "digest": "d1",
    "features": "nesting=1",
    "hostname": "infer1",
    "memory": 512,
    "onboot": 1,
    "ostype": "debian",
    "rootfs": "local-lvm:vm-101-disk-0,size=8G",
    "swap": 512,
    "unprivileged": 1,
}


class Recorded:
    """answers: {(method, path): [(status, reason, body)]}, each given once, the last for ever. calls: what was asked."""

    def __init__(self, directory):
        self.answers, self.calls = {}, []
        self.ca, key, _der = make_cert(str(directory), hosts=("127.0.0.1",))
        recorded = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                path = urllib.parse.urlsplit(self.path).path.partition("/api2/json")[2]
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                recorded.headers = self.headers
                recorded.calls.append((self.command, path, dict(urllib.parse.parse_qsl(body, keep_blank_values=True))))
                queue = recorded.answers.get((self.command, path), [(500, f"no answer recorded for {self.command} {path}", "")])
                status, reason, text = queue.pop(0) if len(queue) > 1 else queue[0]
                self.send_response(status, reason)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_POST = do_PUT = do_DELETE = answer

            def log_message(self, *_arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.ca, key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def on(self, method, path, *answers):
        """Each of ANSWERS: the data, or (status, reason, fields of a refused parameter)."""
        self.answers[method, path] = [
            (answer[0], answer[1], json.dumps({"data": None, "errors": answer[2]} if len(answer) > 2 else {"data": None}))
            if isinstance(answer, tuple)
            else (200, "OK", json.dumps({"data": answer}))
            for answer in answers
        ]

    def container(self, *configs, pending=None, status="stopped"):
        """The container as it is read again and again; PENDING: rows besides those of the configuration."""
        self.on("GET", f"{BASE}/config", *configs)
        rows = [[{"key": key, "value": value} for key, value in config.items() if not isinstance(value, list)] for config in configs]
        self.on("GET", f"{BASE}/pending", *(pending or rows))
        self.on("GET", f"{BASE}/status/current", {"status": status, "vmid": 101, "ha": {"managed": 0}})
        self.on("GET", "/nodes/pve1/tasks", [])

    def task(self, type_, exitstatus, log=()):
        upid = UPID.format(type=type_)
        self.on("GET", f"/nodes/pve1/tasks/{upid}/status", {"status": "running"}, {"status": "stopped", "exitstatus": exitstatus})
        self.on("GET", f"/nodes/pve1/tasks/{upid}/log", [{"n": n, "t": text} for n, text in enumerate(log, 1)])
        return upid

    def writes(self):
        return [call for call in self.calls if call[0] != "GET"]


@pytest.fixture
def pve(tmp_path):
    recorded = Recorded(tmp_path)
    yield recorded
    recorded.server.shutdown()
    recorded.server.server_close()


@pytest.fixture
def options(pve):
    return {
        "api_host": "127.0.0.1",
        "api_port": pve.server.server_port,
        "ca_path": pve.ca,
        "api_token_id": "root@pam!t",
        "api_token_secret": "x",
        "api_timeout": 5,
        "vmid": 101,
        "node": "pve1",
    }


@pytest.fixture
def root(pve, options):
    """With a ticket of root."""
    pve.on("POST", "/access/ticket", {"ticket": "T", "CSRFPreventionToken": "C", "username": "root@pam"})
    return {**options, "api_token_id": None, "api_token_secret": None, "api_user": "root@pam", "api_password": "x"}


def test_a_description_ends_with_a_new_line(pve, options):
    pve.container({**CONFIG, "description": "serves\nmodels\n"})
    assert run({**options, "description": "serves\nmodels"})["changed"] is False
    assert run({**options, "description": "serves\nmodels\n"})["changed"] is False
    assert run({**options, "description": "serves"}, check_mode=True)["changed"] is True
    assert pve.writes() == []


def test_raw_keys_of_lxc_are_shown_and_not_lost(pve, options):
    raw = [["lxc.cgroup2.devices.allow", "c 195:* rwm"], ["lxc.mount.entry", "/dev/nvidia0 dev/nvidia0 none bind,create=file"]]
    pve.container({**CONFIG, "lxc": raw})
    assert run(options)["config"]["lxc"] == raw
    pve.on("GET", "/cluster/resources", [{"type": "lxc", "vmid": 101, "node": "pve1", "status": "stopped", "name": "infer1"}])
    (found,) = info({name: value for name, value in options.items() if name != "node"})
    assert found["config"]["lxc"] == raw


def test_warnings_of_a_task_are_no_failure(pve, options):
    pve.container(CONFIG)
    pve.on(
        "POST",
        f"{BASE}/status/start",
        pve.task("vzstart", "WARNINGS: 1", ["starting", "WARN: old systemd (< v232) detected", "TASK WARNINGS: 1"]),
    )
    pve.on("GET", f"{BASE}/status/current", {"status": "stopped"}, {"status": "running"})
    done = run({**options, "state": "started"})
    assert done["tasks"][0]["exitstatus"] == "WARNINGS: 1"
    assert "Task vzstart of container 101: WARN: old systemd (< v232) detected" in done["warnings"]


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (["starting", "WARN: old", "started", "TASK WARNINGS: 1"], ["WARN: old"]),
        (["starting", "odd", "TASK WARNINGS: 1"], ["odd"]),
        (["TASK WARNINGS: 1"], ["WARNINGS: 1"]),
    ],
)
def test_what_a_task_warned_of_is_told_and_not_their_number(pve, options, log, told):
    pve.container(CONFIG)
    pve.on("POST", f"{BASE}/status/start", pve.task("vzstart", "WARNINGS: 1", log))
    pve.on("GET", f"{BASE}/status/current", {"status": "stopped"}, {"status": "running"})
    assert run({**options, "state": "started"})["warnings"] == [f"Task vzstart of container 101: {line}" for line in told]


@pytest.mark.parametrize("exitstatus", ["unexpected status", "", "command 'lxc-start' failed: exit code 1"])
def test_a_task_that_failed_shows_the_end_of_its_log(pve, options, exitstatus):
    """Not the first line, not the whole log, and not after the time is over."""
    pve.container(CONFIG)
    log = [
        "run_buffer: 571 Script exited with status 2",
        "lxc_init: 845 Failed to run lxc.hook.pre-start",
        "startup for container '101' failed",
    ]
    pve.on("POST", f"{BASE}/status/start", pve.task("vzstart", exitstatus, ["first line", *log]))
    with pytest.raises(RingmasterError) as caught:
        run({**options, "state": "started", "timeout_s": 3600})
    assert all(line in str(caught.value) for line in [exitstatus, *log])
    assert "first line" not in str(caught.value)


def test_a_device_that_the_node_does_not_have(pve, root):
    pve.container(CONFIG)
    pve.on("PUT", f"{BASE}/config", (500, "Device /dev/nvidia9 does not exist"))
    with pytest.raises(RingmasterError, match="Node pve1 has no device /dev/nvidia9, which container 101 is to get"):
        run({**root, "devices": [{"path": "/dev/nvidia9"}]})


def test_what_could_not_be_hotplugged_waits_for_the_next_start(pve, root):
    """PVE answers 400 and keeps the change: it is no failure, and it is said."""
    later = {**CONFIG, "digest": "d2", "dev0": "/dev/nvidia0"}
    rows = [{"key": key, "value": value} for key, value in CONFIG.items()]
    pve.container(CONFIG, later, pending=[rows, [*rows, {"key": "dev0", "pending": "/dev/nvidia0"}]], status="running")
    pve.on("PUT", f"{BASE}/config", (400, "Parameter verification failed.", {"dev0": "unable to hotplug dev0: mknod failed"}))
    done = run({**root, "devices": [{"path": "/dev/nvidia0"}]})
    assert (done["restart_required"], done["pending"]) == (True, [{"key": "dev0", "pending": "/dev/nvidia0"}])
    assert "unable to hotplug dev0: mknod failed" in done["warnings"][0]


@pytest.mark.parametrize(
    ("status", "told", "mount", "why"),
    [
        ("stopped", "unable to apply pending change mp0 : no space left on device", "local-lvm:9999,mp=/data", "The storage is full"),
        ("running", "unable to hotplug mp0: no space left on device", "local-lvm:9999,mp=/data", "The storage is full"),
        ("running", "unable to hotplug mp0: directory '/nowhere' does not exist", "/nowhere,mp=/data", "does not exist"),
    ],
)
def test_what_would_keep_it_from_starting_is_taken_back(pve, root, status, told, mount, why):
    """PVE keeps it as pending, and would try it at each start."""
    rows = [{"key": key, "value": value} for key, value in CONFIG.items()]
    waiting = [*rows, {"key": "mp0", "pending": mount}]
    pve.container(CONFIG, {**CONFIG, "digest": "d2", "mp0": mount}, pending=[rows, waiting], status=status)
    pve.on("PUT", f"{BASE}/config", (400, "Parameter verification failed.", {"mp0": told}), None)
    asked = {"source": "local-lvm", "size_gib": 9999} if "local-lvm" in mount else {"source": "/nowhere"}
    with pytest.raises(RingmasterError, match=f"{why}.*mp0 is as it was before"):
        run({**root, "mounts": [{**asked, "target": "/data"}]})
    assert [arguments for method, _path, arguments in pve.writes() if method == "PUT"] == [
        {"mp0": mount, "digest": "d1"},
        {"revert": "mp0"},
    ]


def test_only_what_the_message_names_is_taken_back(pve, root):
    """mp1 is no part of mp10."""
    others = {f"mp{number}": f"/a{number},mp=/a{number}" for number in (0, 2, 3, 4, 5, 6, 7, 8, 9)}
    before, new, bad = {**CONFIG, **others}, {"mp1": "local-lvm:vm-101-disk-1,mp=/new,size=4G"}, {"mp10": "/nowhere,mp=/data"}
    rows = [{"key": key, "value": value} for key, value in before.items()]
    made = [*rows, {"key": "mp1", "value": new["mp1"]}, {"key": "mp10", "pending": bad["mp10"]}]
    pve.container(before, {**before, **new, **bad, "digest": "d2"}, pending=[rows, made], status="running")
    pve.on(
        "PUT",
        f"{BASE}/config",
        (400, "Parameter verification failed.", {"mp10": "unable to hotplug mp10: directory '/nowhere' does not exist"}),
        None,
    )
    mounts = [{"source": f"/a{number}", "target": f"/a{number}"} for number in (0, 2, 3, 4, 5, 6, 7, 8, 9)]
    mounts += [{"source": "local-lvm:4", "target": "/new"}, {"source": "/nowhere", "target": "/data"}]
    with pytest.raises(RingmasterError, match="does not exist.*mp10 is as it was before"):
        run({**root, "mounts": mounts})
    assert pve.writes()[-1][2] == {"revert": "mp10"}


def test_what_a_failed_call_has_written_all_the_same_is_taken_back(pve, root):
    """Or the next run would find it there and say that all is well."""
    later = {**CONFIG, "digest": "d2", "hostname": "other", "mp0": "/nowhere,mp=/data"}
    pve.container(CONFIG, later, status="stopped")
    pve.on("PUT", f"{BASE}/config", (500, "directory '/nowhere' does not exist"), None)
    with pytest.raises(RingmasterError, match="does not exist.*hostname, mp0 is as it was before"):
        run({**root, "hostname": "other", "mounts": [{"source": "/nowhere", "target": "/data"}]})
    former = CONFIG.get("hostname")
    taken_back = {"hostname": former, "delete": "mp0"} if former else {"delete": "hostname,mp0"}
    assert [arguments for method, _path, arguments in pve.writes() if method == "PUT"][1:] == [taken_back]


def test_pending_rows_as_proxmox_writes_them(pve, options):
    """The digest is among them; what is to go has a delete, what is new no value; raw keys are missing."""
    rows = [{"key": key, "value": value} for key, value in CONFIG.items() if key != "features"]
    rows += [
        {"key": "features", "value": "nesting=1", "pending": "keyctl=1,nesting=1"},
        {"key": "dev0", "value": "/dev/nvidia0", "delete": 1},
    ]
    rows += [{"key": "nameserver", "pending": "192.0.2.53"}]
    config = {**CONFIG, "features": "keyctl=1,nesting=1", "nameserver": "192.0.2.53"}
    pve.container(config, pending=[rows], status="running")
    done = run(options)
    assert [row["key"] for row in done["pending"]] == ["dev0", "features", "nameserver"]
    assert (done["changed"], done["restart_required"]) == (False, True)


def test_resizing_without_a_task(pve, options):
    """Before Proxmox VE 7.4 it answered when it was done."""
    pve.container(CONFIG, {**CONFIG, "rootfs": "local-lvm:vm-101-disk-0,size=16G"})
    pve.on("PUT", f"{BASE}/resize", None)
    done = run({**options, "rootfs": {"storage": "local-lvm", "size_gib": 16}})
    assert (done["changed"], done["tasks"]) == (True, [])
    assert pve.writes() == [("PUT", f"{BASE}/resize", {"disk": "rootfs", "size": "16G", "digest": "d1"})]


def test_a_release_without_devices(pve, root):
    pve.container(CONFIG)
    fields = {"dev0": "property is not defined in schema and the schema does not allow additional properties"}
    pve.on("PUT", f"{BASE}/config", (400, "Parameter verification failed.", fields))
    with pytest.raises(RingmasterError, match="Devices .devN. need Proxmox VE 8.2"):
        run({**root, "devices": [{"path": "/dev/nvidia0"}]})


def test_a_401_without_body(pve, options):
    pve.answers["GET", f"{BASE}/config"] = [(401, "Authentication failed!", "")]
    with pytest.raises(RingmasterError, match="does not accept root@pam!t.*401 Authentication failed!"):
        run(options)


@pytest.mark.parametrize("body", ["<html>Welcome to nginx!</html>", "[]", '{"no": "data"}', "null"])
def test_something_that_is_not_proxmox(pve, options, body):
    pve.answers["GET", f"{BASE}/config"] = [(200, "OK", body)]
    with pytest.raises(RingmasterError, match="something that is not Proxmox VE's"):
        run(options)


@pytest.mark.parametrize("status", [500, 502, 504])
@pytest.mark.parametrize("body", ["null", "[]", '"oops"'])
def test_an_error_whose_json_is_no_object(pve, options, status, body):
    pve.answers["GET", f"{BASE}/config"] = [(status, "Gateway", body)]
    with pytest.raises(RingmasterError, match="something that is not Proxmox VE's"):
        run(options)


@pytest.mark.parametrize("host", ["127.0.0.1:{}", "https://127.0.0.1:{}", "https://127.0.0.1:{}/", "127.0.0.1:{}\n", " 127.0.0.1:{}/"])
@pytest.mark.parametrize("who", ["options", "root"])
def test_a_host_as_a_browser_has_it(pve, request, host, who):
    pve.container(CONFIG)
    given = request.getfixturevalue(who)
    assert run({**given, "api_host": host.format(given["api_port"]), "api_port": 1})["changed"] is False


@pytest.mark.parametrize("end", ["\n", "\r\n", " "])
@pytest.mark.parametrize("option", ["api_token_id", "api_token_secret", "api_user"])
def test_a_line_end_behind_who_asks(pve, options, option, end):
    """As `echo SECRET | ansible-vault encrypt_string` leaves it."""
    pve.container(CONFIG)
    given = {"api_user": "root@pam", **options}
    assert run({**given, option: given[option] + end})["changed"] is False
    assert pve.headers["Authorization"] == "PVEAPIToken=root@pam!t=x"


def test_a_line_end_behind_root_leaves_him_root(pve, root):
    pve.container({**CONFIG, "dev0": "/dev/nvidia0"})
    assert run({**root, "api_user": "root@pam\n", "devices": []}, check_mode=True)["changed"] is True


@pytest.mark.parametrize("body", ["<html></html>", '{"data": {}}', '{"data": null}'])
def test_a_login_that_is_not_proxmox(pve, root, body):
    pve.answers["POST", "/access/ticket"] = [(200, "OK", body)]
    with pytest.raises(RingmasterError, match="something that is not Proxmox VE's"):
        run(root)


@pytest.mark.parametrize(
    ("status", "words"), [(596, "cannot reach what carries out the login"), (502, "Something before .* answers the login")]
)
def test_a_login_that_the_server_cannot_answer(pve, root, status, words):
    pve.answers["POST", "/access/ticket"] = [(status, "Broken pipe", "")]
    with pytest.raises(RingmasterError, match=words) as caught:
        run(root)
    assert "authentication failure" not in str(caught.value)


def test_a_network_as_proxmox_writes_it_back(pve, options):
    pve.container({**CONFIG, "net0": "name=eth0,bridge=vmbr0,gw=192.0.2.1,hwaddr=BC:24:11:2C:3C:37,ip=192.0.2.21/24,type=veth"})
    assert run({**options, "networks": WHOLE["networks"]})["changed"] is False


def test_a_mount_as_proxmox_writes_it_back(pve, options):
    """Its volume, its size and its order are PVE's; storage:size is satisfied by it, so no volume is made at each run."""
    pve.container({**CONFIG, "mp0": "local-zfs:subvol-101-disk-1,mp=/data/,backup=1,size=2097152K"})
    mounts = [{"source": "local-zfs:2", "target": "/data", "backup": True}]
    assert run({**options, "mounts": mounts})["changed"] is False
    assert pve.writes() == []

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Without api_host: pvesh on the node, through proxmoxer's local backend. pvesh is a stand-in that asks the fake API as root@pam.

It does what makes the real one different from HTTPS: it runs a task to its end before it prints its name, prints the task's log first, and
writes warnings to its error output though all went well."""

from __future__ import annotations

import json
import os
import shlex
import sys

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from pve_lab import WHOLE, calls, info, run, writes

PVESH = """#!{python}
import json, ssl, sys, time, urllib.error, urllib.parse, urllib.request

HOST, CA = {host!r}, {ca!r}
METHODS = {{"get": "GET", "create": "POST", "set": "PUT", "delete": "DELETE"}}
context = ssl.create_default_context(cafile=CA)


def call(method, path, arguments, headers={{}}):
    text = urllib.parse.urlencode(arguments)
    query = "?" + text if method in ("GET", "DELETE") else ""
    body = None if query else text.encode()
    request = urllib.request.Request(HOST + "/api2/json" + path + query, data=body, method=method, headers=headers)
    with urllib.request.urlopen(request, context=context) as answer:
        return json.load(answer)["data"]


command, path, *rest = sys.argv[1:]
assert rest[-2:] == ["--output-format", "json"]
arguments = {{name[1:]: value for name, value in zip(rest[:-2:2], rest[1:-2:2])}}
try:
    login = call("POST", "/access/ticket", {{"username": "root@pam", "password": "secret"}})
    headers = {{"Cookie": "PVEAuthCookie=" + login["ticket"], "CSRFPreventionToken": login["CSRFPreventionToken"]}}
    data = call(METHODS[command], path, arguments, headers)
except urllib.error.HTTPError as error:
    told = json.load(error)
    sys.stderr.write(told["message"].strip() + "\\n" + "".join(f"{{k}}: {{v}}\\n" for k, v in (told.get("errors") or {{}}).items()))
    sys.exit(2)
if "{warning}":
    sys.stderr.write("{warning}\\n")
if isinstance(data, str) and data.startswith("UPID:"):
    node = data.split(":")[1]
    while call("GET", f"/nodes/{{node}}/tasks/{{data}}/status", {{}}, headers)["status"] != "stopped":
        time.sleep(0.05)
    for row in call("GET", f"/nodes/{{node}}/tasks/{{data}}/log", {{}}, headers):
        print(row["t"])
if data is not None:
    print(json.dumps(data))
"""


@pytest.fixture
def node(lab, pve, tmp_path, monkeypatch):
    """This machine as the node pve1: puts pvesh on PATH; node(warning) makes it write a warning each time."""

    def put(warning=""):
        script = tmp_path / "pvesh"
        script.write_text(PVESH.format(python=sys.executable, host=pve.url, ca=lab.ca, warning=warning))
        script.chmod(0o755)

    put()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return put


LOCAL = {"vmid": 101, "api_host": "", "node": "pve1"}


def test_all_that_root_may_from_the_node_itself(pve, node):
    options = {**LOCAL, **WHOLE, "state": "started"}
    foretold = run(options, check_mode=True)
    assert writes(pve) == []
    done = run(options)
    assert (done["status"], done["diff"]) == ("running", foretold["diff"])
    assert [task["type"] for task in done["tasks"]] == ["vzcreate", "vzstart"]
    assert pve.ct(101).config["dev0"] == "/dev/nvidia0,mode=0666"
    assert pve.ct(101).config["description"] == "serves\nmodels"
    pve.requests.clear()
    assert run(options)["changed"] is False
    assert writes(pve) == []
    assert run({**LOCAL, "memory": 1024, "devices": []})["changed"] is True
    (found,) = info({"api_host": "", "vmid": 101})
    assert found["config"]["devices"] == []
    assert run({**LOCAL, "state": "absent", "force": True})["status"] == "absent"


def test_warnings_of_pvesh_are_no_failure(pve, node):
    """proxmoxer takes anything on the error output for a failure."""
    node("WARN: something of no matter")
    options = {**LOCAL, **WHOLE, "state": "started"}
    assert run(options)["status"] == "running"
    assert run({**options, "memory": 1024})["config"]["memory"] == 1024
    assert run(options)["changed"] is True


def test_errors_of_pvesh_are_told_as_those_of_the_api(pve, node):
    pve.add_ct(101)
    pve.lose_quorum()
    with pytest.raises(RingmasterError, match="lost its quorum"):
        run({**LOCAL, "memory": 1024})
    pve.regain_quorum()
    pve.ct(101).start_error = "Could not get mode or device ID of /dev/nvidia-uvm"
    with pytest.raises(RingmasterError, match="Task vzstart of container 101 failed on node pve1: Node pve1 has no device /dev/nvidia-uvm"):
        run({**LOCAL, "state": "started"})
    with pytest.raises(RingmasterError, match="hostname:"):
        run({**LOCAL, "hostname": "in fer"})
    assert run({**LOCAL, "vmid": 999, "state": "absent"})["changed"] is False


def test_the_node_itself_is_where_it_is_made(pve, node, monkeypatch):
    pve.add_node("pve2")
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "pve2.example.net", "", "", "")))
    assert run({**LOCAL, **WHOLE, "node": None})["node"] == "pve2"


def test_a_password_is_not_put_on_a_command_line(pve, node):
    with pytest.raises(RingmasterError, match="command line of pvesh.*ssh_public_keys"):
        run({**LOCAL, **WHOLE, "password": "geheim!"})
    assert calls(pve, "POST") == []


def test_no_node(pve, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RingmasterError, match="no node of Proxmox VE: it has no pvesh. Give api_host, or delegate"):
        run({"vmid": 101})


def test_not_root(node, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(RingmasterError, match="pvesh needs root.*become: true"):
        run(LOCAL)


def test_a_task_that_outlasts_the_call(pve, node, monkeypatch):
    """pvesh waits for the task itself. When its time is over the task is found, and goes on."""
    pve.time_scale = 1
    pve.ct_secs["create"] = 9
    monkeypatch.setattr("ansible_collections.ringmaster.gpu.plugins.module_utils.pve_client.PVESH_MARGIN_S", -1)
    with pytest.raises(RingmasterError, match="vzcreate of container 101 has not ended in 5 s. It goes on by itself"):
        run({**LOCAL, **WHOLE, "timeout_s": 5, "api_timeout": 1})
    done = run({**LOCAL, **WHOLE})
    assert (done["changed"], done["config"]["hostname"]) == (False, "infer1")


def test_the_stand_in_is_called_as_the_real_one(pve, node, tmp_path, monkeypatch):
    """What proxmoxer runs: pvesh METHOD PATH -name value ... --output-format json."""
    record = tmp_path / "record"
    (tmp_path / "pvesh").write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {shlex.quote(str(record))}\necho {shlex.quote(json.dumps([]))}\n')
    run({**LOCAL, "node": None, "state": "absent"})
    assert record.read_text() == "get /cluster/resources -type vm --output-format json\n"

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fake Proxmox VE over real HTTPS on the loopback, and the module run against it with the options that a task would give.

Only what fakepve does not do by itself is here; what it gets wrong is in the contract cases (test_pve_contract.py)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.ringmaster.gpu.plugins.module_utils import pve_apply, pve_client, pve_guest
from ansible_collections.ringmaster.gpu.plugins.modules import proxmox_container, proxmox_container_info
from fakepve import FakePve, settle
from fakepve.certs import make_cert

TEMPLATE = "local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst"
SECRETS = {"root@pam!ansible": "11111111-root", "ansible@pve!fleet": "22222222-fleet"}
PRIVILEGES = [
    *(f"VM.{name}" for name in ("Allocate", "Audit", "PowerMgmt")),
    *(f"VM.Config.{name}" for name in ("Disk", "CPU", "Memory", "Network", "Options")),
    *("Datastore.AllocateSpace", "Datastore.Audit", "SDN.Use", "Sys.Audit", "Pool.Audit", "Pool.Allocate"),
]
GPU = [{"path": "/dev/nvidia0", "mode": "0666"}, {"path": "/dev/nvidiactl", "mode": "0666"}, {"path": "/dev/nvidia-uvm", "mode": "0666"}]
WHOLE = {
    "vmid": 101,
    "ostemplate": TEMPLATE,
    "rootfs": {"storage": "local-lvm", "size_gib": 8},
    "hostname": "infer1",
    "description": "serves\nmodels",
    "tags": ["sglang", "GPU"],
    "cores": 4,
    "memory": 2048,
    "swap": 0,
    "onboot": True,
    "features": {"nesting": True},
    "devices": GPU,
    "mounts": [
        {"source": "/tank/models", "target": "/models", "read_only": True},
        {"source": "local-lvm", "target": "/var/cache", "size_gib": 2},
    ],
    "networks": [{"name": "eth0", "bridge": "vmbr0", "ip": "192.0.2.21/24", "gateway": "192.0.2.1"}],
    "nameserver": ["192.0.2.53"],
    "extra": {"startup": "order=2,up=5", "protection": False},
}


class Lab:
    """pve: the fake, in a thread of its own. ca: the file that its certificate can be checked with."""

    def __init__(self, directory: str) -> None:
        self.ca, self._key, _der = make_cert(directory, hosts=("127.0.0.1",))
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def start(self) -> FakePve:
        pve = FakePve(host="127.0.0.1", port=0)
        pve.storages["local-lvm"]["avail"] = 100 << 30
        template = {"content": "vztmpl", "size": 130 << 20, "format": "tzst", "ctime": 1}
        pve.storages["local"]["volumes"] = {TEMPLATE.partition(":")[2]: template}
        pve.apitokens.update(SECRETS)
        pve.grant("ansible@pve!fleet", "/", *PRIVILEGES)
        self.call(pve.start(self.ca, self._key))
        return pve

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def later(self, seconds: float, function: Any, *arguments: Any) -> None:
        """FUNCTION(*ARGUMENTS) in the thread of the fake, after so many seconds."""
        self.loop.call_soon_threadsafe(self.loop.call_later, seconds, function, *arguments)

    def close(self) -> None:
        async def end():
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await settle()

        self.call(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(30)
        self.loop.close()


def login(pve: FakePve, ca: str, token: str = "") -> dict[str, Any]:
    """The options of the API: with TOKEN, or with a ticket of root."""
    options = {"api_host": "127.0.0.1", "api_port": pve.port, "ca_path": ca, "api_timeout": 5}
    if token:
        return {**options, "api_token_id": token, "api_token_secret": SECRETS[token]}
    return {**options, "api_user": "root@pam", "api_password": "secret"}


def checked(module: Any, options: dict[str, Any]) -> dict[str, Any]:
    """OPTIONS as the module gets them, with defaults and types of its argument spec."""
    result = ArgumentSpecValidator(module.argument_spec(), required_together=pve_client.TOGETHER).validate(options)
    assert not result.error_messages, result.error_messages
    return result.validated_parameters


def run(options: dict[str, Any], check_mode: bool = False) -> dict[str, Any]:
    """The result of the module proxmox_container, with its warnings. Raises what a user would be told."""
    params = checked(proxmox_container, options)
    result, warnings = pve_apply.run(pve_client.connect(params, params["timeout_s"]), params, check_mode)
    json.dumps(result)  # or the module could not answer
    return {**result, "warnings": warnings}


def info(options: dict[str, Any]) -> list[dict[str, Any]]:
    params = checked(proxmox_container_info, options)
    containers = pve_guest.survey(pve_client.connect(params), params)
    json.dumps(containers)
    return containers


def calls(pve: FakePve, *methods: str) -> list[tuple[str, str, dict[str, str]]]:
    """(method, path, arguments) of the requests of these METHODS so far, logins apart."""
    found = []
    for method, path, body in pve.requests:
        if method in methods and not path.endswith("/access/ticket"):
            found.append((method, path.partition("/api2/json")[2], dict(urllib.parse.parse_qsl(body.decode(), keep_blank_values=True))))
    return found


def writes(pve: FakePve) -> list[tuple[str, str, dict[str, str]]]:
    return calls(pve, "POST", "PUT", "DELETE")


@contextlib.contextmanager
def served(lab: Lab) -> Iterator[FakePve]:
    """A fresh fake for one test, its answers settled when it ends."""
    pve = lab.start()
    try:
        yield pve
    finally:
        lab.call(settle())
        lab.call(pve.stop())


def reroute(pve, method, suffix, function):
    """Let FUNCTION answer a route that the fake has bound already."""
    for route in pve.runner.app.router.routes():
        if route.method == method and route.resource.canonical.endswith(f"/nodes/{{node}}{suffix}"):
            route._handler = pve._lxc_handler(function)

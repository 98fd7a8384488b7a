# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API of Proxmox VE through proxmoxer: over HTTPS with a token or a ticket, or through pvesh on the node itself.

The one file that imports proxmoxer and requests. proxmoxer's SSH backends are not used: one takes any host key, the other needs a package
that nobody maintains; who wants SSH delegates the task to the node."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import traceback
from typing import Any

from ansible.module_utils.basic import env_fallback

from .errors import RingmasterError
from .pve_errors import PveError, explain

IMPORT_ERRORS = {}
try:
    import requests
except ImportError:
    requests = None
    IMPORT_ERRORS["requests"] = traceback.format_exc()
try:
    from proxmoxer import ProxmoxAPI
    from proxmoxer.core import AuthenticationError, ResourceException
except ImportError:
    ProxmoxAPI = None
    IMPORT_ERRORS["proxmoxer"] = traceback.format_exc()

TOGETHER = [("api_token_id", "api_token_secret")]
ENVIRONMENT = {
    "api_host": ("PROXMOX_HOST", {"type": "str"}),
    "api_port": ("PROXMOX_PORT", {"type": "int", "default": 8006}),
    "api_user": ("PROXMOX_USER", {"type": "str"}),
    "api_password": ("PROXMOX_PASSWORD", {"type": "str", "no_log": True}),
    "api_token_id": ("PROXMOX_TOKEN_ID", {"type": "str", "no_log": False}),
    "api_token_secret": ("PROXMOX_TOKEN_SECRET", {"type": "str", "no_log": True}),
    "validate_certs": ("PROXMOX_VALIDATE_CERTS", {"type": "bool", "default": True}),
    "ca_path": ("PROXMOX_CA_PATH", {"type": "path"}),
    "api_timeout": ("PROXMOX_API_TIMEOUT", {"type": "int", "default": 30}),
}
PVESH_MARGIN_S = 30  # that a call of pvesh takes beyond the task which it waits for
UPID = re.compile(r"UPID:[^\s\"']+")


def argument_spec() -> dict[str, Any]:
    """The options that say how the API is reached."""
    return {name: {**spec, "fallback": (env_fallback, [variable])} for name, (variable, spec) in ENVIRONMENT.items()}


def missing(params: dict[str, Any]) -> tuple[str | None, str | None]:
    """The library that PARAMS need and this Python lacks, with the traceback; else (None, None)."""
    needed = ("proxmoxer", "requests") if params["api_host"] else ("proxmoxer",)
    return next(((name, IMPORT_ERRORS[name]) for name in needed if name in IMPORT_ERRORS), (None, None))


class Api:
    """identity: as PVE compares it (`root@pam`, `root@pam!token`). host: what is asked, for messages. local: through pvesh."""

    def __init__(self, api: Any, identity: str, host: str, local: bool) -> None:
        self._api, self.identity, self.host, self.local = api, identity, host, local

    def get(self, path: str, **arguments: Any) -> Any:
        try:
            return self._call("GET", path, arguments)
        except PveError as error:
            if error.kind != "cut":  # a kept connection that the server has closed meanwhile
                raise
            return self._call("GET", path, arguments)

    def post(self, path: str, **arguments: Any) -> Any:
        return self._call("POST", path, arguments)

    def put(self, path: str, **arguments: Any) -> Any:
        return self._call("PUT", path, arguments)

    def delete(self, path: str, **arguments: Any) -> Any:
        return self._call("DELETE", path, arguments)

    def _call(self, method: str, path: str, arguments: dict[str, Any]) -> Any:
        facts = self._facts(method, path, arguments)
        try:
            answer = getattr(self._api(path), method.lower())(**arguments)
        except ResourceException as error:
            return self._refused(error, facts)
        except AuthenticationError as error:  # a ticket that could not be renewed
            raise _login_error(error, facts) from error
        except (subprocess.TimeoutExpired, OSError) as error:
            raise connection_error(error, facts) from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # JSON, but no object
            raise _no_pve(facts) from error
        if isinstance(answer, dict) and set(answer) == {"errors"}:  # what proxmoxer makes of an answer that is no JSON
            if not self.local or answer["errors"]:
                raise _no_pve(facts)
            return None
        return answer

    def _refused(self, error: Any, facts: dict[str, str]) -> Any:
        """What a failed call answered after all, or its error."""
        text = error.content if isinstance(error.content, str) else str(error.content)
        if self.local:  # proxmoxer takes all that pvesh writes to its error output, warnings too, for a failure
            task = UPID.findall(text)
            if task or error.exit_code == 0:
                return task[-1] if task else _json_at_the_end(text)
        fields = error.errors if isinstance(error.errors, dict) and not isinstance(error.errors.get("errors"), bytes) else {}
        raise explain(text, status=error.status_code, fields={str(name): str(value) for name, value in fields.items()}, **facts) from error

    def _facts(self, method: str, path: str, arguments: dict[str, Any]) -> dict[str, str]:
        node = re.search(r"nodes/([^/]+)", path)
        vmid = re.search(r"lxc/(\d+)", path)
        return {
            "identity": self.identity,
            "host": self.host,
            "node": node.group(1) if node else "",
            "vmid": vmid.group(1) if vmid else str(arguments.get("vmid", "")),
            "call": f"{method} /{path}",
        }


def connect(params: dict[str, Any], task_timeout_s: float = 0) -> Api:
    """The API that PARAMS name. Raises RingmasterError when it cannot be reached or does not accept them."""
    if not params["api_host"]:
        return _local(max(params["api_timeout"], task_timeout_s + PVESH_MARGIN_S))
    user, token = _identity(params)
    host, port = _address(params)
    where = f"https://{host}:{port}"
    verify: Any = params["validate_certs"]
    if verify and params["ca_path"]:
        verify = params["ca_path"]
        if not os.access(verify, os.R_OK):
            raise RingmasterError(f"ca_path: {verify} cannot be read.", "Give a file that is there, as PEM.")
    token_secret = _header(params, "api_token_secret")
    secret = {"token_name": token, "token_value": token_secret} if token else {"password": params["api_password"]}
    identity = f"{user}!{token}" if token else user
    facts = {"identity": identity, "host": where, "node": "", "vmid": "", "call": "the login"}
    try:
        api = ProxmoxAPI(host, port=port, user=user, verify_ssl=verify, timeout=params["api_timeout"], backend="https", **secret)
    except AuthenticationError as error:
        raise _login_error(error, facts) from error
    except json.JSONDecodeError as error:
        raise _no_pve(facts) from error
    except OSError as error:  # all that requests raises is one
        raise connection_error(error, facts) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _no_pve(facts) from error
    return Api(api, identity, where, local=False)


def _json_at_the_end(text: str) -> Any:
    """What pvesh printed after whatever else it printed, or None when that was no JSON."""
    rows = text.splitlines()
    for start in range(len(rows)):
        with contextlib.suppress(ValueError):
            return json.loads("\n".join(rows[start:]))
    return None


def _address(params: dict[str, Any]) -> tuple[str, int]:
    """Host (an IPv6 address in brackets) and port. api_host may be as the address line of a browser has it."""
    text = re.sub(r"(?i)^https://|/$", "", params["api_host"].strip())
    if text.count(":") > 1 and not text.startswith("["):
        text = f"[{text}]"
    found = re.fullmatch(r"(\[[\w:.%-]+\]|[\w.-]+)(?::(\d+))?", text)
    if not found:
        raise RingmasterError(
            f"api_host is {re.sub('.*@', '...@', text)!r}, which is no host.",  # before an @ may stand a password
            "Give a name or an address, such as pve1 or 2001:db8::1, with or without https:// and :PORT; not http://, and no path.",
        )
    return found[1], int(found[2] or params["api_port"])


def _header(params: dict[str, Any], option: str) -> str:
    """The text of OPTION, which is sent in a header, without the line end that a file or a vault brings along."""
    text = (params[option] or "").strip()
    if not re.fullmatch(r"[ -~\xa0-\xff]*", text):
        raise RingmasterError(
            f"{option} has a character in it that cannot be sent: a line break, another control character, or one outside of Latin-1.",
            "Give it as Proxmox VE showed it, in one line.",
        )
    return text


def _identity(params: dict[str, Any]) -> tuple[str, str]:
    """User with realm, and the name of the token or ""."""
    user, token = _header(params, "api_user"), _header(params, "api_token_id")
    if "!" in token:
        owner, _mark, token = token.partition("!")
        if user and user != owner:
            raise RingmasterError(
                f"api_token_id names {owner}, api_user is {user}.", "Give the name of the token alone, or leave api_user out."
            )
        user = owner
    if "@" not in user:
        raise RingmasterError(f"api_user is {user!r}.", "Give a user with realm, such as root@pam (or PROXMOX_USER).")
    if token and params["api_password"]:
        raise RingmasterError(
            "Both api_password and api_token_id are given, in the task or the environment (PROXMOX_PASSWORD, PROXMOX_TOKEN_ID).",
            "Give one of the two: devices and bind mounts need the password of root@pam. An empty one is none.",
        )
    if not token and not params["api_password"]:
        raise RingmasterError(
            "api_host is given, but neither api_password nor api_token_id with api_token_secret.",
            "Give one of the two, or leave api_host out and run the task on the node.",
        )
    return user, token


def _local(timeout_s: float) -> Api:
    if not shutil.which("pvesh"):
        raise RingmasterError(
            f"api_host is not given, and this machine ({os.uname().nodename}) is no node of Proxmox VE: it has no pvesh.",
            "Give api_host, or delegate the task to a node (delegate_to).",
        )
    if os.geteuid() != 0:
        raise RingmasterError("pvesh needs root.", "Run the task with become: true, or give api_host.")
    try:
        api = ProxmoxAPI(backend="local", service="PVE", timeout=timeout_s)
    except (NotImplementedError, ImportError) as error:
        raise RingmasterError("The proxmoxer of this node is older than 2.0.", "Install a newer one, or give api_host.") from error
    return Api(api, "root@pam", f"pvesh on {os.uname().nodename}", local=True)


def _login_error(error: Exception, facts: dict[str, str]) -> PveError:
    if "TFA" in str(error):
        return PveError(
            f"{facts['identity']} has a second factor, which a ticket cannot be got with here.",
            "Use an API token, or another user, or leave api_host out and run the task on the node.",
            status=401,
        )
    code = re.search(r"code: (\d+)", str(error))
    status = int(code.group(1)) if code else 401
    return explain("authentication failure" if status == 401 else "", status=status, **facts)


def _no_pve(facts: dict[str, str]) -> PveError:
    return PveError(
        f"{facts['host']} answers {facts['call']} with something that is not Proxmox VE's.",
        "Check api_host and api_port (8006), and what stands between (a proxy).",
        status=502,
    )


def connection_error(error: Exception, facts: dict[str, str]) -> PveError:
    """The error for a connection that failed with ERROR."""
    host, call, text = facts["host"], facts["call"], str(error)
    if isinstance(error, subprocess.TimeoutExpired):
        return PveError(f"pvesh has not ended {call} in {error.timeout:g} s.", "It goes on. Look at the tasks of the node.", kind="timeout")
    in_tls = requests is not None and isinstance(error, requests.exceptions.SSLError)
    if in_tls and re.search("WRONG_VERSION|HTTP_REQUEST|RECORD_LAYER", text):
        return PveError(f"{host} does not speak TLS: {_last(text)}.", "Check api_host and api_port (8006).", kind="tls")
    if in_tls and not re.search("EOF|SSLZeroReturn", text):  # these are a connection that is cut while it begins
        return PveError(
            f"The certificate of {host} is not trusted: {_last(text)}.",
            "Give the cluster's CA as ca_path (/etc/pve/pve-root-ca.pem of a node), and api_host as the certificate names it.",
            kind="tls",
        )
    if requests is not None and isinstance(error, requests.exceptions.ConnectTimeout):
        return PveError(f"{host} does not answer at all.", "Check api_host, api_port and the firewall between.", kind="refused")
    if requests is not None and isinstance(error, requests.exceptions.Timeout):
        remedy = "The node is slow or hangs: look at its load and at pveproxy; give more api_timeout if it is only slow."
        return PveError(f"{host} has not answered {call} in time (api_timeout).", remedy, kind="timeout")
    if isinstance(error, ValueError):
        return PveError(f"{host} cannot be an address.", "Check api_host.", kind="name")
    for words, what, remedy, kind in (
        ("refused", f"{host} refuses connections.", "Check api_host and api_port; is pveproxy running there?", "refused"),
        ("resol|Name or service|getaddrinfo", f"The name of {host} is not known.", "Check api_host.", "name"),
        ("unreachable|No route", f"{host} is unreachable.", "Check the network to api_host.", "refused"),
    ):
        if re.search(words, text):
            return PveError(what, remedy, kind=kind)
    remedy = "Whether it was carried out is not known. Run again when the API answers: only what is missing is done."
    return PveError(f"{host} closed the connection before it answered {call}: {_last(text)}.", remedy, kind="cut")


def _last(text: str) -> str:
    """The part of a message of requests that says something."""
    return (re.findall(r"[\w ,.'\[\]-]{12,}", text) or [text])[-1].strip(" .'")

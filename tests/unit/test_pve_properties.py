# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Property strings of Proxmox VE: what is the same, in both directions, and what is written."""

from __future__ import annotations

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import pve_properties as properties
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

SAME = [
    ("mp", "/a,mp=/b", "mp=/b,volume=/a"),  # the nameless token, and order
    ("mp", "local:1/v.raw,mp=/b,size=8G", "local:1/v.raw,mp=/b,size=8192M"),
    ("mp", "local:1/v.raw,mp=/b", "local:1/v.raw,mp=/b,size=8G"),  # PVE adds the size
    ("mp", "/a,mp=/b,ro=1", "/a,mp=/b,ro=yes"),
    ("mp", "/a,mp=/b,ro=0", "/a,mp=/b"),
    ("mp", "/a,mp=/b,replicate=1", "/a,mp=/b"),
    ("mp", "/a,mp=/b,mountoptions=noatime;nodev", "/a,mp=/b,mountoptions=nodev;noatime"),
    ("mp", "/a,mp=/b", "/a,mp=/b,keepattrs=1"),  # nobody can ask for it here, so it stays
    ("mp", "/a/b,mp=/c/d", "/a//b/,mp=/c/./d/"),
    ("dev", "/dev/nvidia0", "path=/dev/nvidia0"),
    ("dev", "/dev/nvidia0", "/dev//nvidia0"),
    ("dev", "/dev/nvidia0,mode=0660,uid=0", "/dev/nvidia0"),
    ("net", "name=eth0,bridge=vmbr0", "bridge=vmbr0,hwaddr=BC:24:11:00:00:01,name=eth0,type=veth"),
    ("net", "name=eth0,hwaddr=bc:24:11:00:00:01", "name=eth0,hwaddr=BC:24:11:00:00:01"),
    ("net", "name=eth0,ip=manual", "name=eth0"),
    ("net", "name=eth0,rate=10", "name=eth0,rate=10.0"),
    ("features", "nesting=1", "nesting=1,keyctl=0"),
    ("features", "nesting=1,mount=nfs;cifs", "mount=cifs;nfs,nesting=on"),
]
DIFFERENT = [
    ("features", "nesting=1", "nesting=1,keyctl=1"),  # a token that was dropped
    ("features", "nesting=1,keyctl=1", "nesting=1"),
    ("features", "", "mount=nfs"),
    ("mp", "/a,mp=/b", "/a,mp=/b,ro=1"),
    ("mp", "/a,mp=/b,ro=1", "/a,mp=/b"),
    ("mp", "/a,mp=/b", "/c,mp=/b"),
    ("mp", "local:a//b,mp=/b", "local:a/b,mp=/b"),  # a volume is no path
    ("mp", "/a,mp=/b,acl=0", "/a,mp=/b"),  # neither on nor off is a third thing
    ("mp", "/a,mp=/b", "/a,mp=/b,mountoptions=noatime"),
    ("dev", "/dev/nvidia0", "/dev/nvidia0,mode=0666"),
    ("dev", "/dev/nvidia0,gid=44", "/dev/nvidia0"),
    ("dev", "/dev/nvidia0,deny-write=1", "/dev/nvidia0"),
    ("net", "name=eth0", "name=eth0,tag=7"),
    ("net", "name=eth0,hwaddr=BC:24:11:00:00:02", "name=eth0,hwaddr=BC:24:11:00:00:01"),
    ("net", "name=eth0,bridge=vmbr0", "name=eth0,bridge=vmbr1"),
]


@pytest.mark.parametrize(("kind", "wanted", "current"), SAME)
def test_the_same(kind, wanted, current):
    assert properties.same(kind, properties.parse(kind, wanted), properties.parse(kind, current))


@pytest.mark.parametrize(("kind", "wanted", "current"), DIFFERENT)
def test_a_difference(kind, wanted, current):
    assert not properties.same(kind, properties.parse(kind, wanted), properties.parse(kind, current))


@pytest.mark.parametrize(
    ("kind", "given", "text"),
    [
        ("dev", {"path": "/dev/nvidia0", "mode": "0666", "uid": "0", "deny-write": "0"}, "/dev/nvidia0,mode=0666"),
        ("mp", {"mp": "/b", "ro": "yes", "volume": "/a", "backup": "0", "replicate": "1"}, "/a,mp=/b,ro=1"),
        ("mp", {"mp": "/b", "volume": "/a", "replicate": "0"}, "/a,mp=/b,replicate=0"),
        ("net", {"bridge": "vmbr0", "name": "eth0", "tag": "7"}, "name=eth0,bridge=vmbr0,tag=7"),
        ("features", {"keyctl": "0", "nesting": "1"}, "nesting=1"),
        ("features", {"keyctl": "0"}, ""),
    ],
)
def test_what_is_written(kind, given, text):
    assert properties.render(kind, given) == text


def test_a_changed_network_keeps_its_mac_address_and_what_this_table_does_not_know():
    current = properties.parse("net", "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:01,type=veth,host-managed=1,tag=7")
    kept = properties.kept("net", {"name": "eth0", "bridge": "vmbr1"}, current)
    assert properties.render("net", kept) == "name=eth0,bridge=vmbr1,host-managed=1,hwaddr=BC:24:11:00:00:01,type=veth"


@pytest.mark.parametrize(
    ("text", "size"),
    [("8G", 8 << 30), ("8192M", 8 << 30), ("0.5G", 1 << 29), ("1T", 1 << 40), ("4096", 4096), ("8g", 8 << 30), ("x", None), ("", None)],
)
def test_sizes(text, size):
    assert properties.size_bytes(text) == size


@pytest.mark.parametrize(("size", "text"), [(8 << 30, "8G"), (1 << 29, "512M"), (1 << 40, "1T"), (4096, "4K"), (1000, "1000")])
def test_sizes_as_proxmox_writes_them(size, text):
    assert properties.size_text(size) == text
    assert properties.size_bytes(text) == size


@pytest.mark.parametrize(
    ("value", "found"), [("1", True), ("on", True), ("YES", True), (0, False), ("off", False), ("maybe", None), (True, True)]
)
def test_booleans(value, found):
    assert properties.truth(value) is found


@pytest.mark.parametrize(
    ("type_", "wanted", "current"),
    [
        ("note", "foo", "foo\n"),  # PVE ends each line of a description with a new line
        ("note", "two\nlines", "two\nlines\n"),
        ("set", "gpu;sglang", "SGLang;GPU"),
        ("words", "192.0.2.1 192.0.2.2", "192.0.2.1,192.0.2.2"),
        ("startup", "order=1,up=30", "up=30,order=1"),
        ("startup", "order=1", "1"),
        ("bool", True, "1"),
        ("number", "2", "2.0"),
    ],
)
def test_values_that_mean_the_same(type_, wanted, current):
    assert properties.same_value(properties.Token(type_), wanted, current)


@pytest.mark.parametrize(
    ("type_", "wanted", "current"),
    [
        ("note", "foo", "foo\nbar\n"),
        ("words", "a b", "b a"),
        ("set", "a", "a;b"),
        ("bool", "0", "1"),
        ("text", "a", None),
        ("int", "1", "2"),
    ],
)
def test_values_that_differ(type_, wanted, current):
    assert not properties.same_value(properties.Token(type_), wanted, current)


@pytest.mark.parametrize(("given", "mode"), [("0666", "0666"), ("666", "0666"), (0o666, "0666"), (0, "0000"), ("0660", "0660")])
def test_modes(given, mode):
    """An unquoted 0666 is a number in YAML; what it means is kept."""
    assert properties.octal_mode(given) == mode


@pytest.mark.parametrize("given", ["rw", "0888", "06666", 666, True, -1, ""])
def test_modes_that_are_none(given):
    with pytest.raises(RingmasterError, match="quotes"):
        properties.octal_mode(given)

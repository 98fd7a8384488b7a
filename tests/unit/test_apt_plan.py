# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What apt_plan reads out of apt's own words, the choices it makes, and the real apt of this machine asked for nothing and for nonsense."""

from __future__ import annotations

import shutil

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import apt_plan, apt_run

STEPS = """\
NOTE: This is only a simulation!
Inst libcuda1 [580.95.05-1] (580.105.08-1 NVIDIA:1.0 [amd64]) []
Inst nvidia-kernel-open-dkms (580.105.08-1 NVIDIA:1.0 [amd64])
Remv nvidia-kernel-dkms [580.95.05-1]
Conf libcuda1 (580.105.08-1 NVIDIA:1.0 [amd64])
"""
POLICY = """\
nvidia-driver-cuda:
  Installed: 580.95.05-1
  Candidate: 580.105.08-1
  Version table:
     590.48.01-1 500
        500 file:/repo  Packages
     580.105.08-1 1001
        500 file:/repo  Packages
 *** 580.95.05-1 100
        100 /var/lib/dpkg/status
linux-headers-generic:
  Installed: (none)
  Candidate: (none)
  Version table:
proxmox-headers-6.8.12-4-pve:
  Installed: (none)
  Candidate: 6.8.12-4
  Version table:
     6.8.12-4 500
        500 file:/repo  Packages
"""
KNOWN = {
    "nvidia-driver-cuda": ["590.48.01-1", "580.105.08-1", "580.95.05-1"],
    "linux-headers-generic": [],
    "proxmox-headers-6.8.12-4-pve": ["6.8.12-4"],
}
UNMET = """\
Reading package lists...
Some packages could not be installed. This may mean that you have
requested an impossible situation.
The following packages have unmet dependencies:
 nvidia-driver-cuda : Depends: libcuda1 (= 585.1-1) but 580.105.08-1 is to be installed
W: a warning
E: Unable to correct problems, you have held broken packages.
"""


def test_steps():
    assert apt_plan.parse_steps(STEPS) == [
        {"name": "libcuda1", "action": "change", "before": "580.95.05-1", "after": "580.105.08-1"},
        {"name": "nvidia-kernel-open-dkms", "action": "install", "before": None, "after": "580.105.08-1"},
        {"name": "nvidia-kernel-dkms", "action": "remove", "before": "580.95.05-1", "after": None},
    ]


def test_a_removal_with_its_configuration_is_one():
    """As apt says it where APT::Get::Purge is set on the host."""
    assert apt_plan.parse_steps(STEPS.replace("Remv", "Purg")) == apt_plan.parse_steps(STEPS)


def test_versions_that_there_are():
    assert apt_plan.parse_policy(POLICY) == KNOWN
    assert apt_plan.parse_policy(POLICY.replace("590.48.01-1 500", "590.48.01-1 500 (phased 20%)")) == KNOWN


@pytest.mark.parametrize(
    ("wanted", "installed", "specs", "unknown"),
    [
        ("nvidia-driver-cuda=580.105.08-*", [], ["nvidia-driver-cuda=580.105.08-*"], []),
        ("nvidia-driver-cuda=580.105", [], [], ["nvidia-driver-cuda=580.105"]),
        ("linux-headers-generic", [], [], ["linux-headers-generic"]),
        ("pve-headers-6 | proxmox-headers-6.8.12-4-pve", [], ["proxmox-headers-6.8.12-4-pve"], []),
        ("nvidia-driver-cuda | proxmox-headers-6.8.12-4-pve", ["proxmox-headers-6.8.12-4-pve"], ["proxmox-headers-6.8.12-4-pve"], []),
        ("nvidia-driver-cuda | proxmox-headers-6.8.12-4-pve", [], ["nvidia-driver-cuda"], []),
    ],
)
def test_a_choice_of_what_there_is(wanted, installed, specs, unknown):
    assert apt_plan.choose([wanted], KNOWN, set(installed)) == (specs, unknown)


def test_installed_and_held():
    text = "libcuda1:amd64\t580.1-1\thold\tinstalled\ngone\t1\tdeinstall\tconfig-files\n\nbash\t5\tinstall\tinstalled\n"
    assert apt_plan.parse_installed(text) == [
        {"name": "libcuda1:amd64", "version": "580.1-1", "held": True},
        {"name": "bash", "version": "5", "held": False},
    ]


def test_the_state_afterwards_and_what_speaks_against_it():
    installed = [
        {"name": "libcuda1:amd64", "version": "580.95.05-1", "held": True},
        {"name": "nvidia-kernel-dkms", "version": "580.95.05-1", "held": True},
    ]
    steps = apt_plan.parse_steps(STEPS)
    assert apt_plan.after(steps, installed) == [
        {"name": "libcuda1:amd64", "version": "580.105.08-1", "held": True},
        {"name": "nvidia-kernel-open-dkms", "version": "580.105.08-1", "held": False},
    ]
    assert apt_plan.judge(steps, installed, [], ["nvidia-*"]) == []
    assert apt_plan.judge(steps, installed, [], ["libcuda1"]) == ["it would remove nvidia-kernel-dkms 580.95.05-1"]
    assert apt_plan.judge(steps, installed, ["libcuda1", "x"], ["*"]) == ["libcuda1 would be installed"]


# As apt 2.6 said it of repositories that were each spoilt in one way.
@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("W: GPG error: http://r/x InRelease: The following signatures couldn't be verified because the public key is not available: "
         "NO_PUBKEY BED6\nE: The repository 'http://r/x InRelease' is not signed.", "Another key signs it"),
        ("W: GPG error: http://r/x InRelease: The following signatures were invalid: EXPKEYSIG 797E61EBB537DFD3 Old <nobody@example.net>\n"
         "E: The repository 'http://r/x InRelease' is not signed.", "no longer good: give the one that signs it now"),
        ("W: OpenPGP signature verification failed: http://r/x InRelease: Sub-process /usr/bin/sqv returned an error code (1), "
         "error message is: Missing key EB69, which is needed to verify signature.\n"
         "E: The repository 'http://r/x InRelease' is not signed.",
         "Another key signs it"),
        ("W: OpenPGP signature verification failed: http://r/x InRelease: Sub-process /usr/bin/sqv returned an error code (1), "
         "error message is: Signing key on AE09 is not bound: because: SHA1 is not considered secure since 2026-02-01T00:00:00Z\n"
         "E: The repository 'http://r/x InRelease' is not signed.", "refuses keys and signatures of that kind"),
        ("E: Release file for http://r/x/InRelease is not valid yet (invalid for another 4h 59min 13s). Updates for this repository will "
         "not be applied.", "clock"),
        ("E: Release file for http://r/x/InRelease is expired (invalid since 2d 0h 0min 40s). Updates for this repository will not be "
         "applied.", "clock of this host"),
        ("E: Failed to fetch http://r/x/InRelease  Could not connect to r:8399 (10.77.0.1). - connect (111: refused)", "network"),
        ("E: Failed to fetch http://r/x/InRelease  Temporary failure resolving 'nowhere.invalid'", "network"),
        ("E: Conflicting values set for option Signed-By regarding source http://r/x/ /: /x.asc != /y.asc\n"
         "E: The list of sources could not be read.", "Two files in /etc/apt"),
        ("E: The repository 'http://r/x  Release' does not have a Release file.", "address of that repository (cuda_repository_url)"),
    ],
)  # fmt: skip
def test_what_a_repository_needs(said, words):
    assert words in apt_run.cure(said)
    reason = apt_run.refusal(said)
    assert all(line[3:].rstrip(".") in reason for line in said.splitlines())


def test_aptitudes_reason_in_one_line():
    assert apt_run.refusal(UNMET) == (
        "nvidia-driver-cuda : Depends: libcuda1 (= 585.1-1) but 580.105.08-1 is to be installed; "
        "Unable to correct problems, you have held broken packages"
    )
    assert "--configure -a" in apt_run.refusal(
        "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem.\n"
    )
    assert apt_run.refusal("") == "apt-get gave no reason"
    full = "".join(
        f"dpkg: error processing archive /tmp/{n}.deb (--unpack):\n cannot copy extracted data: failed to write (No space left on device)\n"
        for n in range(9)
    )
    said = apt_run.refusal(f"Unpacking x ...\n{full}Errors were encountered while processing:\n /tmp/0.deb\nE: Sub-process failed\n")
    assert said.startswith("dpkg: error processing archive /tmp/0.deb (--unpack): cannot copy extracted data: failed to write (No space")
    assert said.count("No space left on device") == 2
    assert said.endswith("; Sub-process failed")
    away = "".join(f"E: Failed to fetch http://r/{n}.deb  404  Not Found\n" for n in range(9))
    said = apt_run.refusal(f"{away}E: Unable to fetch some archives.\n")
    assert said == "; ".join([*(f"Failed to fetch http://r/{n}.deb  404  Not Found" for n in range(2)), "Unable to fetch some archives"])


needs_apt = pytest.mark.skipif(not all(map(shutil.which, ["apt-get", "apt-cache", "dpkg-query"])), reason="needs apt")


@needs_apt
def test_the_real_apt_is_asked_for_what_is_there():
    found = apt_plan.plan(["dpkg"], ["dpkg", "libapt-pkg*"])
    assert (found["unknown"], found["conflicts"], found["specs"]) == ([], [], ["dpkg"])
    assert [row["name"].partition(":")[0] for row in found["installed"]][0] == "dpkg"
    assert apt_plan.plan(["no-such-package-here | nor-this"], [])["unknown"] == ["no-such-package-here | nor-this"]


@needs_apt
def test_preferences_are_tried_beside_those_that_are_there(tmp_path):
    (tmp_path / "other").write_text("Package: dpkg\nPin: version 0.1\nPin-Priority: 1\n")
    (tmp_path / "own").write_text("nonsense that would make apt fail\n")
    found = apt_plan.plan(["dpkg"], ["dpkg"], preferences="Package: dpkg\nPin: version 9*\nPin-Priority: 1001\n", preferences_file="/x/own",
                          folder=str(tmp_path))  # fmt: skip
    assert found["conflicts"] == []
    with pytest.raises(Exception, match=r"apt-cache fails.*own"):
        apt_plan.plan(["dpkg"], ["dpkg"], preferences="Package: dpkg\n", preferences_file="/x/new", folder=str(tmp_path))

#!/usr/bin/env python3
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`toolkits.py`: table for tests/lab/aptrepo.py of CUDA 12.8.0, 12.8.1, 13.0.0 and 13.0.2, as NVIDIA's repositories have them, and of
two drivers. `toolkits.py 12.8.1`: what has to be installed of that release, a line each.

Names are real, and so are the versions of 12.8.0 and 12.8.1 (as apt printed them in installations) and of 13.0.0 (as a distribution's
release notes list them). Of 13.0.2 those of compiler, runtime, cuBLAS, cuSPARSE, NPP, NVML and Nsight Compute are as Dockerfiles and
lists of installed packages have them, the others are assumed. The shape is real, too: metapackages that ask by `>=`, parts of which a
later release is in the same repository, packages that several toolkits share, an alternative that is registered and, in automatic mode,
taken as soon as one small package is configured. Contents are small, nvcc is a script that answers, and one package waits for what
happens to dpkg while /run/hang is there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "proxmox_host/files"))
import tables

# Components by the version they have in a release: {version: names without the toolkit's number}.
RELEASES = {
    "12.8.0": {
        "12.8.0": ["cuda-command-line-tools", "cuda-compiler", "cuda-libraries", "cuda-libraries-dev", "cuda-nsight-compute",
                   "cuda-nsight-systems", "cuda-tools", "cuda-visual-tools", "cuda-toolkit"],
        "12.8.61": ["cuda-nvcc", "cuda-crt", "cuda-nvvm", "cuda-nvrtc", "cuda-nvrtc-dev", "libnvjitlink", "libnvjitlink-dev"],
        "12.8.57": ["cuda-cudart", "cuda-cudart-dev", "cuda-driver-dev", "cuda-cupti", "cuda-cupti-dev", "cuda-nvprof",
                    "cuda-nvvp"],
        "12.8.55": ["cuda-cccl", "cuda-cuobjdump", "cuda-cuxxfilt", "cuda-documentation", "cuda-gdb", "cuda-nsight", "cuda-nvdisasm",
                    "cuda-nvml-dev", "cuda-nvprune", "cuda-nvtx", "cuda-opencl", "cuda-opencl-dev", "cuda-profiler-api",
                    "cuda-sanitizer", "libnvfatbin", "libnvfatbin-dev"],
        "12.8.3.14": ["libcublas", "libcublas-dev"], "11.3.3.41": ["libcufft", "libcufft-dev"],
        "1.13.0.11": ["libcufile", "libcufile-dev", "gds-tools"], "10.3.9.55": ["libcurand", "libcurand-dev"],
        "11.7.2.55": ["libcusolver", "libcusolver-dev"], "12.5.7.53": ["libcusparse", "libcusparse-dev"],
        "12.3.3.65": ["libnpp", "libnpp-dev"], "12.3.5.57": ["libnvjpeg", "libnvjpeg-dev"],
    },
    "12.8.1": {
        "12.8.1": ["cuda-command-line-tools", "cuda-compiler", "cuda-libraries", "cuda-libraries-dev", "cuda-nsight-compute",
                   "cuda-nsight-systems", "cuda-tools", "cuda-visual-tools", "cuda-toolkit"],
        "12.8.93": ["cuda-nvcc", "cuda-crt", "cuda-nvvm", "cuda-nvrtc", "cuda-nvrtc-dev", "libnvjitlink", "libnvjitlink-dev",
                    "cuda-sanitizer", "cuda-nvvp"],
        "12.8.90": ["cuda-cudart", "cuda-cudart-dev", "cuda-driver-dev", "cuda-cupti", "cuda-cupti-dev", "cuda-cccl", "cuda-cuobjdump",
                    "cuda-cuxxfilt", "cuda-documentation", "cuda-gdb", "cuda-nsight", "cuda-nvdisasm", "cuda-nvml-dev", "cuda-nvprof",
                    "cuda-nvprune", "cuda-nvtx", "cuda-opencl", "cuda-opencl-dev", "cuda-profiler-api", "libnvfatbin", "libnvfatbin-dev"],
        "12.8.4.1": ["libcublas", "libcublas-dev"], "11.3.3.83": ["libcufft", "libcufft-dev"],
        "1.13.1.3": ["libcufile", "libcufile-dev", "gds-tools"], "10.3.9.90": ["libcurand", "libcurand-dev"],
        "11.7.3.90": ["libcusolver", "libcusolver-dev"], "12.5.8.93": ["libcusparse", "libcusparse-dev"],
        "12.3.3.100": ["libnpp", "libnpp-dev"], "12.3.5.92": ["libnvjpeg", "libnvjpeg-dev"],
    },
    "13.0.0": {
        "13.0.0": ["cuda-command-line-tools", "cuda-compiler", "cuda-libraries", "cuda-libraries-dev", "cuda-nsight-compute",
                   "cuda-nsight-systems", "cuda-tools", "cuda-visual-tools", "cuda-toolkit"],
        "13.0.48": ["cuda-nvcc", "cuda-crt", "libnvvm", "libnvptxcompiler", "cuda-nvrtc", "cuda-nvrtc-dev", "cuda-cudart",
                    "cuda-cudart-dev", "cuda-driver-dev", "cuda-cupti", "cuda-cupti-dev", "cuda-sanitizer"],
        "13.0.50": ["cuda-cccl"],
        "13.0.39": ["cuda-culibos-dev", "cuda-cuobjdump", "cuda-cuxxfilt", "cuda-documentation", "cuda-gdb", "cuda-nsight",
                    "cuda-nvdisasm", "cuda-nvml-dev", "cuda-nvprune", "cuda-nvtx", "cuda-opencl", "cuda-opencl-dev", "cuda-profiler-api",
                    "libnvfatbin", "libnvfatbin-dev", "libnvjitlink", "libnvjitlink-dev"],
        "13.0.0.19": ["libcublas", "libcublas-dev"], "12.0.0.15": ["libcufft", "libcufft-dev"],
        "1.15.0.42": ["libcufile", "libcufile-dev", "gds-tools"], "10.4.0.35": ["libcurand", "libcurand-dev"],
        "12.0.3.29": ["libcusolver", "libcusolver-dev"], "12.6.2.49": ["libcusparse", "libcusparse-dev"],
        "13.0.0.50": ["libnpp", "libnpp-dev"], "13.0.0.40": ["libnvjpeg", "libnvjpeg-dev"],
    },
    "13.0.2": {
        "13.0.2": ["cuda-command-line-tools", "cuda-compiler", "cuda-libraries", "cuda-libraries-dev", "cuda-nsight-compute",
                   "cuda-nsight-systems", "cuda-tools", "cuda-visual-tools", "cuda-toolkit"],
        "13.0.88": ["cuda-nvcc", "cuda-crt", "libnvvm", "libnvptxcompiler", "cuda-nvrtc", "cuda-nvrtc-dev", "libnvjitlink",
                    "libnvjitlink-dev"],
        "13.0.96": ["cuda-cudart", "cuda-cudart-dev", "cuda-driver-dev"],
        "13.0.87": ["cuda-nvml-dev"],
        "13.0.85": ["cuda-cccl", "cuda-culibos-dev", "cuda-cuobjdump", "cuda-cupti", "cuda-cupti-dev", "cuda-cuxxfilt",
                    "cuda-documentation", "cuda-gdb", "cuda-nsight", "cuda-nvdisasm", "cuda-nvprune", "cuda-nvtx",
                    "cuda-opencl",
                    "cuda-opencl-dev", "cuda-profiler-api", "cuda-sanitizer", "libnvfatbin", "libnvfatbin-dev"],
        "13.1.0.3": ["libcublas", "libcublas-dev"], "12.0.0.61": ["libcufft", "libcufft-dev"],
        "1.15.1.6": ["libcufile", "libcufile-dev", "gds-tools"], "10.4.0.35": ["libcurand", "libcurand-dev"],
        "12.0.4.66": ["libcusolver", "libcusolver-dev"], "12.6.3.3": ["libcusparse", "libcusparse-dev"],
        "13.0.1.2": ["libnpp", "libnpp-dev"], "13.0.1.86": ["libnvjpeg", "libnvjpeg-dev"],
    },
}  # fmt: skip
NSIGHT = {
    "12.8.0": (("nsight-compute-2025.1.0", "2025.1.0.14-1"), ("nsight-systems-2024.6.2", "2024.6.2.225-246235244400v0")),
    "12.8.1": (("nsight-compute-2025.1.1", "2025.1.1.2-1"), ("nsight-systems-2024.6.2", "2024.6.2.225-246235244400v0")),
    "13.0.0": (("nsight-compute-2025.3.0", "2025.3.0.19-1"), ("nsight-systems-2025.3.2", "2025.3.2.367-253236224375v0")),
    "13.0.2": (("nsight-compute-2025.3.1", "2025.3.1.4-1"), ("nsight-systems-2025.3.2", "2025.3.2.474-253236224375v0")),
}
# A part that came later than the last release, without a new one.
STRAY = {"libcublas-12-8": "12.8.5.5", "libcublas-dev-12-8": "12.8.5.5", "libcublas-13-0": "13.1.1.3", "libcublas-dev-13-0": "13.1.1.3"}
# What asks for what: by the beginning of the name, as NVIDIA's metapackages do.
META = {
    "cuda-toolkit": ["cuda-compiler", "cuda-libraries", "cuda-libraries-dev", "cuda-tools", "cuda-documentation", "cuda-nvml-dev"],
    "cuda-tools": ["cuda-command-line-tools", "cuda-visual-tools", "gds-tools"],
    "cuda-command-line-tools": ["cuda-cupti-dev", "cuda-gdb", "cuda-nvdisasm", "cuda-nvprof", "cuda-nvtx", "cuda-sanitizer"],
    "cuda-visual-tools": ["cuda-libraries-dev", "cuda-nsight", "cuda-nsight-compute", "cuda-nsight-systems", "cuda-nvml-dev", "cuda-nvvp"],
    "cuda-compiler": ["cuda-cuobjdump", "cuda-cuxxfilt", "cuda-nvcc", "cuda-nvprune"],
    "cuda-libraries": ["cuda-cudart", "cuda-nvrtc", "cuda-opencl", "libcublas", "libcufft", "libcufile", "libcurand", "libcusolver",
                       "libcusparse", "libnpp", "libnvjitlink", "libnvfatbin", "libnvjpeg"],
    "cuda-libraries-dev": ["cuda-cccl", "cuda-cudart-dev", "cuda-driver-dev", "cuda-nvrtc-dev", "cuda-opencl-dev", "cuda-profiler-api",
                           "cuda-culibos-dev", "libcublas-dev", "libcufft-dev", "libcufile-dev", "libcurand-dev", "libcusolver-dev",
                           "libcusparse-dev", "libnpp-dev", "libnvjitlink-dev", "libnvfatbin-dev", "libnvjpeg-dev"],
    "cuda-nvcc": ["cuda-nvvm", "cuda-crt", "libnvvm", "libnvptxcompiler"],
    "cuda-cudart-dev": ["cuda-cudart", "cuda-driver-dev", "cuda-cccl"],
    "cuda-cupti-dev": ["cuda-cupti"],
}  # fmt: skip
HANG = """\
#!/bin/sh
if [ -e /run/hang ]; then
    touch /run/reached
    sleep 600
fi
"""
NVCC = """\
#!/bin/sh
echo "nvcc: NVIDIA (R) Cuda compiler driver"
echo "Cuda compilation tools, release {release}, V{version}"
"""
ALTERNATIVES = """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    echo "Setting alternatives"
    update-alternatives --install /usr/local/cuda cuda /usr/local/cuda-{release} {number}
    update-alternatives --install /usr/local/cuda-{major} cuda-{major} /usr/local/cuda-{release} {number}
fi
"""
NO_ALTERNATIVES = """\
#!/bin/sh
set -e
if [ "$1" = remove ]; then
    update-alternatives --remove cuda /usr/local/cuda-{release}
    update-alternatives --remove cuda-{major} /usr/local/cuda-{release}
fi
"""


def toolkit(release):
    """The packages of one release."""
    major, minor = release.split(".")[:2]
    suffix = f"{major}-{minor}"
    versions = {name: version for version, names in RELEASES[release].items() for name in names}

    def needs(name):
        rows = [f"{part}-{suffix} (>= {versions[part]})" for part in META.get(name, ()) if part in versions]
        kind = name.removeprefix("cuda-")  # cuda-nsight-compute asks for the one of that year
        rows += [
            f"{one} (>= {version.rpartition('-')[0]})"
            for one, version in NSIGHT[release]
            if name.startswith("cuda-") and one.startswith(kind)
        ]
        if name == "cuda-cudart":
            rows += [f"cuda-toolkit-{suffix}-config-common", f"cuda-toolkit-{major}-config-common", "cuda-toolkit-config-common"]
        return ", ".join([*rows, *(["libc6 (>= 2.34)"] if name.startswith("lib") else [])])

    for name, version in versions.items():
        files = {f"/usr/local/cuda-{major}.{minor}/share/{name}": f"{version}\n"}
        if name == "cuda-nvcc":
            content = NVCC.format(release=f"{major}.{minor}", version=version)
            files[f"/usr/local/cuda-{major}.{minor}/bin/nvcc"] = {"content": content, "mode": "755"}
        scripts = {"preinst": HANG} if name == "libnvjpeg-dev" else {}
        yield package(f"{name}-{suffix}", f"{version}-1", depends=needs(name), files=files, scripts=scripts)
    words = {"release": f"{major}.{minor}", "major": major, "number": f"{major}{minor}"}
    config = versions["cuda-cudart"]
    scripts = {"postinst": ALTERNATIVES.format(**words), "prerm": NO_ALTERNATIVES.format(**words)}
    yield package(f"cuda-toolkit-{suffix}-config-common", f"{config}-1", architecture="all", scripts=scripts)
    for name in (f"cuda-toolkit-{major}-config-common", "cuda-toolkit-config-common"):
        yield package(name, f"{config}-1", architecture="all", files={f"/etc/ld.so.conf.d/{name}.conf": "/usr/local/cuda/lib64\n"})
    for name, version in NSIGHT[release]:
        yield package(name, version)


def package(name, version, architecture="amd64", **more):
    return {"package": name, "version": version, "architecture": architecture, "section": "multiverse/devel", **more}


def packages():
    """All of them, each once."""
    rows = [row for release in RELEASES for row in toolkit(release)] + [package(name, f"{version}-1") for name, version in STRAY.items()]
    return list({(row["package"], row["version"]): row for row in rows}.values())


def expected(release):
    """What apt has to have of a release, but for the two packages that all toolkits share."""
    shared = (f"cuda-toolkit-{release.split('.')[0]}-config-common", "cuda-toolkit-config-common")
    return sorted(f"{row['package']} {row['version']}" for row in toolkit(release) if row["package"] not in shared)


def main(arguments):
    if arguments:
        print("\n".join(expected(arguments[0])))
        return
    drivers = [row for version in ("570.195.03", "580.105.08") for row in tables.driver(version)]
    site = package("site-tools", "1.0", conflicts="libcublas-13-0")
    big = package("site-big", "1.0", fields={"Installed-Size": str(1 << 34)})
    json.dump({"origin": "NVIDIA", "packages": packages() + drivers + [site, big]}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])

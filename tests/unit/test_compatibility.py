# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs with what: each row at both sides of its limit, and the combinations that people had."""

from __future__ import annotations

import importlib.util
import string
from pathlib import Path

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import gpu_generations
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import compatibility, compatibility_facts

ROOT = Path(__file__).resolve().parents[2]
FUSION = "enable-flashinfer-allreduce-fusion"
BACKEND = "flashinfer-allreduce-fusion-backend"
SYMMETRIC = {"enable-torch-symm-mem": True}


def gpu(capability, **more):
    return {"capability": [capability], **more}


def attention(capability, sglang, **flags):
    return gpu(capability, sglang=sglang, flags={name.replace("_", "-"): value for name, value in flags.items()})


def fusion(capability, *, backend=None, **more):
    return gpu(capability, flags={BACKEND: backend} if backend else {FUSION: True}, **more)


# row, one side of the limit where it holds, the other side where it does not
CASES = [
    ("driver-for-cuda", {"cuda": "13.0", "driver": "570.211.01"}, {"cuda": "13.0", "driver": "580.65.06"}),
    ("driver-for-cuda", {"cuda": "13.2", "driver": "580.65.05"}, {"cuda": "13.2", "driver": "580.65.06"}),
    ("driver-for-cuda", {"cuda": "13.9", "driver": "570.26"}, {"cuda": "13.9", "driver": "580.105.08"}),
    ("driver-for-cuda", {"cuda": "12.8", "driver": "525.60.12"}, {"cuda": "12.8", "driver": "525.60.13"}),
    ("driver-for-cuda", {"cuda": "11.8", "driver": "450.80.01"}, {"cuda": "11.8", "driver": "450.80.02"}),
    ("driver-for-cuda", {"torch": "2.11.0", "driver": "570.26"}, {"torch": "2.10.0", "driver": "570.26"}),
    ("driver-for-cuda", {"sglang": "0.5.11", "driver": "570.26"}, {"sglang": "0.5.10", "driver": "570.26"}),
    ("driver-older-than-toolkit", {"cuda": "12.8.1", "driver": "570.26"}, {"cuda": "12.8.0", "driver": "570.26"}),
    ("driver-older-than-toolkit", {"cuda": "13.0.2", "driver": "580.82.07"}, {"cuda": "13.0.2", "driver": "580.105.08"}),
    ("driver-older-than-toolkit", {"cuda": "12.4", "driver": "535.104.05"}, {"cuda": "12.4", "driver": "525.60.12"}),  # refused instead
    ("gpu-not-in-cuda-yet", gpu("12.0", cuda="12.6"), gpu("12.0", cuda="12.8")),
    ("gpu-not-in-cuda-yet", gpu("10.0", cuda="12.6.3"), gpu("10.0", cuda="12.8.0")),
    ("gpu-not-in-cuda-yet", gpu("12.1", cuda="12.8"), gpu("12.1", cuda="12.9")),
    ("gpu-not-in-cuda-yet", gpu("10.3", cuda="12.8"), gpu("10.3", cuda="13.0")),
    ("gpu-not-in-cuda-yet", gpu("9.0", cuda="11.7"), gpu("9.0", cuda="11.8")),
    ("gpu-not-in-torch-yet", gpu("12.0", torch="2.9.1+cu126"), gpu("12.0", torch="2.9.1+cu128")),
    ("gpu-not-in-torch-yet", gpu("10.3", torch_cuda="12.6"), gpu("10.3", torch_cuda="12.8")),
    ("gpu-no-longer-in-cuda", gpu("7.0", cuda="13.0"), gpu("7.0", cuda="12.9")),
    ("gpu-no-longer-in-cuda", gpu("7.0", torch="2.11.0"), gpu("7.5", torch="2.11.0")),
    ("gpu-too-new-for-driver", gpu("12.0", driver="565.77"), gpu("12.0", driver="570.26")),
    ("gpu-too-new-for-driver", gpu("10.0", driver="569"), gpu("9.0", driver="569")),
    ("gpu-too-old-for-driver", gpu("7.0", driver="590.44.01"), gpu("7.0", driver="580.105.08")),
    ("gpu-too-old-for-driver", gpu("6.1", driver="581.0"), gpu("7.5", driver="590.44.01")),
    ("sglang-gpu", gpu("7.0", sglang="0.5.16"), gpu("7.5", sglang="0.5.16")),
    ("sglang-python", {"sglang": "0.5.23", "python": "3.10"}, {"sglang": "0.5.21", "python": "3.10"}),
    ("sglang-python", {"sglang": "0.5.16", "python": "3.9.20"}, {"sglang": "0.5.16", "python": "3.13.5"}),
    ("sglang-python", {"sglang": "0.5.16", "python": "3.14"}, {"sglang": "0.5.10", "python": "3.14"}),
    ("sglang-torch", {"sglang": "0.5.16", "torch": "2.9.1"}, {"sglang": "0.5.16", "torch": "2.11.0+cu130"}),
    ("sglang-flashinfer", {"sglang": "0.5.16", "flashinfer": "0.6.12"}, {"sglang": "0.5.16", "flashinfer": "0.6.14"}),
    ("sglang-flashinfer", {"sglang": "0.5.10", "flashinfer": "0.6.7.post3"}, {"sglang": "0.5.10.post1", "flashinfer": "0.6.7.post3"}),
    ("sglang-cuda", {"sglang": "0.5.16", "torch_cuda": "12.9"}, {"sglang": "0.5.16", "torch_cuda": 13.0}),
    ("sglang-cuda", {"sglang": "0.5.10", "torch_cuda": "13.0"}, {"sglang": "0.5.10", "torch_cuda": "12.8"}),
    ("torch-nccl", {"torch": "2.11.0", "nccl": "2.30.7"}, {"torch": "2.11.0", "nccl": "2.28.9"}),
    ("fusion-sglang", fusion("12.0", sglang="0.5.14"), fusion("12.0", sglang="0.5.13")),
    ("fusion-sglang", fusion("12.0", sglang="0.5.23", backend="cutedsl"), fusion("10.3", sglang="0.5.23", backend="cutedsl")),
    ("fusion-sglang", fusion("8.9", sglang="0.5.16"), fusion("9.0", sglang="0.5.16")),
    ("fusion-sglang", fusion("12.0", sglang="0.5.16"), gpu("12.0", sglang="0.5.16", flags={FUSION: False})),
    ("fusion-sglang", fusion("12.0", sglang="0.5.16"), gpu("12.0", sglang="0.5.16", flags={FUSION: True, "tp": 1})),
    ("fusion-sglang-ignored", fusion("12.0", sglang="0.5.9"), fusion("12.0", sglang="0.5.16")),
    ("fusion-sglang-ignored", fusion("12.0"), fusion("9.0")),
    ("fusion-flashinfer", fusion("12.0", flashinfer="0.6.15.post1"), fusion("12.0", flashinfer="0.6.17")),
    ("fusion-flashinfer", fusion("12.0", sglang="0.5.17"), fusion("12.0", sglang="0.5.18")),
    ("fusion-flashinfer", fusion("12.0", flashinfer="0.6.14", backend="auto"), fusion("9.0", flashinfer="0.6.14", backend="auto")),
    ("fusion-flashinfer-12", fusion("11.0", flashinfer="0.6.17"), fusion("12.1", flashinfer="0.6.17")),
    ("fusion-flashinfer-mnnvl", fusion("12.0", flashinfer="0.7.2", backend="mnnvl"), fusion("12.0", flashinfer="0.7.2", backend="trtllm")),
    ("symmetric-memory-crash", gpu("12.0", sglang="0.5.13", flags=SYMMETRIC), gpu("12.0", sglang="0.5.14", flags=SYMMETRIC)),
    ("symmetric-memory-crash", gpu("12.0", sglang="0.5.9", flags=SYMMETRIC), gpu("10.3", sglang="0.5.9", flags=SYMMETRIC)),
    ("symmetric-memory-ignored", gpu("12.0", sglang="0.5.14", flags=SYMMETRIC), gpu("12.0", sglang="0.5.13", flags=SYMMETRIC)),
    ("symmetric-memory-ignored", gpu("8.0", sglang="0.5.9", flags=SYMMETRIC), gpu("9.0", sglang="0.5.9", flags=SYMMETRIC)),
    (
        "custom-all-reduce-pcie",
        {"sglang": "0.5.16", "nvlink": False, "flags": {"tp-size": "4"}},
        {"sglang": "0.5.16", "nvlink": False, "flags": {"tp-size": "2"}},
    ),
    (
        "custom-all-reduce-pcie",
        {"sglang": "0.5.16", "nvlink": False, "flags": {"tp": 3}},
        {"sglang": "0.5.16", "nvlink": False, "flags": {"tp": 3, "disable-custom-all-reduce": True}},
    ),
    (
        "custom-all-reduce-pcie",
        {"sglang": "0.5.16", "nvlink": False, "gpu_count": 8},
        {"sglang": "0.5.16", "nvlink": True, "gpu_count": 8},
    ),
    (
        "custom-all-reduce-pcie",
        {"sglang": "0.5.16", "nvlink": False, "gpus": ["NVIDIA L40S"] * 8},
        {"sglang": "0.5.16", "nvlink": False, "gpus": ["NVIDIA L40S"] * 8, "flags": {"trust-remote-code": True}},  # one rank, then
    ),
    ("attention-fa3", attention("12.0", "0.5.16", attention_backend="fa3"), attention("9.0", "0.5.16", attention_backend="fa3")),
    ("attention-fa3", attention("10.0", "0.5.16", decode_attention_backend="fa3"), attention("10.0", "0.5.16", attention_backend="triton")),
    (
        "attention-trtllm-mla",
        attention("9.0", "0.5.23", attention_backend="trtllm_mla"),
        attention("12.0", "0.5.23", attention_backend="trtllm_mla"),
    ),
    (
        "attention-cutedsl-mla",
        attention("12.0", "0.5.13", decode_attention_backend="cutedsl_mla"),
        attention("10.3", "0.5.13", decode_attention_backend="cutedsl_mla"),
    ),
    (
        "attention-trtllm-mha-prefill",
        attention("12.0", "0.5.18", prefill_attention_backend="trtllm_mha"),
        attention("12.0", "0.5.19", prefill_attention_backend="trtllm_mha"),
    ),
    (
        "attention-trtllm-mha",
        attention("8.9", "0.5.23", attention_backend="trtllm_mha"),
        attention("9.0", "0.5.23", attention_backend="trtllm_mha"),
    ),
]


def rows(combination):
    return {finding.row: finding for finding in compatibility.check(combination)}


@pytest.mark.parametrize(("row", "holds", "holds_not"), CASES, ids=[f"{number}-{case[0]}" for number, case in enumerate(CASES)])
def test_both_sides_of_a_limit(row, holds, holds_not):
    found = rows(holds)
    assert row in found
    assert row not in rows(holds_not)
    assert "{" not in str(found[row])
    assert "https://" in found[row].source


def test_each_row_has_a_case():
    assert {case[0] for case in CASES} == {row["id"] for row in compatibility.data()["rows"]}


# --- combinations that people had

STORY = {
    "gpus": ["NVIDIA RTX PRO 6000 Blackwell Server Edition"] * 8, "capability": ["12.0"] * 8, "driver": "580.105.08", "nvlink": False,
    "sglang": "0.5.16", "flags": {"tp-size": "8", "disable-custom-all-reduce": True, FUSION: True},
}  # fmt: skip
H200 = {
    "gpus": [{"name": "NVIDIA H200", "compute_capability": "9.0", "driver": "580.95.05"}] * 2, "driver": "580.95.05", "nvlink": True,
    "cuda": "13.0", "sglang": "0.5.16", "torch": "2.11.0+cu130", "torch_cuda": "13.0", "nccl": "2.28.9", "flashinfer": "0.6.14",
    "python": "3.12.3", "flags": {"tp-size": "2", "attention-backend": "triton"},
}  # fmt: skip


def test_the_story_is_refused_with_what_it_ended_in():
    found = rows(STORY)
    assert list(found) == ["fusion-sglang", "fusion-flashinfer"]
    text = str(found["fusion-flashinfer"])
    assert "FlashInfer 0.6.14 (which SGLang 0.5.16 brings)" in text
    assert "NVIDIA RTX PRO 6000 Blackwell Server Edition (SM 12.0)" in text
    assert "No supported CUDA architectures found for major versions [9, 10]" in text
    assert f"Take --{FUSION} out of sglang_flags (or tune_flags)" in text


def test_patched_sources_may_know_better_but_kernels_do_not_appear():
    found = rows({**STORY, "patches": ["fusion-sm120"]})
    assert {row: finding.severity for row, finding in found.items()} == {"fusion-flashinfer": "refused", "fusion-sglang": "warning"}
    assert "Patch fusion-sm120 may change that." in found["fusion-sglang"].text
    assert [f.severity for f in compatibility.check({**STORY, "patches": ["my-fusion"], "sglang": "0.5.18"})] == ["warning"]


@pytest.mark.parametrize(
    "patch", [{"name": "fusion-sm120", "state": "absent"}, {"name": "shorter-poll"}, {"name": "fusion", "package": "flashinfer-python"}]
)
def test_a_patch_of_something_else_changes_nothing(patch):
    found = rows({**STORY, "patches": [patch]})
    assert {finding.severity for finding in found.values()} == {"refused"}
    told = "A patch that changes this has 'fusion' in its name." in str(found["fusion-sglang"])
    assert told == (patch["name"] == "shorter-poll")


def test_everything_right_is_nothing_to_say():
    assert compatibility.check(H200) == []
    assert compatibility.check({}) == []


def test_the_way_to_a_driver_is_told():
    (found,) = compatibility.check({"sglang": "0.5.16", "driver": "570.124.06", "host": "gpu1"})
    assert (found.row, found.severity) == ("driver-for-cuda", "refused")
    assert found.text == "SGLang 0.5.16 has torch 2.11.0, built for CUDA 13.0, which needs driver 580.65.06 or newer; gpu1 has 570.124.06."
    assert "cuda_driver_version" in found.change


def test_a_v100_and_cuda_13():
    found = compatibility.refused(compatibility.check({"gpus": ["Tesla V100-SXM2-32GB"], "cuda": 13.0, "sglang": "0.5.16"}))
    assert [finding.row for finding in found] == ["gpu-no-longer-in-cuda", "sglang-gpu"]
    assert "no longer knows Tesla V100-SXM2-32GB (SM 7.0)" in found[0].text


def test_what_nobody_would_write_raises_nothing():
    odd = [{}, [], "x", 0, 3.5, True, {"a": 1}, [{}], [None], ["", 7]]
    for name in ("gpus", "capability", "gpu_count", "driver", "cuda", "torch", "torch_cuda", "nccl", "flashinfer", "sglang", "python"):
        for value in odd:
            compatibility.check({**H200, name: value})


def test_one_old_gpu_among_new_ones_is_found():
    (found,) = compatibility.check({"capability": ["9.0", "7.0", "9.0"], "cuda": "13.0"})
    assert found.row == "gpu-no-longer-in-cuda"
    assert "SM 7.0" in found.text


@pytest.mark.parametrize(
    ("combination", "row", "words"),
    [
        ({"sglang": "0.6.0"}, "unknown-sglang", "SGLang 0.6.0 is not in this table (0.5.9 to 0.5.23)"),
        ({"sglang": "0.5.16.post1"}, "unknown-sglang", "0.5.16.post1"),
        ({"torch": "2.99.0"}, "unknown-torch", "torch 2.99.0"),
        ({"cuda": "14.0"}, "unknown-cuda", "CUDA 14.0"),
        ({"torch_cuda": "13.9"}, "unknown-cuda", "CUDA 13.9"),
        ({"capability": ["13.0"]}, "unknown-capability", "13.0"),
        ({"gpus": ["NVIDIA Something"]}, "unknown-gpu", "NVIDIA Something"),
        ({"gpus": [{"address": "0000:01:00.0", "device_id": "ffff"}]}, "unknown-gpu", "GPU 0000:01:00.0 of PCI id 10de:ffff"),
        ({"driver": "latest"}, "no-version", "driver is 'latest'"),
        ({"cuda": ["13.0"]}, "no-version", "cuda is"),
    ],
)
def test_what_is_not_known_is_a_warning(combination, row, words):
    (found,) = compatibility.check(combination)
    assert (found.row, found.severity) == (row, "warning")
    assert words in found.text


def test_what_is_given_with_an_unknown_release_still_counts():
    found = rows({"sglang": "0.6.0", "torch": "2.14.1", "driver": "570.26", "capability": ["12.0"], "flags": {FUSION: True}})
    assert set(found) == {"driver-for-cuda", "fusion-sglang", "unknown-sglang"}


# --- versions, numbers, GPUs


@pytest.mark.parametrize(
    ("value", "constraint", "holds"),
    [
        ("13.0", ">=12.8", True), ("13.0", "==13", True), ("12.8", "<12.10", True), ("580.105.08", ">580.65.06", True),
        ("580.65.06", "<580.105.08", True), ("0.5.9", "<0.5.16", True), ("0.5.16+simulated", "==0.5.16", True),
        ("0.5.16.post1", ">0.5.16", True), ("0.5.16.post1", "<0.5.17", True), ("0.5.16rc1", "<0.5.16", True),
        ("2.11.0+cu130", "==2.11.0", True), ("535.104.05-0ubuntu0.22.04.1", ">=535.104.05", True), ("580.105.08-1", ">=580.105.08", True),
        ("10.0", "==10.*", True), ("1.0", "==10.*", False), ("100.0", "==10.*", False),
        ("9.0", "!=9.*, !=10.*", False), ("12.0", "!=9.*, !=10.*", True),
        ("3.10", "not >=3.11, <3.14", True), ("3.13.5", "not >=3.11, <3.14", False), ("13.0.2", "!=13.0.*", False),
    ],
)  # fmt: skip
def test_versions_are_compared_as_versions(value, constraint, holds):
    assert compatibility._satisfies(compatibility_facts.Known(value, value), constraint, {}) is holds


@pytest.mark.parametrize("torch", ["2.9.1+cu130", "2.10.0+cu118"])
def test_a_torch_wheel_says_itself_for_which_cuda_it_is(torch):
    built = {"cu130": "13.0", "cu118": "11.8"}[torch.partition("+")[2]]
    assert compatibility_facts.facts_of({"torch": torch}).of["torch_cuda"].value == built


def test_numbers_out_of_yaml():
    assert compatibility.check({**H200, "cuda": 13.0, "torch_cuda": 13.0, "python": 3.12}) == []
    assert set(rows({"cuda": 12, "driver": "525.60.12"})) == {"driver-for-cuda"}
    (found,) = compatibility.check({"sglang": "0.5.16", "python": 3.1})  # 3.10, unquoted
    assert "this is 3.1 (a number to YAML, which drops an ending zero: quote it)" in found.text


@pytest.mark.parametrize(
    ("device", "capability"),
    [
        (0x1DB4, "7.0"), (0x1EB8, "7.5"), (0x20B0, "8.0"), (0x2204, "8.6"), (0x2235, "8.6"), (0x2330, "9.0"), (0x2335, "9.0"),
        (0x2342, "9.0"), (0x2684, "8.9"), (0x26B9, "8.9"), (0x2901, "10.0"), (0x2941, "10.0"), (0x2B85, "12.0"), (0x2BB5, "12.0"),
        (0x2C02, "12.0"), (0x2D04, "12.0"), (0x2F04, "12.0"), (0x2E12, "12.1"), (0x3182, "10.3"), (0x2B00, None), (0x4000, None),
    ],
)  # fmt: skip
def test_capability_by_pci_id(device, capability):
    assert gpu_generations.capability_of(device) == capability


def test_ranges_of_pci_ids_are_in_order_and_known():
    ranges = gpu_generations.CAPABILITIES
    assert all(first <= last for first, last, _ in ranges)
    assert all(before[1] < after[0] for before, after in zip(ranges, ranges[1:], strict=False))
    assert {capability for _, _, capability in ranges} <= set(compatibility.data()["capabilities"]["rows"])
    assert all(gpu_generations.of(first) and gpu_generations.of(last) for first, last, _ in ranges)


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("NVIDIA H200", "9.0"), ("NVIDIA H100 80GB HBM3", "9.0"), ("NVIDIA L4", "8.9"), ("NVIDIA L40S", "8.9"),
        ("NVIDIA A100-SXM4-80GB", "8.0"), ("NVIDIA A10", "8.6"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "12.0"), ("NVIDIA GB10", "12.1"),
        ("NVIDIA RTX 6000 Ada Generation", "8.9"), ("NVIDIA RTX A6000", "8.6"), ("NVIDIA B300 SXM6 AC", "10.3"), ("NVIDIA GB200", "10.0"),
        ("Quadro RTX 6000", "7.5"), ("NVIDIA RTX 6000", None),
    ],
)  # fmt: skip
def test_capability_by_name(name, capability):
    assert compatibility_facts._by_name(name) == capability


def test_nvidia_smi_goes_before_pci_id_and_name():
    (found,) = compatibility_facts.facts_of({"gpus": [{"name": "NVIDIA H200", "device_id": "2bb5", "compute_capability": "8.0"}]}).gpus
    assert found["gpu_capability"].value == "8.0"
    (found,) = compatibility_facts.facts_of({"gpus": [{"model": "NVIDIA H200", "device_id": "2bb5"}]}).gpus
    assert found["gpu_capability"].value == "12.0"


# --- the data itself


def test_every_table_and_row_names_sources_that_there_are():
    data = compatibility.data()
    cited = [name for part in (*data["rows"], *(data[table] for table in data if "source" in data[table])) for name in part["source"]]
    assert set(cited) == set(data["sources"])
    assert all(source["url"].startswith("https://") for source in data["sources"].values())


def test_every_version_in_the_tables_is_one_and_is_quoted():
    for table in ("capabilities", "toolkit_drivers", "major_drivers", "torch", "sglang"):
        for key, row in compatibility.data()[table]["rows"].items():
            values = row.values() if isinstance(row, dict) else [row]
            for value in (key, *values):
                assert isinstance(value, str), (table, key)
                assert compatibility_facts.version(value.lstrip(">=<")), (table, key, value)
    assert all(compatibility_facts._row("torch", compatibility_facts.Known(row["torch"], "")) for row in
               compatibility.data()["sglang"]["rows"].values())  # fmt: skip


def test_ids_are_not_used_twice_and_conditions_can_be_read():
    data = compatibility.data()
    assert len({row["id"] for row in data["rows"]}) == len(data["rows"])
    for row in data["rows"]:
        assert row["severity"] in ("refused", "warning")
        for condition in (row["when"], row.get("unless", {})):
            for name, constraint in condition.items():
                if name != "flags" and constraint != "not {sglang_python}":
                    assert len(compatibility.TERM.findall(constraint)) == constraint.count(",") + 1, (row["id"], constraint)
        assert all(spec is None or not spec for _, _, spec, _ in string.Formatter().parse(row["text"]))


def test_the_page_is_current():
    spec = importlib.util.spec_from_file_location("compatibility_page", ROOT / "docs" / "compatibility_page.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    made = script.page(compatibility.data())
    assert made == script.PAGE.read_text(encoding="utf-8"), "run: python docs/compatibility_page.py"

# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fatal signatures of what was asked for: flags, port, model, packages, sizes that do not fit, rights and limits. Data only.

Wording of SGLang 0.5.9 to 0.5.23, argparse, uvicorn, transformers, huggingface_hub, safetensors and torch.
"""

from __future__ import annotations

from .signature_type import signature

_FLAGS = "sglang_flags (or tune_flags)"
_PACKAGE = "in the environment of sglang_python"
_TRUST_REMOTE_CODE = (
    r"(?:set the option|pass the argument|consider setting|allow custom code.*) ?`trust_remote_code=True`"
    r"|[Ss]et --trust-remote-code to load|with --trust-remote-code if you trust|requires you to execute the \w+ file in that repo"
)
_TOKENIZER = (
    r"Can't load tokenizer for|Couldn't instantiate the backend tokenizer|Failed to load the tokenizer"
    r"|Tokenizer class \S+ does not exist or is not currently imported|to build an AutoTokenizer"
    r"|You need to have (?:sentencepiece|tiktoken)|data did not match any variant of untagged enum"
)
_NO_PATH = (
    r"Repo id must (?:be|use) [^\n]*?: '(?P<path>[^']*)'"
    r"|(?:^|: )(?P<path2>\S+) is not a local folder (?:and is not a valid model|or a valid repo)"
)
_NOT_A_MODEL = (
    r"(?:^|: )(?P<path>\S+) does not appear to have a file named config\.json"
    r"|Unrecognized model in (?P<path2>\S+?)\. Should have a `model_type` key"
    r"|Can't load the configuration of '(?P<path3>[^']*)'"
    r"|FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<path4>[^']*)/(?:config|model\.safetensors\.index)\.json'"
)
_PORT_TAKEN = (
    r"\[Errno 98\] (?:error while attempting to bind on address )?\('(?P<address>[^']*)', (?P<port>\d+)"
    r"|ZMQError: Address already in use \(addr='(?:tcp://)?(?P<address2>[^']*):(?P<port2>\d+)'"
)
_ADDRESS = (
    "give sglang_host an address that this host has (0.0.0.0: all of them), and sglang_port (of a trial: tune_port) a number above 1023 "
    "that sglang_user may use"
)
_PORT_TAKEN_INSIDE = (
    r"Errno 98\] Address already in use|EADDRINUSE|errno: 98\b|ZMQError: Address already in use"
    r"|(?:\b|_)port\w*(?: at)? \d+ is (?:already in use|not available in)"
)

SIGNATURES = (
    signature(
        "flag_renamed",
        r"error: ambiguous option: --(?P<flag>[\w-]+)\S* could match (?P<options>--.+)",
        "flag --{flag} was renamed: {sglang} has {options}",
        f"in {_FLAGS} replace {{flag}} by one of {{options}}",
        scope="line",
    ),
    signature(
        "flag_unknown",
        r"error: unrecognized arguments: -{1,2}(?P<flag>[\w-]+)",
        "{sglang} knows no --{flag}",
        f"take {{flag}} out of {_FLAGS}, or find its new name by `sglang_python -m sglang.launch_server --help`",
        scope="line",
    ),
    signature(
        "argument_unknown",
        r"error: unrecognized arguments: (?P<word>[^-\s]\S*)",
        "{sglang} has no use for '{word}' on its command line",
        f"is it the value of a flag that takes none? In {_FLAGS} such a flag is a bare true, or null to leave it out",
        scope="line",
    ),
    signature(
        "flag_value",
        r"error: argument -{1,2}(?P<flag>[\w-]+)\S*: (?P<problem>.+)",
        "flag --{flag}: {problem}",
        f"in {_FLAGS} give {{flag}} a value that {{sglang}} accepts",
        scope="line",
    ),
    signature(
        "flag_missing",
        r"error: the following arguments are required: (?P<flags>.+)",
        "{sglang} asks for {flags}",
        f"give it in {_FLAGS}; the model path is sglang_model_path",
        scope="line",
    ),
    # Of whatever else argparse does not like. Compilers write the same of themselves.
    signature(
        "command_line",
        r"^(?:\S*python\S* -m )?(?:sglang|launch_server|__main__)[\w. -]*: error: (?P<problem>.+)",
        "{sglang} refuses its command line: {problem}",
        f"correct it in {_FLAGS}; `sglang_python -m sglang.launch_server --help` lists what there is",
        scope="line",
    ),
    signature(
        "setting_removed",
        r"Error: (?P<setting>[\w-]{4,}) (?:has been removed|is no longer supported)",
        "{setting} is gone in {sglang}",
        f"take it out of sglang_environment or {_FLAGS}",
    ),
    signature(
        "port_in_use",
        _PORT_TAKEN,
        "port in use: {address}:{port}",
        "end what listens there (ss -ltnp), or take another port (of the service: sglang_port; of a trial: tune_port: 0)",
        scope="line",
        outlives_ready=True,
    ),
    signature(
        "address_refused",
        r"\[Errno (?!98\b)\d+\] error while attempting to bind on address \('(?P<address>[^']*)', (?P<port>\d+)[^)]*\): "
        r"(?:\[errno \d+\] )?(?P<problem>.+)",
        "cannot bind {address}:{port}: {problem}",
        _ADDRESS,
        scope="line",
        outlives_ready=True,
    ),
    signature(
        "address_unknown",
        r"^ERROR: +\[Errno (?!98\b)-?\d+\] (?P<problem>[A-Z].*)",
        "cannot listen at the server's address: {problem}",
        _ADDRESS,
        scope="line",
        outlives_ready=True,
    ),
    signature(
        "address_in_use",
        _PORT_TAKEN_INSIDE,
        "port in use",
        "a port of this server (HTTP, or where its ranks meet) is taken: end what listens there (ss -ltnp), or take other ports "
        f"(tune_port: 0; {_FLAGS}: {{{{nccl-port: ..., dist-init-addr: ...}}}})",
        details=((r"port:? (?:at )?(?P<port>\d+)", ": {port}"), (r"\]:(?P<port>\d+) \(errno: 98", ": {port}")),
    ),
    signature(
        "trust_remote_code",
        _TRUST_REMOTE_CODE,
        "the model brings code of its own, which it may not run",
        f"read that code, then {_FLAGS}: {{{{trust-remote-code: true}}}}",
    ),
    signature(
        "model_config",
        _NOT_A_MODEL,
        "no model in {path}: config.json is missing, or no model's",
        "give sglang_model_path the directory with the model's config.json; finish the download",
    ),
    signature(
        "model_path",
        _NO_PATH,
        "model path does not exist: {path}",
        "correct sglang_model_path (flag model-path): a directory with config.json; it is looked up on the target, inside its container",
    ),
    signature(
        "model_unreachable",
        r"couldn't connect to 'https?://\S+' to load|LocalEntryNotFoundError|OfflineModeIsEnabled"
        r"|(?:401|403) Client Error.*huggingface|GatedRepoError|You are trying to access a gated repo"
        r"|\bhttpx\.Connect(?:Error|Timeout): |\w\.ConnectionError: .*host='huggingface\.co'",
        "the model is not on this host and cannot be downloaded",
        "put it on the target and give its directory as sglang_model_path; HF_HUB_OFFLINE and tokens go into sglang_environment",
    ),
    signature(
        "no_weights",
        r"Cannot find any model weights with `(?P<path>[^`]*)`|Error no file named .* found in directory (?P<path2>\S+)",
        "no model weights in the model path {path}",
        f"finish the download (*.safetensors), or {_FLAGS}: {{{{load-format: dummy}}}} for a try without weights",
    ),
    signature(
        "weights_damaged",
        r"(?P<problem>Error while deserializing header: \w+|SafetensorError: .*|PytorchStreamReader failed .*)",
        "a weight file is damaged or cut short: {problem}",
        "download the files of sglang_model_path again and compare their sizes",
    ),
    signature(
        "tokenizer",
        _TOKENIZER,
        "the tokenizer cannot be loaded",
        "complete the tokenizer's files in sglang_model_path (tokenizer.json, tokenizer.model, tokenizer_config.json), or install "
        f"sentencepiece and tiktoken {_PACKAGE}",
    ),
    signature(
        "model_unknown",
        r"Model architectures (?P<model>\[[^\]]*\]) (?:failed|are not supported)"
        r"|model type `(?P<model2>[^`]*)` but Transformers does not recog",
        "{sglang} does not know this model: {model}",
        f"install an SGLang and transformers that know it {_PACKAGE}",
    ),
    signature(
        "quantization_gpu",
        r"[Qq]uantization (?:method|scheme) .*?not supported for|is not supported for quantization method"
        r"|[Mm]in(?:imum)? capability: \d+|only supported on CUDA devices with compute capability",
        "this quantisation is not supported on this GPU",
        f"serve another checkpoint (sglang_model_path), or another quantization in {_FLAGS}",
        details=((r"[Mm]in(?:imum)? capability: (?P<least>\d+).*?[Cc]urrent capability: (?P<found>\d+)", ": needs {least}, is {found}"),),
    ),
    signature(
        "context_length",
        r"context_length \((?P<wanted>\d+)\) is greater than the derived context_length \((?P<most>[\d.]+)\)",
        "context length {wanted} is more than the model's {most}",
        f"{_FLAGS}: {{{{context-length: {{most}}}}}}; or sglang_environment: {{{{SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN: '1'}}}}",
    ),
    signature(
        "expert_parallel",
        r"(?P<error>(?:Assertion|Value)Error\b.*(?:expert|\bep[_-]size|moe_ep|[Mm]o[Ee] dp).*)",
        "expert parallelism does not fit: {error}",
        f"change or remove ep-size and the MoE flags (moe-a2a-backend, ...) in {_FLAGS}; tp-size must be a multiple of ep-size, and the "
        "model's number of experts of both",
        scope="error",
    ),
    signature(
        "parallel_size",
        r"AssertionError: (?P<sizes>\d+ is not divisible by \d+)|(?P<sizes2>(?:heads|tp_size|size)\b.{0,40}must be divisible by .*)"
        r"|AssertionError \(assert (?P<sizes3>(?=.*(?:tp|world)_size).*%.*== 0.*)\)",
        "tensor parallelism does not fit the model: {sizes}",
        f"choose a tp-size in {_FLAGS} that divides the model's heads and layers' widths",
        scope="error",
    ),
    signature(
        "driver_library",
        r"(?:ImportError|OSError): (?:.*/)?(?P<library>lib(?:cuda|nvidia-[\w-]+)\.so[\w.]*): cannot open shared object file"
        r"|NVMLError_LibraryNotFound: (?P<library2>\w+)|AssertionError: (?P<library3>libcuda\.so) cannot found",
        "the NVIDIA driver's library is not found: {library}",
        "it comes with the driver, not with a Python package: install the driver (in a container its libraries, of the host's version, "
        "and the GPUs' device nodes) until nvidia-smi works there",
        scope="error",
    ),
    signature(
        "missing_library",
        r"(?:ImportError|OSError): (?:.*/)?(?P<library>[\w.+-]+\.so[\w.]*): "
        r"(?P<problem>cannot open shared object file|undefined symbol: \w+)",
        "library {library}: {problem}",
        f"install the matching package {_PACKAGE} (torch, sgl-kernel, FlashInfer and CUDA of one release), or give LD_LIBRARY_PATH in "
        "sglang_environment",
        scope="error",
    ),
    signature(
        "package_version",
        r"(?:Error|Exception): (?P<package>[\w.-]+) (?:is installed with version|is not installed|version \S+ is required).*",
        "package {package} is missing or too old",
        f"install the version that {{sglang}} asks for {_PACKAGE}",
        scope="error",
    ),
    signature(
        "missing_module",
        r"^(?:ModuleNotFoundError|ImportError): No module named '?(?P<module>[\w.]+)'?"
        r"|^\S*python[\d.]*: .*\bNo module named '?(?P<module2>[\w.]+)'?",
        "ModuleNotFoundError: {module}",
        f"install the package that holds {{module}} {_PACKAGE}",
        scope="error",
    ),
    signature(
        "tokenizer_files",
        r"(?P<error>.*)",
        "the tokenizer cannot be loaded: {error}",
        "a file of the tokenizer in sglang_model_path is damaged, or too new for transformers " + _PACKAGE,
        scope="error",
        frame=r"in get_tokenizer$|tokenization_\w+\.py",
    ),
    signature(
        "permission",
        r"PermissionError: \[Errno 13\] Permission denied: '(?P<path>[^']*)'",
        "permission denied: {path}",
        "give sglang_user the right to it, or run the server as a user that has it",
        scope="error",
    ),
    signature(
        "too_many_files",
        r"OSError: \[Errno 24\] Too many open files|can't start new thread|pthread_create failed"
        r"|\[Errno 11\] Resource temporarily unavailable",
        "a limit of open files or threads is reached",
        "raise LimitNOFILE, LimitNPROC and TasksMax of the server's unit, or the container's limits",
    ),
    signature(
        "disk_full",
        r"^(?!.*(?:/dev/shm|shared memory|</torch_)).*(?:No space left on device|Disk quota exceeded)",
        "a disk (or a quota of it) is full",
        "free space where the server writes (caches, /dev/shm, temporary directory, ringmaster_state_dir)",
        details=((r"(?:error writing to |(?:left on device|quota exceeded): '?)(?P<path>/[^':]+)", ": {path}"),),
    ),
)

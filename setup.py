"""Build of disk_ops: C++ and CUDA ops compiled against the PyTorch of the user's own environment.

Everything static is in pyproject.toml. Here: finding that PyTorch (also from inside pip's isolated build), deciding
whether the CUDA ops are built (`DISK_OPS_CUDA=auto|0|1`), and the compilation. The decision is made of pure functions
that tests/test_build.py imports; `setup()` runs only when a build tool executes this file.
"""

from __future__ import annotations

import glob
import importlib
import json
import os
import platform
import re
import shutil
import site
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent
INSTALL_TORCH_FIRST = (
    "disk_ops compiles against the PyTorch that you use, and none was found: install torch first (pip install torch), "
    "then run `pip install .` (or `pip install --no-build-isolation .`, where the build tool hides your environment)"
)
OLDEST_TORCH = (2, 4)
# What is needed besides torch itself: see `dependencies`.
DEPENDENCIES = ["kornia>=0.7", "numpy", "opencv-python", "h5py", "safetensors", "tqdm"]
DEPENDENCIES.append("tomli; python_version < '3.11'")
# Built when no GPU can be asked. Newer GPUs compile the PTX of the last one when they load it.
DEFAULT_ARCHS = ("7.0", "7.5", "8.0", "8.6", "8.9", "9.0")


# ---------------------------------------------------------------------------------------------- the user's PyTorch


def environment_site_packages() -> list[str]:
    """Folders of installed packages that pip's isolated build hides: those of the environment it installs into."""
    folders = [sysconfig.get_path("platlib"), sysconfig.get_path("purelib"), *site.getsitepackages()]
    config = Path(sys.prefix) / "pyvenv.cfg"
    in_venv = sys.prefix != sys.base_prefix
    if not in_venv:
        folders.append(site.getusersitepackages())
    elif config.is_file() and re.search(r"(?im)^include-system-site-packages\s*=\s*true", config.read_text()):
        base = {"base": sys.base_prefix, "platbase": sys.base_prefix, "installed_base": sys.base_prefix}
        folders += [site.getusersitepackages(), sysconfig.get_path("platlib", vars=base)]
        folders += site.getsitepackages([sys.base_prefix])
    return [folder for folder in dict.fromkeys(folders) if folder not in sys.path]


def import_torch() -> None:
    """Make `import torch` work, or stop with a message that says what to do."""
    try:
        importlib.import_module("torch")
        return
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
    sys.path.extend(environment_site_packages())  # last, so that the build's own setuptools stays in use
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise SystemExit(INSTALL_TORCH_FIRST) from None


def dependencies(torch_version: str) -> list[str]:
    """Requirements of the package: exactly the torch that it is compiled against.

    With an open requirement, another dependency that wants a newer torch would make pip replace the one of the user,
    and leave compiled ops that don't fit it. A local version ("+cu130") is met by the public one that is named here.
    """
    public = torch_version.partition("+")[0]
    numbers = re.match(r"(\d+)\.(\d+)", public)
    if numbers is None or tuple(map(int, numbers.groups())) < OLDEST_TORCH:
        raise SystemExit(f"disk_ops needs torch {'.'.join(map(str, OLDEST_TORCH))} or later, got {torch_version}")
    return [f"torch=={public}", *DEPENDENCIES]


# ------------------------------------------------------------------------------------------------ the CUDA toolkit


class Toolkit(NamedTuple):
    """A CUDA toolkit that can compile: where it is, its version, and the architectures its nvcc knows."""

    home: str
    version: str
    archs: tuple[str, ...]


def _output(command: list[str]) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout + result.stderr


def ask_nvcc(nvcc: str) -> Toolkit | None:
    """The toolkit behind `nvcc`, which may be a wrapper script far away from it; None if it is not complete."""
    release = re.search(r"release (\d+\.\d+)", _output([nvcc, "--version"]))
    if release is None:
        return None
    top = re.search(r"(?m)^#\$ TOP=(.+?)\s*$", _output([nvcc, "--dryrun", "-x", "cu", os.devnull]))
    home = Path(top.group(1)) if top else Path(nvcc).resolve().parent.parent
    home = home.resolve()
    program = "nvcc.exe" if os.name == "nt" else "nvcc"
    headers = [*home.glob("include/cuda_runtime.h"), *home.glob("targets/*/include/cuda_runtime.h")]
    if not (home / "bin" / program).is_file() or not headers:
        return None
    names = re.findall(r"compute_(\d+)(\d)\b", _output([nvcc, "--list-gpu-arch"]))
    archs = sorted({(int(major), int(minor)) for major, minor in names})
    return Toolkit(str(home), release.group(1), tuple(f"{major}.{minor}" for major, minor in archs))


def find_toolkit(environ: Mapping[str, str], guess: str | None) -> Toolkit | None:
    """The first complete toolkit: of CUDA_HOME or CUDA_PATH, torch's own guess, nvcc on PATH, the usual folder."""
    homes = [environ.get("CUDA_HOME"), environ.get("CUDA_PATH"), guess]
    candidates = [os.path.join(home, "bin", "nvcc") for home in homes if home]
    on_path = shutil.which("nvcc", path=environ.get("PATH"))
    candidates += [on_path] if on_path else []
    candidates.append("/usr/local/cuda/bin/nvcc")
    for nvcc in dict.fromkeys(candidates):
        toolkit = ask_nvcc(nvcc)
        if toolkit is not None:
            return toolkit
    return None


# ---------------------------------------------------------------------------------------------------- the decision


class Environment(NamedTuple):
    """What the decision depends on. A visible GPU only narrows the architectures: it never decides."""

    torch_version: str
    torch_cuda: str | None
    torch_hip: str | None
    toolkit: Toolkit | None
    visible_archs: tuple[str, ...] = ()
    arch_list: str | None = None


class Decision(NamedTuple):
    """What is built, the one line that says so and why, and the architectures (TORCH_CUDA_ARCH_LIST)."""

    with_cuda: bool
    line: str
    archs: str


class BuildError(SystemExit):
    """A build that was asked for and can't be had; the message says why and what to do."""


def parse_request(value: str | None) -> str:
    """DISK_OPS_CUDA as "auto", "0" or "1"."""
    request = (value or "auto").strip().lower()
    if request not in ("auto", "0", "1"):
        raise BuildError(f"DISK_OPS_CUDA must be auto, 0 or 1, got {value!r}")
    return request


def _arch_key(arch: str) -> tuple[int, int]:
    major, minor = arch.split(".")
    return int(major), int(minor)


def choose_archs(arch_list: str | None, visible: tuple[str, ...], known: tuple[str, ...]) -> str:
    """TORCH_CUDA_ARCH_LIST: the user's, else that of the GPUs in sight, else the default; only what nvcc knows."""
    if arch_list and arch_list != "native":
        return arch_list
    wanted = visible or DEFAULT_ARCHS
    chosen = [arch for arch in wanted if not known or arch in known]
    if not chosen:  # a GPU newer than nvcc: the newest PTX that nvcc can make runs there
        older = [arch for arch in known if _arch_key(arch) <= max(map(_arch_key, wanted))]
        chosen = [older[-1] if older else known[0]]
    chosen = sorted(set(chosen), key=_arch_key)
    return ";".join(chosen) + "+PTX"


def why_not_cuda(environment: Environment) -> str | None:
    """Why the CUDA ops can't be built for this torch on this machine, and what to do; None if they can."""
    version, cuda, toolkit = environment.torch_version, environment.torch_cuda, environment.toolkit
    if environment.torch_hip is not None:
        return f"torch {version} is a ROCm build, for which there are no kernels"
    if cuda is None:
        return f"torch {version} is a CPU-only build; install a CUDA build of torch to have them"
    if toolkit is None:
        return (
            f"torch {version} is built for CUDA {cuda}, but no CUDA toolkit with nvcc was found; "
            f"install CUDA toolkit {cuda.split('.')[0]}.x, or set CUDA_HOME to the folder that has bin/nvcc"
        )
    if toolkit.version.split(".")[0] != cuda.split(".")[0]:
        return (
            f"torch {version} is built for CUDA {cuda}, but nvcc in {toolkit.home} is CUDA {toolkit.version}; "
            f"set CUDA_HOME to a CUDA {cuda.split('.')[0]}.x toolkit"
        )
    return None


def decide(request: str, environment: Environment) -> Decision:
    """The decision table; `request` is what `parse_request` returns."""
    torch_version = environment.torch_version
    if request == "0":
        return Decision(False, f"disk_ops: building CPU ops only for torch {torch_version}: DISK_OPS_CUDA=0", "")
    reason = why_not_cuda(environment)
    if reason is not None:
        if request == "1":
            raise BuildError(f"disk_ops: DISK_OPS_CUDA=1, but the CUDA ops can't be built: {reason}")
        return Decision(False, f"disk_ops: building CPU ops only: {reason}", "")
    toolkit = environment.toolkit
    assert toolkit is not None
    archs = choose_archs(environment.arch_list, environment.visible_archs, toolkit.archs)
    if environment.arch_list and environment.arch_list != "native":
        source = "TORCH_CUDA_ARCH_LIST"
    else:
        source = "the GPUs of this machine" if environment.visible_archs else "the default, as no GPU is visible"
    line = (
        f"disk_ops: building CPU and CUDA ops for torch {torch_version} (CUDA {environment.torch_cuda}) with CUDA "
        f"{toolkit.version} in {toolkit.home}, architectures {archs} ({source})"
    )
    return Decision(True, line, archs)


def inspect_environment(environ: Mapping[str, str]) -> Environment:
    """The environment as it is: torch, toolkit, GPUs."""
    import torch
    from torch.utils import cpp_extension

    toolkit = find_toolkit(environ, cpp_extension.CUDA_HOME) if torch.version.cuda else None
    visible: set[str] = set()
    if torch.version.cuda:
        for index in range(torch.cuda.device_count()):
            major, minor = torch.cuda.get_device_capability(index)
            visible.add(f"{major}.{minor}")
    return Environment(
        torch_version=str(torch.__version__),
        torch_cuda=torch.version.cuda,
        torch_hip=getattr(torch.version, "hip", None),
        toolkit=toolkit,
        visible_archs=tuple(sorted(visible, key=_arch_key)),
        arch_list=environ.get("TORCH_CUDA_ARCH_LIST"),
    )


# --------------------------------------------------------------------------------------------------- the extension


def compile_flags(system: str) -> dict[str, list[str]]:
    """Flags for the C++ compiler and nvcc. torch adds the language standard; -ffast-math would break NaN and inf."""
    if system == "Windows":
        return {"cxx": ["/O2"], "nvcc": ["-O3"]}
    cxx = ["-O3", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra"]
    if system == "Linux":
        # at::parallel_for is inlined from torch's header and runs on one thread unless compiled with OpenMP. Nothing
        # is linked for it: the symbols resolve to the OpenMP runtime that torch itself has loaded, so that there is
        # one pool of threads and torch.set_num_threads() holds here too.
        cxx.append("-fopenmp")
    return {"cxx": cxx, "nvcc": ["-O3", "-lineinfo"]}


def sources(with_cuda: bool) -> list[str]:
    """Sources by pattern, relative to this file."""
    patterns = ["csrc/*.cpp", "csrc/cpu/*.cpp", "python/bindings.cpp"]
    if with_cuda:
        patterns += ["csrc/cuda/*.cpp", "csrc/cuda/*.cu"]
    return sorted(path for pattern in patterns for path in glob.glob(pattern, root_dir=ROOT))


def build_info_header(info: Mapping[str, str]) -> str:
    """The C++ header from which disk_ops._C.build_info() answers."""
    entries = "".join(f"    {{{json.dumps(key)}, {json.dumps(value)}}},\n" for key, value in info.items())
    return (
        "// Written by setup.py.\n#pragma once\n\nnamespace disk_ops {\n\n"
        "struct BuildInfoEntry {\n  const char* key;\n  const char* value;\n};\n\n"
        f"inline constexpr BuildInfoEntry kBuildInfo[] = {{\n{entries}}};\n\n}}  // namespace disk_ops\n"
    )


def describe_build(decision: Decision, environment: Environment, compiler: str, flags: list[str]) -> dict[str, str]:
    """What `_build_info.json` and disk_ops._C.build_info() say."""
    return {
        "torch": environment.torch_version,
        "python": platform.python_version(),
        "with_cuda": "1" if decision.with_cuda else "0",
        "cuda": environment.toolkit.version if decision.with_cuda and environment.toolkit else "none",
        "archs": decision.archs or "none",
        "compiler": compiler,
        "flags": " ".join(flags),
        "decision": decision.line,
    }


def write_if_changed(path: Path, text: str) -> None:
    """Write, but leave the time of an unchanged file alone, so that nothing is compiled again for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def main() -> None:
    """Run setuptools with the extension."""
    import_torch()
    import setuptools
    import torch
    from torch.utils import cpp_extension

    # One build folder for each torch, so that objects compiled against another one are never linked.
    build_base = "build/torch-" + re.sub(r"[^\w.+-]", "_", str(torch.__version__))

    class BuildExtension(cpp_extension.BuildExtension):
        """Decides, says so once, compiles, and leaves `_build_info.json` next to the library."""

        def finalize_options(self) -> None:
            super().finalize_options()
            self.force = True  # link again even if no source is newer: torch may be another one
            if getattr(self, "editable_mode", False):  # else a temporary folder, and all is compiled each time
                self.build_temp = f"{build_base}/temp.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"

        def configure(self, extension: setuptools.Extension) -> dict[str, str]:
            """Turn the placeholder into the extension that was decided on."""
            environment = inspect_environment(os.environ)
            decision = decide(parse_request(os.environ.get("DISK_OPS_CUDA")), environment)
            print(decision.line, flush=True)
            make = cpp_extension.CppExtension
            if decision.with_cuda:
                assert environment.toolkit is not None
                os.environ["CUDA_HOME"] = cpp_extension.CUDA_HOME = environment.toolkit.home
                os.environ["TORCH_CUDA_ARCH_LIST"] = decision.archs
                make = cpp_extension.CUDAExtension
            flags = compile_flags(platform.system())
            compiler = _output([*cpp_extension.get_cxx_compiler().split(), "--version"]).splitlines()
            info = describe_build(decision, environment, compiler[0] if compiler else "unknown", flags["cxx"])
            generated = Path(self.build_temp).resolve() / "generated"
            write_if_changed(generated / "disk_ops_build_info.h", build_info_header(info))
            if platform.system() != "Windows":  # no warnings from headers that are not ours
                flags = {
                    **flags,
                    "cxx": [*flags["cxx"], *(f"-isystem{path}" for path in cpp_extension.include_paths())],
                }
            built = make(
                extension.name,
                sources(decision.with_cuda),
                include_dirs=[str(ROOT / "csrc"), str(generated)],
                extra_compile_args=flags,
            )
            vars(extension).update(vars(built))  # in place: setuptools has already noted other things on it
            return info

        def run(self) -> None:
            extension = self.extensions[0]
            info = self.configure(extension)
            record = Path(self.get_ext_fullpath(extension.name)).with_name("_build_info.json")
            record.unlink(missing_ok=True)  # no record, no use: a build that fails half-way leaves nothing to load
            super().run()
            write_if_changed(record, json.dumps(info, indent=1) + "\n")

    setuptools.setup(
        license="Apache-2.0",
        install_requires=dependencies(str(torch.__version__)),
        ext_modules=[setuptools.Extension("disk_ops._C", sources=sources(with_cuda=False))],
        cmdclass={"build_ext": BuildExtension},
        options={"build": {"build_base": build_base}},
    )


if __name__ == "__main__":
    main()

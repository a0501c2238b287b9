"""What setup.py decides and says, in-process and with made-up environments."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


def load_setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("disk_ops_setup", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = load_setup()
CUDA13 = build.Toolkit("/opt/cuda-13.0", "13.0", ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"))
CUDA12 = build.Toolkit("/opt/cuda-12.4", "12.4", ("7.0", "7.5", "8.0", "8.6", "8.9", "9.0"))


def environment(**changes):
    values = {"torch_version": "2.13.0+cu130", "torch_cuda": "13.0", "torch_hip": None, "toolkit": CUDA13}
    return build.Environment(**{**values, **changes})


CPU_TORCH = {"torch_version": "2.13.0+cpu", "torch_cuda": None}


class TestRequest:
    @pytest.mark.parametrize(
        ("value", "request_"),
        [(None, "auto"), ("", "auto"), ("auto", "auto"), ("AUTO ", "auto"), ("0", "0"), ("1", "1")],
    )
    def test_values(self, value, request_):
        assert build.parse_request(value) == request_

    @pytest.mark.parametrize("value", ["yes", "2", "true", "cuda"])
    def test_other_values_are_errors(self, value):
        with pytest.raises(SystemExit, match=f"DISK_OPS_CUDA must be auto, 0 or 1, got '{value}'"):
            build.parse_request(value)


class TestDecision:
    """The table: CPU-only torch; CUDA torch with nvcc; without; different majors; no GPU visible."""

    @pytest.mark.parametrize("toolkit", [None, CUDA13], ids=["without nvcc", "with nvcc"])
    def test_cpu_torch(self, toolkit):
        decision = build.decide("auto", environment(**CPU_TORCH, toolkit=toolkit))
        assert not decision.with_cuda
        assert decision.line.startswith("disk_ops: building CPU ops only: torch 2.13.0+cpu is a CPU-only build")
        with pytest.raises(SystemExit, match=r"DISK_OPS_CUDA=1.*torch 2\.13\.0\+cpu is a CPU-only build"):
            build.decide("1", environment(**CPU_TORCH, toolkit=toolkit))

    @pytest.mark.parametrize("request_", ["auto", "1"])
    def test_cuda_torch_with_nvcc(self, request_):
        decision = build.decide(request_, environment())
        assert decision.with_cuda
        assert decision.line.startswith("disk_ops: building CPU and CUDA ops for torch 2.13.0+cu130 (CUDA 13.0)")
        assert "/opt/cuda-13.0" in decision.line
        assert decision.archs in decision.line

    def test_minor_versions_may_differ(self):
        toolkit = CUDA13._replace(version="13.2")
        assert build.decide("auto", environment(toolkit=toolkit)).with_cuda

    def test_cuda_torch_without_nvcc(self):
        decision = build.decide("auto", environment(toolkit=None))
        assert not decision.with_cuda
        assert "CPU ops only" in decision.line
        assert "no CUDA toolkit with nvcc was found" in decision.line
        with pytest.raises(SystemExit, match=r"no CUDA toolkit.*install CUDA toolkit 13\.x, or set CUDA_HOME"):
            build.decide("1", environment(toolkit=None))

    def test_different_majors(self):
        decision = build.decide("auto", environment(toolkit=CUDA12))
        assert not decision.with_cuda
        assert "CUDA 13.0" in decision.line
        assert "CUDA 12.4" in decision.line
        with pytest.raises(SystemExit, match=r"CUDA 13\.0.*CUDA 12\.4"):
            build.decide("1", environment(toolkit=CUDA12))

    def test_rocm_torch(self):
        rocm = {"torch_version": "2.13.0+rocm7", "torch_cuda": None, "torch_hip": "7.0"}
        assert "ROCm" in build.decide("auto", environment(**rocm)).line

    def test_zero_never_builds_cuda(self):
        decision = build.decide("0", environment())
        assert not decision.with_cuda
        assert decision.line.endswith("DISK_OPS_CUDA=0")

    @pytest.mark.parametrize("visible", [(), ("9.0",)], ids=["no GPU", "GPU"])
    def test_a_visible_gpu_does_not_decide(self, visible):
        assert build.decide("auto", environment(visible_archs=visible)).with_cuda
        assert not build.decide("auto", environment(**CPU_TORCH, visible_archs=visible)).with_cuda

    def test_the_message_is_one_line(self):
        for changes in ({}, CPU_TORCH, {"toolkit": None}, {"toolkit": CUDA12}):
            assert "\n" not in build.decide("auto", environment(**changes)).line


class TestArchs:
    def test_users_list_is_kept(self):
        decision = build.decide("auto", environment(arch_list="8.0;9.0", visible_archs=("8.6",)))
        assert decision.archs == "8.0;9.0"
        assert "(TORCH_CUDA_ARCH_LIST)" in decision.line

    def test_no_gpu_gets_the_default_list_that_nvcc_knows(self):
        decision = build.decide("auto", environment())
        assert decision.archs == "7.5;8.0;8.6;8.9;9.0+PTX"
        assert "no GPU is visible" in decision.line
        old = build.decide("auto", environment(torch_cuda="12.4", toolkit=CUDA12))
        assert old.archs == "7.0;7.5;8.0;8.6;8.9;9.0+PTX"

    def test_visible_gpus_only(self):
        decision = build.decide("auto", environment(visible_archs=("8.6", "12.0"), arch_list="native"))
        assert decision.archs == "8.6;12.0+PTX"
        assert "the GPUs of this machine" in decision.line

    def test_gpu_newer_than_nvcc_gets_the_newest_ptx(self):
        assert build.choose_archs(None, ("12.0",), CUDA12.archs) == "9.0+PTX"

    def test_nvcc_that_does_not_list_its_archs(self):
        assert build.choose_archs(None, (), ()).endswith(";9.0+PTX")


def make_toolkit(home: Path, version: str = "13.0", headers: bool = True) -> Path:
    """A toolkit folder whose nvcc answers as the real one does, with TOP from its own place."""
    (home / "bin").mkdir(parents=True)
    if headers:
        (home / "include").mkdir()
        (home / "include" / "cuda_runtime.h").touch()
    nvcc = home / "bin" / "nvcc"
    nvcc.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        f"--version) echo 'Cuda compilation tools, release {version}, V{version}.88' ;;\n"
        f"--dryrun) echo '#$ _HERE_={home}/bin' >&2; echo '#$ TOP={home}/bin/..' >&2 ;;\n"
        "--list-gpu-arch) echo compute_75; echo compute_90; echo compute_100 ;;\n"
        "esac\n"
    )
    nvcc.chmod(0o755)
    return nvcc


@pytest.mark.skipif(os.name == "nt", reason="shell scripts")
class TestToolkit:
    @pytest.fixture(autouse=True)
    def no_toolkit_of_this_machine(self, monkeypatch):
        real = build.ask_nvcc
        monkeypatch.setattr(build, "ask_nvcc", lambda nvcc: None if nvcc.startswith("/usr/local/") else real(nvcc))

    def path(self, *folders: Path) -> dict[str, str]:
        return {"PATH": os.pathsep.join([*map(str, folders), os.environ["PATH"].replace("/usr/local/bin", "")])}

    def test_wrapper_script_on_path(self, tmp_path):
        nvcc = make_toolkit(tmp_path / "cuda-13.0")
        wrapper = tmp_path / "prefix" / "bin" / "nvcc"
        wrapper.parent.mkdir(parents=True)
        wrapper.write_text(f'#!/bin/sh\nexec {nvcc} "$@"\n')
        wrapper.chmod(0o755)
        # torch would guess tmp_path/prefix, where there is no toolkit
        found = build.find_toolkit(self.path(wrapper.parent), str(tmp_path / "prefix"))
        assert found == build.Toolkit(str(tmp_path / "cuda-13.0"), "13.0", ("7.5", "9.0", "10.0"))

    def test_cuda_home_comes_first(self, tmp_path):
        make_toolkit(tmp_path / "a", "12.8")
        make_toolkit(tmp_path / "b", "13.0")
        environ = {**self.path(tmp_path / "b" / "bin"), "CUDA_HOME": str(tmp_path / "a")}
        assert build.find_toolkit(environ, None).version == "12.8"

    def test_wrong_cuda_home_falls_through(self, tmp_path):
        make_toolkit(tmp_path / "b", "13.0")
        environ = {**self.path(tmp_path / "b" / "bin"), "CUDA_HOME": str(tmp_path / "nowhere")}
        assert build.find_toolkit(environ, None).home == str(tmp_path / "b")

    def test_runtime_only_folder_is_no_toolkit(self, tmp_path):
        (tmp_path / "runtime" / "lib64").mkdir(parents=True)
        environ = {"PATH": "", "CUDA_HOME": str(tmp_path / "runtime")}
        assert build.find_toolkit(environ, str(tmp_path / "runtime")) is None

    def test_nvcc_without_headers_is_no_toolkit(self, tmp_path):
        nvcc = make_toolkit(tmp_path / "cuda", headers=False)
        assert build.ask_nvcc(str(nvcc)) is None


class TestExtension:
    def test_importing_setup_runs_nothing(self):
        assert callable(build.main)

    def test_cuda_sources_are_built_with_cuda_only(self):
        cpu, cuda = build.sources(False), build.sources(True)
        assert "csrc/ops.cpp" in cpu and "python/bindings.cpp" in cpu
        assert any(path.startswith("csrc/cpu/") for path in cpu)
        assert set(cpu) < set(cuda)
        assert all(path.startswith("csrc/cuda/") for path in set(cuda) - set(cpu))

    def test_object_names_do_not_clash(self):
        """Objects are named by stem: cuda/x.cpp and cuda/x.cu would be one object."""
        stems = [os.path.splitext(path)[0] for path in build.sources(True)]
        assert len(stems) == len(set(stems))

    @pytest.mark.parametrize("system", ["Linux", "Darwin", "Windows"])
    def test_flags(self, system):
        flags = [flag for group in build.compile_flags(system).values() for flag in group]
        assert not [flag for flag in flags if "fast" in flag or "std" in flag]
        assert ("-fopenmp" in flags) == (system == "Linux")

    def test_header_quotes_what_it_is_given(self):
        header = build.build_info_header({"archs": "8.0;9.0", "compiler": 'g++ "x" \\ y'})
        assert '{"archs", "8.0;9.0"},' in header
        assert '{"compiler", "g++ \\"x\\" \\\\ y"},' in header

    def test_torch_is_no_build_requirement(self):
        text = (ROOT / "pyproject.toml").read_text()
        requires = re.search(r"(?m)^requires = (\[.*\])$", text)
        assert requires is not None and "torch" not in requires.group(1)

    @pytest.mark.parametrize("version", ["2.13.0+cpu", "2.13.0"])
    def test_no_dependency_can_replace_torch(self, version):
        first, *others = build.dependencies(version)
        assert first == "torch==2.13.0"
        assert not [name for name in others if name.startswith("torch")]

    @pytest.mark.parametrize("version", ["2.3.1", "1.13.0+cu117"])
    def test_torch_that_is_too_old(self, version):
        with pytest.raises(SystemExit, match=rf"disk_ops needs torch 2\.4 or later, got {re.escape(version)}"):
            build.dependencies(version)


class TestFindingTorch:
    """As inside pip's isolated build: the interpreter is the environment's, its packages are not on the path."""

    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        hide = "import site, sys; hidden = set(site.getsitepackages()); "
        hide += "sys.path[:] = [path for path in sys.path if path not in hidden]; "
        code = f"{hide} sys.path.insert(0, {str(ROOT)!r}); import setup; assert 'torch' not in sys.modules; {code}"
        command = [sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)

    def test_hidden_environment_is_found(self):
        result = self.run("setup.import_torch(); import torch; print(torch.__version__)")
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip() == torch.__version__

    def test_no_torch_at_all(self):
        result = self.run("setup.environment_site_packages = lambda: []; setup.import_torch()")
        assert result.returncode == 1
        assert "install torch first" in result.stderr
        assert "Traceback" not in result.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="shell commands")
def test_bad_request_stops_the_build(tmp_path):
    """The whole way through setuptools; nothing is compiled."""
    environ = {**os.environ, "DISK_OPS_CUDA": "maybe"}
    command = [
        sys.executable,
        "setup.py",
        "-q",
        "build_ext",
        "--build-lib",
        str(tmp_path),
        "--build-temp",
        str(tmp_path),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environ)
    assert result.returncode != 0
    assert "DISK_OPS_CUDA must be auto, 0 or 1, got 'maybe'" in result.stderr

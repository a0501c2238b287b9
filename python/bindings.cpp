// The extension module disk_ops._C. Importing it loads the ops (TORCH_LIBRARY blocks run when the shared library is
// opened); no tensor crosses this binding, so it needs pybind11 only and compiles in seconds.

#include <pybind11/pybind11.h>

#include <string>

#include "cpu/kept_memory.h"
#include "disk_ops_build_info.h"  // written by setup.py: kBuildInfo, an array of {key, value}

namespace py = pybind11;

namespace {

py::dict build_info() {
  py::dict info;
  for (const auto& entry : disk_ops::kBuildInfo) {
    info[py::str(entry.key)] = py::str(entry.value);
  }
  return info;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "Compiled ops of disk_ops: importing this module registers torch.ops.disk_ops.*";
  m.def("build_info", &build_info, "What this library was built for: torch, cuda, archs, compiler, flags, with_cuda.");
  m.def("kept_bytes", &disk_ops::kept_bytes, "Bytes of freed tensors that are kept for the next ones.");
  m.def("kept_limit", &disk_ops::kept_limit, "The most that may be kept.");
  m.def("set_kept_limit", &disk_ops::set_kept_limit, "Set the most that may be kept, and release what is above.");
  m.def("add_kept_bound", &disk_ops::add_kept_bound, "Bound what is kept, besides the limit.");
  m.def("remove_kept_bound", &disk_ops::remove_kept_bound, "Remove one such bound.");
  m.def("release_kept", &disk_ops::release_kept, "Give back all that is kept.");
}

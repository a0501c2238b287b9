"""What a result was made with: the commit of the source tree and the versions of packages."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import disk_ops


def source_commit() -> str | None:
    """The commit of the source tree, with + where it was changed since; None where the package is not run from one."""
    root = Path(disk_ops.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    try:
        commit, changes = (
            subprocess.run(["git", "-C", str(root), *command], capture_output=True, text=True, check=True, timeout=10)
            for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.stdout.strip() + ("+" if changes.stdout.strip() else "")


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of those packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found

"""What is published: the wheel holds ``weft/`` alone and works by itself; the sdist builds the same wheel, and its
tests run."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

import weft
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

#: Folders of the repository that are links in ``weft``.
LINKED = ("solver", "models", "runtime")


def tracked() -> list[str]:
    """The repository's files."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("the files to publish are those that git knows, and this is no checkout")
    ended = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                           capture_output=True, text=True, check=True, timeout=60)
    return [name for name in ended.stdout.split("\0") if name and os.path.lexists(ROOT / name)]


def built(what: str, source: Path, target: Path) -> Path:
    """The ``wheel`` or ``sdist`` of ``source``."""
    target.mkdir()
    code = f"from setuptools import build_meta; build_meta.build_{what}({str(target)!r})"
    ended = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found, = target.iterdir()
    return found


@dataclass(frozen=True)
class Published:
    """Both distributions of a copy of the repository; ``unpacked`` is the sdist as a folder."""

    names: list[str]
    wheel: Path
    sdist: Path
    unpacked: Path


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    if importlib.util.find_spec("setuptools") is None or int(metadata.version("setuptools").partition(".")[0]) < 77:
        pytest.skip("building needs setuptools 77 or later in this environment")
    names, folder = tracked(), tmp_path_factory.mktemp("published")
    for name in names:
        copy = folder / "source" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy, follow_symlinks=False)
    sdist = built("sdist", folder / "source", folder / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return Published(names, built("wheel", folder / "source", folder / "wheel"), sdist,
                     folder / sdist.name.removesuffix(".tar.gz"))


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel, but for its list of them."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def test_the_wheel_holds_weft_alone(published: Published) -> None:
    held, about = contents(published.wheel), f"weft-{weft.__version__}.dist-info"
    assert {name.partition("/")[0] for name in held} == {"weft", about}
    assert {"weft/py.typed", f"{about}/licenses/LICENSE", f"{about}/entry_points.txt"} <= held.keys()
    expected = {f"weft/{name}" if name.startswith(LINKED) else name for name in published.names
                if name.startswith((*(f"{room}/" for room in LINKED), "weft/"))} - {f"weft/{room}" for room in LINKED}
    assert {name for name in held if name.startswith("weft/")} == expected  # sources and data, nothing else


def test_the_sdist_builds_the_same_wheel(published: Published, tmp_path: Path) -> None:
    assert not any(path.is_symlink() for path in published.unpacked.rglob("*"))
    assert contents(built("wheel", published.unpacked, tmp_path / "wheel")) == contents(published.wheel)


def test_the_sdist_holds_what_its_tests_read(published: Published) -> None:
    expected = {name for name in published.names if name.startswith(("tests/", "experiments/", "docs/"))}
    found = {path.relative_to(published.unpacked).as_posix() for room in ("tests", "experiments", "docs")
             for path in (published.unpacked / room).rglob("*") if path.is_file()}
    assert found == expected


def test_tests_run_in_the_sdist(published: Published) -> None:
    some = ["tests/weft/text", "tests/weft/cli/test_main.py", "tests/docs/test_formats_page.py",
            "tests/models/layers/test_cluster.py", "tests/solver/judge/test_validate.py"]
    ended = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *some],
                           cwd=published.unpacked, capture_output=True, text=True, timeout=280,
                           env={**os.environ, "PYTHONPATH": str(published.unpacked)})
    assert ended.returncode == 0, ended.stdout[-3000:]


def test_the_unpacked_wheel_runs_by_itself(published: Published, tmp_path: Path) -> None:
    with zipfile.ZipFile(published.wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = "import weft; print(weft.__file__)"
    for arguments, told in ((["-c", code], str(tmp_path)), (["-m", "weft", "demo", "--help"], "weft demo"),
                            (["-m", "weft", "--version"], f"weft {weft.__version__}")):
        ended = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120,
                               env={**os.environ, "PYTHONPATH": str(tmp_path / "site")})
        assert ended.returncode == 0 and told in ended.stdout, ended.stderr

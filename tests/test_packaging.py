"""What is published: the wheel holds ``weft/`` alone, with the compiled kernel, and works by itself; without a compiler
it is built without the kernel; the sdist builds the same wheel, and its tests run."""

from __future__ import annotations

import importlib.util
import os
import random
import re
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
from tests.support import ROOT, pipeline, uneven, v
from weft.solver.control.compiled import why_not
from weft.solver.io.problem_files import save_problem

pytestmark = pytest.mark.slow

#: Folders of the repository that are links in ``weft``.
LINKED = ("solver", "models", "runtime")


def tracked() -> list[str]:
    """The repository's files."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("the files to publish are those that git knows, and this is no checkout")
    ended = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                           capture_output=True, text=True, check=True, timeout=600)
    return [name for name in ended.stdout.split("\0") if name and os.path.lexists(ROOT / name)]


def built(what: str, source: Path, target: Path, compiler: Path | None = None) -> Path:
    """The ``wheel`` or ``sdist`` of ``source``, with another ``compiler`` than there is."""
    target.mkdir()
    code = f"from setuptools import build_meta; build_meta.build_{what}({str(target)!r})"
    ended = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=600,
                           env=os.environ | ({} if compiler is None else {"CC": str(compiler), "CXX": str(compiler)}))
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


def kernels(wheel: Path) -> set[str]:
    """The compiled kernel in a wheel, if it is there."""
    return {name for name in contents(wheel) if re.fullmatch(r"weft/solver/orders/_kernel\.(abi3\.so|pyd)", name)}


def test_the_wheel_holds_weft_alone(published: Published) -> None:
    held, about = contents(published.wheel), f"weft-{weft.__version__}.dist-info"
    assert {name.partition("/")[0] for name in held} == {"weft", about}
    assert {"weft/py.typed", f"{about}/licenses/LICENSE", f"{about}/entry_points.txt"} <= held.keys()
    expected = {f"weft/{name}" if name.startswith(LINKED) else name for name in published.names
                if name.startswith((*(f"{room}/" for room in LINKED), "weft/"))} - {f"weft/{room}" for room in LINKED}
    assert expected <= held.keys()  # sources and data; and the kernel, nothing else
    assert {name for name in held.keys() - expected if name.startswith("weft/")} == kernels(published.wheel)
    assert re.fullmatch(rf"weft-{weft.__version__}-cp311-abi3-\w+\.whl", published.wheel.name)
    assert len(kernels(published.wheel)) == (why_not() is None)


def test_the_sdist_builds_the_same_wheel(published: Published, tmp_path: Path) -> None:
    assert not any(path.is_symlink() for path in published.unpacked.rglob("*"))
    assert contents(built("wheel", published.unpacked, tmp_path / "wheel")) == contents(published.wheel)


def test_the_sdist_holds_what_its_tests_read(published: Published) -> None:
    expected = {name for name in published.names if name.startswith(("tests/", "experiments/", "docs/"))}
    found = {path.relative_to(published.unpacked).as_posix() for room in ("tests", "experiments", "docs")
             for path in (published.unpacked / room).rglob("*") if path.is_file()}
    assert found == expected
    assert all((published.unpacked / f"weft/solver/{name}.cpp").is_file()
               for name in ("orders/kernel", "orders/lists", "bounds/states/layers"))


def test_tests_run_in_the_sdist(published: Published) -> None:
    some = ["tests/weft/text", "tests/weft/cli/test_main.py", "tests/docs/test_formats_page.py",
            "tests/models/layers/test_cluster.py", "tests/solver/judge/test_validate.py"]
    ended = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *some],
                           cwd=published.unpacked, capture_output=True, text=True, timeout=600,
                           env={**os.environ, "PYTHONPATH": str(published.unpacked)})
    assert ended.returncode == 0, ended.stdout[-3000:]


def test_the_unpacked_wheel_runs_by_itself(published: Published, tmp_path: Path) -> None:
    with zipfile.ZipFile(published.wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = "import weft; print(weft.__file__)"
    for arguments, told in ((["-c", code], str(tmp_path)), (["-m", "weft", "demo", "--help"], "weft demo"),
                            (["-m", "weft", "--version"], f"weft {weft.__version__}")):
        ended = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=600,
                               env={**os.environ, "PYTHONPATH": str(tmp_path / "site")})
        assert ended.returncode == 0 and told in ended.stdout, ended.stderr


#: Compilers that fail, at once and when they link, with part of the kernel written; and why it is not used then.
FAILING = [("exit 1", r"it was not built, as there was no C\+\+ compiler when weft was installed"), ("""
for argument; do [ "$before" = -o ] && printf half > "$argument"; before=$argument; done
case " $* " in *" -c "*) exit 0;; esac
exit 1""", r"it does not load \(.*\)")]


@pytest.mark.skipif(os.name != "posix", reason="the compilers are shell scripts")
@pytest.mark.parametrize(("fails", "why"), FAILING, ids=["at once", "half-way"])
def test_without_a_compiler_local_search_runs_in_python(published: Published, tmp_path: Path, fails: str,
                                                        why: str) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\n{fails}\n")
    compiler.chmod(0o755)
    source = shutil.copytree(published.unpacked, tmp_path / "source", ignore=shutil.ignore_patterns("build"))
    wheel = built("wheel", source, tmp_path / "wheel", compiler)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    save_problem(uneven(pipeline(v(3), memory=4), random.Random(0)), tmp_path / "problem.json")
    ended = subprocess.run([sys.executable, "-m", "weft", "solve", "problem.json", "-n", "6", "--effort", "0.005"],
                           cwd=tmp_path, capture_output=True, text=True, timeout=600,
                           env={**os.environ, "PYTHONPATH": str(tmp_path / "site")})
    assert ended.returncode == 0 and "makespan  189" in ended.stdout, ended.stderr
    [said] = [line for line in ended.stderr.splitlines() if "kernel" in line]
    assert re.fullmatch(f"weft: the compiled kernel is not used, as {why}; local search runs in Python, a hundred "
                        "times slower", said)

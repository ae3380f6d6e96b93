"""Ages follow files through renames, and count what changes a file's meaning: on a small repository made for it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from experiments.lib.history import Changes, is_measured


class Repository:
    """A repository in a folder, a commit at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.name", "somebody")
        self.git("config", "user.email", "somebody@example.org")

    def git(self, *arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=self.root, check=True, capture_output=True, text=True
                              ).stdout.strip()

    def commit(self, **files: str) -> str:
        """Write ``files`` (``__`` in a name is a slash), and commit all there is."""
        for name, text in files.items():
            path = self.root / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "a commit")
        return self.git("rev-parse", "HEAD")

    def move(self, old: str, new: str) -> None:
        (self.root / new).parent.mkdir(parents=True, exist_ok=True)
        self.git("mv", old, new)

    def count(self, since: str, *measures: str) -> int | None:
        return Changes(self.root, since).count(measures)


def text(value: int, imports: str = "from a import b", says: str = "What it is.") -> str:
    body = "\n".join(f"    y{i} = b(x, {i})" for i in range(20))
    return f'"""{says}"""\n\n{imports}\n\n\ndef f(x):\n    """{says}"""\n{body}\n    return {value}  # {says}\n'


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_what_is_measured() -> None:
    measures = ("solver", ":(exclude)solver/placement", "models/times.py")
    assert [path for path in ("solver/a.py", "solver/period/b.py", "solver/placement/c.py", "solver2/d.py",
                              "models/times.py", "models/other.py") if is_measured(path, measures)] == [
        "solver/a.py", "solver/period/b.py", "models/times.py"]


def test_changes_under_an_old_name_count(repository: Repository) -> None:
    first = repository.commit(flat__a=text(1), other__a=text(5).replace("y", "z"))
    second = repository.commit(flat__a=text(2))
    repository.commit(other__a=text(6).replace("y", "z"))
    repository.move("flat/a.py", "solver/period/b.py")
    moved = repository.commit()
    repository.commit(solver__period__b=text(3))
    assert repository.count(first, "solver") == repository.count(first, "solver/period/b.py") == 2
    assert repository.count(second, "solver") == repository.count(moved, "solver") == 1
    assert repository.count(first, "other") == 1
    assert repository.count("HEAD", "solver") == 0


def test_renames_with_mended_imports_do_not_count_and_with_more_do(repository: Repository) -> None:
    first = repository.commit(flat__a=text(1))
    repository.move("flat/a.py", "solver/a.py")
    repository.commit(solver__a=text(1, "from weft.a import b", says="What it is, in other words."))
    assert repository.count(first, "solver") == 0
    repository.move("solver/a.py", "solver/deep/a.py")
    repository.commit(solver__deep__a=text(2, "from weft.a import b"))
    assert repository.count(first, "solver") == 1


def test_a_file_that_takes_the_name_of_another(repository: Repository) -> None:
    first = repository.commit(solver__a=text(1), solver__b=text(2).replace("y", "long_name"))
    repository.commit(solver__b=text(3).replace("y", "long_name"))
    repository.move("solver/a.py", "models/a.py")
    repository.commit()
    repository.move("solver/b.py", "solver/a.py")
    repository.commit()
    assert repository.count(first, "models") == 0
    assert repository.count(first, "solver/a.py") == 1


def test_files_that_come_go_or_are_no_python_count(repository: Repository) -> None:
    first = repository.commit(solver__a=text(1), solver__b=text(2).replace("y", "q"))
    (repository.root / "solver" / "b.py").unlink()
    repository.commit()
    assert repository.count(first, "solver") == 1
    repository.commit(solver__c=text(7).replace("y", "w"))
    (repository.root / "solver" / "data.csv").write_text("1,2\n")
    second = repository.commit()
    (repository.root / "solver" / "data.csv").write_text("1,3\n")
    repository.commit()
    assert (repository.count(first, "solver"), repository.count(second, "solver")) == (4, 1)
    third = repository.git("rev-parse", "HEAD")
    repository.commit(solver__a="def (")
    assert repository.count(third, "solver") == 1


def test_an_unknown_commit_or_no_repository(repository: Repository, tmp_path: Path) -> None:
    repository.commit(solver__a=text(1))
    assert repository.count("f" * 40, "solver") is None
    assert Changes(tmp_path / "nowhere", "HEAD").count(["solver"]) is None


def test_both_sides_of_a_merge_count(repository: Repository) -> None:
    first = repository.commit(solver__a=text(1), solver__b=text(2).replace("y", "q"))
    repository.git("checkout", "-q", "-b", "side")
    repository.commit(solver__a=text(3))
    repository.git("checkout", "-q", "main")
    repository.move("solver/b.py", "models/b.py")
    repository.commit(models__b=text(4).replace("y", "q"))
    repository.git("merge", "-q", "--no-edit", "side")
    assert (repository.count(first, "solver"), repository.count(first, "models")) == (1, 1)

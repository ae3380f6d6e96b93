import pytest

from weft.solver.spelling import near


@pytest.mark.parametrize(("name", "known", "said"), [
    ("widht", ["width", "heads"], "; did you mean 'width'?"),
    ("batch_size", ["micro_batch_size", "global_batch_size", "lengths"],
     "; did you mean 'micro_batch_size' or 'global_batch_size'?"),
    ("ray", ["gathered_arrays"], ""),
    ("nothing like it", ["width"], ""),
    ("w" * 1001, ["w" * 1001 + "s"], ""),
])
def test_what_may_have_been_meant(name: str, known: list[str], said: str) -> None:
    assert near(name, known) == said

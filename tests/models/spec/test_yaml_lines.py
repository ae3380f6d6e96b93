"""YAML as data, with the line of every entry."""

from __future__ import annotations

import pytest

from weft.models.spec.yaml_lines import LinedYaml, YamlError, show_path


def test_a_path_is_shown_as_people_write_it() -> None:
    assert show_path(("model", "layers", 2, "forward")) == "model.layers[2].forward"


@pytest.mark.parametrize(("text", "line", "words"), [
    ("a: 1\na: 2", 2, "the key 'a' appears twice, first on line 1"), ("a: 1\nb: [", 2, "not YAML"),
    ("1: a", 1, "the key '1' is not text"), ("- a", 1, "is a list"),
])
def test_what_is_no_mapping_of_texts_is_refused_with_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(YamlError) as caught:
        LinedYaml(text)
    assert caught.value.line == line and words in str(caught.value)

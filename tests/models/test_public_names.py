"""What ``weft.models`` offers, and what that loads."""

from __future__ import annotations

import pytest

import weft.models as models
from tests.support.loading import loaded_after


def test_every_public_name_is_there() -> None:
    for name in models.__all__:
        assert getattr(models, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        models.nothing  # noqa: B018


def test_names_load_no_more_than_they_need() -> None:
    code = ("import sys, weft.models as models; heavy = {'torch', 'ortools', 'altair', 'pydantic'}; "
            "assert not heavy & set(sys.modules); models.OperatorGraph; assert not heavy & set(sys.modules); "
            "models.demo_spec(); models.PUBLISHED")
    assert loaded_after(code, "torch", "ortools", "altair", "pydantic") == ["pydantic"]

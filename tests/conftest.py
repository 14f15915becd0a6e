"""What holds for every test: how chance is drawn, and who remembers the outcome."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ("pytester", "tests.requirements_plugin")

# Chance is never fixed: a new run tries new examples. What fails is printed with the blob that
# replays it, and pytest-randomly prints the seed of everything else in the header of the run. There
# is no deadline per example, because a busy machine would make it a matter of luck.
settings.register_profile("default", deadline=None, derandomize=False, print_blob=True, max_examples=100)
settings.register_profile("torture", settings.get_profile("default"), max_examples=2_000)
settings.load_profile("torture" if os.environ.get("ONCEMORE_TORTURE") else "default")

TORTURE = Path(__file__).parent / "torture"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(TORTURE):
            item.add_marker(pytest.mark.torture)

from __future__ import annotations

import pytest

from tests.engine.commands.plain import Plain


@pytest.fixture
def e() -> Plain:
    return Plain()

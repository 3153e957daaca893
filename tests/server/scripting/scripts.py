"""What tests of scripts share: they need Lua, which is skipped on a desk without it and fails where CI is set."""

from __future__ import annotations

import os

import pytest

from millstream.server.scripting.lua import is_available

needs_lua = pytest.mark.skipif(not is_available() and not os.environ.get("CI"), reason="lupa is not installed")

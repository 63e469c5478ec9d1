"""`python -m ugpu`: the `ugpu` command, where its script is not on PATH."""

from __future__ import annotations

import runpy

runpy.run_module("ugpu.tools.cli", run_name="__main__")

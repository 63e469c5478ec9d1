"""The error of a module of this folder whose extra is not installed."""

from __future__ import annotations

from ugpu.hcq.errors import MissingDependency


def missing(extra: str, module: str) -> BaseException:
    """Return the error to raise in place of an ImportError. extra: its name, which is that of the
    package too. module: `__name__`; a program ends with one line instead of a traceback."""
    error = MissingDependency(
        f"the package {extra} is not installed", install=f"pip install 'ugpu[{extra}]'"
    )
    return SystemExit(f"ugpu: {type(error).__name__}: {error}") if module == "__main__" else error

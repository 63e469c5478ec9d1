"""The name `ugpu_tools` in an editable install: the checkout's folder `tools`.

A wheel holds that folder under this name; hatchling cannot rename folders in editable installs.
"""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[3])]

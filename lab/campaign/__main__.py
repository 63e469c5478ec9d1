"""`make faults`: the fault campaign. Kinds x stages x devices; see lab.campaign.kind.

Usage: python -m lab.campaign [--seed N] [--only WORDS] [--device NAME] [--jobs N] [--write] [-v]
"""

from __future__ import annotations

import sys

from lab.campaign.command import main

if __name__ == "__main__":
    sys.exit(main())

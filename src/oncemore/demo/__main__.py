"""`python -m oncemore.demo` is the same as `oncemore demo`."""

from __future__ import annotations

import sys

from oncemore.cli import main

if __name__ == "__main__":
    main(["demo", *sys.argv[1:]])

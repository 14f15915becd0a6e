"""`python -m oncemore.demo` is `oncemore demo`, for where the program is not on the path."""

from __future__ import annotations

import sys

from oncemore.cli import main

if __name__ == "__main__":
    main(["demo", *sys.argv[1:]])

"""`python -m oncemore.desk.demo` is `oncemore demo`, for where the program is not on the path."""

from __future__ import annotations

import sys

from oncemore.desk.cli import main

if __name__ == "__main__":
    main(["demo", *sys.argv[1:]])

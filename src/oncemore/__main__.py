"""`python -m oncemore` is the program `oncemore`."""

from oncemore.cli import main

main()

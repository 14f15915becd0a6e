"""`python -m oncemore` is the program `oncemore`."""

from oncemore.desk.cli import main

main()

"""`python -m complete_mue` is `mue`."""

from complete_mue.cli import main

main()

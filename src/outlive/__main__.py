"""`python -m outlive` is the command `outlive`."""

from outlive.cli import main

main()

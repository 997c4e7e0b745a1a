"""`python -m outlive_lab`: what `./run bench`, `gameday`, `deaths` and `pairs` run."""

from outlive_lab.commands import main

if __name__ == "__main__":
    main()

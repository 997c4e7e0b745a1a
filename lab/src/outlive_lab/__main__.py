"""`python -m outlive_lab`: what `./run bench`, `./run gameday` and `./run deaths` run."""

from outlive_lab.commands import main

if __name__ == "__main__":
    main()

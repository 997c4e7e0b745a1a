"""`python -m outlive_lab`: what `./run bench` and `./run gameday` run."""

from outlive_lab.commands import main

if __name__ == "__main__":
    main()

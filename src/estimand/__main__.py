"""`python -m estimand` is the command line."""

from estimand.cli import main

if __name__ == "__main__":
    main()

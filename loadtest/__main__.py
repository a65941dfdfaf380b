"""``python -m loadtest``."""

from loadtest.cli import main

if __name__ == "__main__":
    main(prog_name="loadtest")

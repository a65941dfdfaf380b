"""``python -m servers``: the bundled server as a process."""

from servers.cli import serve

if __name__ == "__main__":
    serve(prog_name="python -m servers")

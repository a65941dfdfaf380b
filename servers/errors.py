"""The one way the server refuses to start."""


class StartError(Exception):
    """The server cannot start. ``str(error)`` is the whole message for a person; the process ends with code 3."""

    exit_code = 3

"""What a server process asks of the system it runs on: a port, files to open, and word of its parent's end."""

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable

from servers.errors import StartError


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """A socket that listens on ``host``; port 0 takes a free one.

    Raises:
        StartError: there is no such address here, or the port cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            if os.name == "posix":  # elsewhere the option would let two servers share the port
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(backlog)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        mend = "choose another --port (0 takes any free one)" if taken else "check the address and the port"
        raise StartError(f"cannot listen on {host} port {port}: {error.strerror or error}; {mend}") from error
    return listener


def raise_file_limit() -> None:
    """Raise the limit on open files to what this user may have: each connection is one."""
    # Windows has no such limit, and macOS refuses "unlimited"; else it stays as it is.
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def watch_stdin(closed: Callable[[], object]) -> None:
    """Call ``closed``, in a thread of its own, when stdin ends: the process that holds its other end is gone."""

    def wait() -> None:
        # Not sys.stdin: its buffer's lock, held while it waits, would stop the interpreter from ending.
        while os.read(0, 4096):
            pass
        closed()

    threading.Thread(target=wait, name="stdin", daemon=True).start()

"""What is asked of a server's certificate and shown of ours; and what went wrong with TLS, in words."""

import functools
import ssl
from pathlib import Path

import msgspec

from loadtest.errors import UsageError

SHOW_OURS = "if the server asks for a certificate of ours, give it with --cert and --key"


class Tls(msgspec.Struct, frozen=True):
    """Files are PEM. ``ca`` replaces the system's authorities; ``cert`` (with ``key``, unless it holds that too) is
    shown to a server that asks who we are, its key read with ``password``; ``insecure`` takes any certificate.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    insecure: bool = False
    password: str | None = None

    def context(self) -> ssl.SSLContext:
        """The context for connections of ours.

        Raises:
            UsageError: a file cannot be read, or does not hold what it should.
        """
        if self.key is not None and self.cert is None:
            raise UsageError(f"--key {self.key}: a key is nothing without its certificate; name that with --cert")
        for flag, name in (("--cacert", self.ca), ("--cert", self.cert), ("--key", self.key)):
            if name is not None:
                _readable(flag, name)
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except ssl.SSLError as error:
            raise UsageError(f"--cacert {self.ca}: holds no certificate in PEM form ({tls_words(error)})") from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert is not None:
            try:
                # A password of our own: without one, OpenSSL would ask for it at the terminal, and wait.
                context.load_cert_chain(self.cert, self.key, password=self.password or "")
            except ssl.SSLError as error:
                key = f"--key {self.key}" if self.key else "the key in the same file (--key names another)"
                raise UsageError(
                    f"--cert {self.cert}: not a certificate in PEM form that fits {key} ({tls_words(error)}); "
                    "the password of an encrypted key is LOADTEST_KEY_PASSWORD's"
                ) from None
        return context


@functools.lru_cache(maxsize=16)
def shared(tls: Tls) -> ssl.SSLContext:
    """The context of ``tls``, made once: what is asked each second is not to read the system's authorities each time.

    Raises:
        UsageError: as ``Tls.context``.
    """
    return tls.context()


def tls_words(error: ssl.SSLError) -> str:
    """What went wrong with TLS, for a person: without the C file that found it, with the mend where there is one."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the server's certificate is not trusted ({error.verify_message}); name its authority with --cacert FILE, "
            "or take any certificate with --insecure"
        )
    words = (getattr(error, "reason", None) or str(error) or type(error).__name__).replace("_", " ").lower()
    if "certificate required" in words or "handshake failure" in words:
        words += f"; {SHOW_OURS}"
    return words


def _readable(flag: str, name: str) -> None:
    try:
        with Path(name).open("rb"):
            pass
    except OSError as error:
        raise UsageError(f"{flag} {name}: cannot be read: {error.strerror or error}") from None

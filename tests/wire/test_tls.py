"""A TLS file that is not what it should be is named before anything is sent, and the mend with it."""

import ssl
import subprocess
from pathlib import Path

import pytest

from loadtest.errors import UsageError
from loadtest.wire.tls import Tls, tls_words


def refusal(tls: Tls) -> str:
    """The one message."""
    with pytest.raises(UsageError) as refused:
        tls.context()
    return str(refused.value)


def test_by_default_the_system_decides_whom_to_trust() -> None:
    context = Tls().context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_insecure_takes_any_certificate() -> None:
    context = Tls(insecure=True).context()
    assert context.verify_mode is ssl.CERT_NONE
    assert not context.check_hostname


def test_an_authority_of_ours_replaces_the_system_s(certificate: tuple[Path, Path]) -> None:
    assert len(Tls(ca=str(certificate[0])).context().get_ca_certs()) == 1


def test_a_certificate_and_its_key_may_stand_in_one_file(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(b"".join(path.read_bytes() for path in certificate))
    Tls(cert=str(both)).context()


@pytest.mark.parametrize("flag", ["cacert", "cert"])
def test_a_file_that_is_not_there_is_named(flag: str) -> None:
    words = refusal(Tls(ca="nowhere.pem") if flag == "cacert" else Tls(cert="nowhere.pem"))
    assert words == f"--{flag} nowhere.pem: cannot be read: No such file or directory"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert refusal(Tls(ca=str(tmp_path))).endswith("Is a directory")


@pytest.mark.parametrize("text", ["", "hello", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_file_without_a_certificate_is_named(tmp_path: Path, text: str) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text(text, "ascii")
    assert f"--cacert {wrong}: holds no certificate" in refusal(Tls(ca=str(wrong)))
    assert f"--cert {wrong}: not a certificate" in refusal(Tls(cert=str(wrong)))


def test_a_key_that_is_missing_wrong_or_alone_is_named(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = map(str, certificate)
    assert "--key names another" in refusal(Tls(cert=cert))
    assert f"--key {key}: a key is nothing without its certificate; name that with --cert" in refusal(Tls(key=key))
    subprocess.run(["openssl", "genrsa", "-out", "other.pem", "2048"], cwd=tmp_path, check=True, capture_output=True)
    assert "other.pem" in refusal(Tls(cert=cert, key=str(tmp_path / "other.pem")))


def test_an_encrypted_key_needs_its_password_and_nobody_is_asked(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = map(str, certificate)
    command = ["openssl", "pkcs8", "-topk8", "-in", key, "-out", "locked.pem", "-passout", "pass:secret"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    locked = str(tmp_path / "locked.pem")
    for password in (None, "another"):
        assert "LOADTEST_KEY_PASSWORD" in refusal(Tls(cert=cert, key=locked, password=password))
    Tls(cert=cert, key=locked, password="secret").context()


@pytest.mark.parametrize(
    "error", [ssl.SSLError(), ssl.SSLError("odd"), ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")]
)
def test_words_are_never_blank(error: ssl.SSLError) -> None:
    assert tls_words(error).strip()

"""HTTPS with files of one's own."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from sonoran.errors import ConfigError
from sonoran.llm import LLM
from tests.server.running import running


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


def test_a_client_that_knows_the_certificate_is_served(
    pair: tuple[str, str], files: tuple[Path, Path]
) -> None:
    certificate, key = files
    with (
        LLM(pair[0], max_model_len=128) as llm,
        running(llm, ssl_certfile=certificate, ssl_keyfile=key) as server,
    ):
        assert server.url.startswith("https://127.0.0.1:")
        body = json.dumps({"model": "tiny", "prompt": "to be", "max_tokens": 3}).encode()
        request = urllib.request.Request(
            server.url + "/v1/completions", body, {"Content-Type": "application/json"}
        )
        trusting = ssl.create_default_context(cafile=str(certificate))
        with urllib.request.urlopen(request, timeout=60, context=trusting) as answer:
            assert json.loads(answer.read())["usage"]["completion_tokens"] == 3
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(request, timeout=60, context=ssl.create_default_context())


def test_files_that_are_none_are_refused(pair: tuple[str, str], files: tuple[Path, Path]) -> None:
    certificate, _ = files
    with LLM(pair[0], max_model_len=128) as llm:
        for wrong in (Path("gone.pem"), certificate):
            with pytest.raises(ConfigError, match="cannot use the TLS files"):
                running(llm, ssl_certfile=certificate, ssl_keyfile=wrong)
    with pytest.raises(ConfigError, match="give both files"):
        running(llm, ssl_certfile=certificate)

"""Keys and addresses: who may read them, who may connect, and what is refused before anything listens."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import stat
from pathlib import Path

import pytest
import zmq
from typer.testing import CliRunner

from sonoran.cli.main import app
from sonoran.errors import ConfigError, WorkerError
from sonoran.worker.client import WorkerClient
from sonoran.worker.connection import Remote
from sonoran.worker.keys import key_pairs, keygen, load_keys
from sonoran.worker.transport import check_address
from tests.tiny_models import make_gguf
from tests.worker.fake_worker import fake_service
from tests.worker.workers import connected, free_port, hello, serving


def test_keys_are_for_their_owner_only_and_fit_together(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "keys"
    paths = keygen(folder)
    for path in (*paths, folder):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    worker, client = load_keys(paths[0], "worker"), load_keys(paths[1], "client")
    assert (worker.peer, client.peer) == (client.public, worker.public)
    assert zmq.curve_public(worker.secret.encode()).decode() == worker.public
    assert worker.secret not in repr(worker)


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    before = keygen(tmp_path)[0].read_text()
    with pytest.raises(ConfigError, match=r"worker\.key exists already"):
        keygen(tmp_path)
    assert (tmp_path / "worker.key").read_text() == before


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = keygen(tmp_path)[1]
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"mode 640.*chmod 600"):
        load_keys(path, "client")


def damaged() -> dict[str, bytes]:
    client, worker = key_pairs()
    good = dataclasses.asdict(client)
    return {
        "empty": b"",
        "an empty object": b"{}",
        "a list": b"[1]",
        "short keys": b'{"role": "client", "public": "x", "secret": "y", "peer": "z"}',
        "a character that Z85 lacks": json.dumps({**good, "secret": "~" * 40}).encode(),
        "a line break": json.dumps({**good, "peer": good["peer"][:39] + "\n"}).encode(),
        "a key too large": json.dumps({**good, "secret": "#" * 40}).encode(),
        "not its own public key": json.dumps({**good, "public": worker.public}).encode(),
        "a number": json.dumps({**good, "peer": 1}).encode(),
        "null": json.dumps({**good, "role": None}).encode(),
        "another role": json.dumps({**good, "role": "root"}).encode(),
        "deep nesting": b"[" * 4000,
        "deep nesting in a key": b'{"role": ' + b'{"a":' * 700,
        "a large file": b" " * 10_000_000,
        "not UTF-8": b"\xff\xfe{}",
        "an unpaired surrogate": b'{"role": "client", "public": "\\ud800"}',
    }


@pytest.mark.parametrize("what", list(damaged()))
def test_a_damaged_key_file_is_named_in_one_line(tmp_path: Path, what: str) -> None:
    path = tmp_path / "some.key"
    path.write_bytes(damaged()[what])
    path.chmod(0o600)
    for role in ("client", "worker"):
        with pytest.raises(ConfigError, match=r"some\.key") as caught:
            load_keys(path, role)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "zero byte"])
def test_a_key_file_is_an_ordinary_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "some.key"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    else:
        path = tmp_path / "some.key\0x"
    with pytest.raises(ConfigError, match="key file"):
        load_keys(path, "client")


@pytest.mark.parametrize("command", ["generate", "draft-worker"])
def test_the_commands_say_so_too(tmp_path: Path, command: str) -> None:
    path = tmp_path / "some.key"
    path.write_bytes(damaged()["a character that Z85 lacks"])
    path.chmod(0o600)
    model = tmp_path / "t.gguf"
    make_gguf(model)
    options = {
        "generate": [
            "--mode",
            "ssd",
            "--draft-address",
            "tcp://127.0.0.1:1",
            "--draft-key-file",
            str(path),
            "hi",
        ],
        "draft-worker": ["--key-file", str(path)],
    }
    result = CliRunner().invoke(app, [command, "--model", str(model), *options[command]])
    assert result.exit_code == 2, result.output
    assert "some.key is damaged" in result.output


def test_the_other_sides_keys_and_missing_files_are_named(tmp_path: Path) -> None:
    worker, _ = keygen(tmp_path)
    with pytest.raises(ConfigError, match=r"client needs client\.key"):
        load_keys(worker, "client")
    with pytest.raises(ConfigError, match="cannot read"):
        load_keys(tmp_path / "none.key", "worker")


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:1", "tcp://localhost:80", "tcp://[::1]:5757", "ipc:///tmp/x"]
)
def test_addresses_on_this_machine_need_no_keys(address: str) -> None:
    check_address(address, None)


@pytest.mark.parametrize(
    "address", ["tcp://0.0.0.0:5757", "tcp://*:5757", "tcp://10.0.0.7:1", "tcp://host:5757"]
)
def test_addresses_beyond_this_machine_need_keys(address: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs keys"):
        check_address(address, None)
    check_address(address, load_keys(keygen(tmp_path)[0], "worker"))


@pytest.mark.parametrize(
    "address",
    [
        "",
        "5757",
        "tcp://",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:x",
        "tcp://127.0.0.1:70000",
        "ipc://",
        "udp://a:1",
    ],
)
def test_addresses_that_make_no_sense_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"address|path"):
        check_address(address, None)


def test_only_the_holder_of_the_right_keys_gets_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    worker_file, client_file = keygen(tmp_path)
    worker, client = load_keys(worker_file, "worker"), load_keys(client_file, "client")
    public, secret = (key.decode() for key in zmq.curve_keypair())
    stranger = dataclasses.replace(client, public=public, secret=secret)
    misled = dataclasses.replace(client, peer=public)
    address = f"tcp://127.0.0.1:{free_port()}"
    caplog.set_level(logging.WARNING, "sonoran.worker.transport")
    with serving(fake_service({}), address, keys=worker), connected(Remote(address, client)) as good:
        assert good.state == "up"
        for keys in (stranger, misled, None):
            with pytest.raises(WorkerError, match="are the keys right"):
                WorkerClient(hello(), Remote(address, keys, patience_s=0.3)).start()
        assert good.worker_stats() is not None
    assert "wrong key" in caplog.text

from __future__ import annotations

import numpy as np
import pytest

from steppe.errors import StorageError
from steppe.files.bundles import FOLDER_VARIABLE, pack, unpack

NAME = "/home/me/good.safetensors"


@pytest.fixture
def sent(tmp_path, monkeypatch):
    """Sends a file; returns the folder in which it arrives."""

    def send(content: bytes, piece: int = 1000):
        file, folder = tmp_path / "file", tmp_path / "arrived"
        file.write_bytes(content)
        folder.mkdir()
        packed = pack(file, NAME, piece, most=10**7)
        assert packed is not None
        for name, data in packed.files.items():
            (folder / name).write_bytes(data)
        monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
        return folder

    return send


@pytest.mark.parametrize("content", [b"", b"x", np.random.default_rng(1).bytes(5000), bytes(10**6)])
def test_a_file_arrives_unchanged(sent, content):
    sent(content)
    assert unpack(NAME) == content


def test_no_piece_is_larger_than_asked_for(sent):
    folder = sent(np.random.default_rng(1).bytes(5000))
    sizes = [path.stat().st_size for path in folder.iterdir() if path.suffix != ".json"]
    assert (len(sizes), max(sizes)) == (6, 1000)


def test_a_file_that_was_not_bundled_is_not_found(sent, monkeypatch):
    sent(b"x")
    assert unpack("/home/me/other.safetensors") is None
    monkeypatch.delenv(FOLDER_VARIABLE)
    assert unpack(NAME) is None


def test_a_file_that_is_too_large_is_not_packed(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(np.random.default_rng(1).bytes(5000))
    assert pack(file, NAME, 1000, most=4999) is None
    # The limit is on the compressed size.
    file.write_bytes(bytes(10**6))
    assert pack(file, NAME, 1000, most=4999) is not None


def test_a_missing_or_exchanged_piece_is_an_error(sent):
    folder = sent(np.random.default_rng(1).bytes(5000))
    (last,) = folder.glob("*.005")
    held = last.read_bytes()
    last.unlink()
    with pytest.raises(StorageError, match=rf"^{NAME} did not come along whole \(.*\); start the experiment again"):
        unpack(NAME)
    last.write_bytes(held[:-1] + bytes([held[-1] ^ 1]))
    with pytest.raises(StorageError, match="did not come along whole"):
        unpack(NAME)


def test_pieces_of_another_file_fail_the_checksum(sent, tmp_path):
    folder = sent(b"one thing")
    (tmp_path / "other").write_bytes(b"another")
    packed = pack(tmp_path / "other", NAME, 1000, 1000)
    (piece,) = folder.glob("*.000")
    piece.write_bytes(packed.pieces[0])
    with pytest.raises(StorageError, match="checksum does not match"):
        unpack(NAME)

"""The key: made, loaded, saved, derived, and never shown."""

import copy
import os
import pickle
import stat
import threading

import pytest

from truebatch.errors import InvalidArgument, InvalidKey
from truebatch.keys import KEY_BYTES, Key

SECRET = bytes(range(100, 100 + KEY_BYTES))


def shows_secret(text: str) -> bool:
    """Whether text holds four consecutive key bytes in a common notation."""
    pieces = [SECRET[i : i + 4] for i in range(KEY_BYTES - 3)]
    return any(p.hex() in text or repr(p)[2:-1] in text or str(list(p))[1:-1] in text for p in pieces)


@pytest.fixture
def key():
    return Key.from_bytes(SECRET)


def test_generated_keys_differ_and_have_32_bytes():
    first, second = Key.generate(), Key.generate()
    assert len(first.to_bytes()) == KEY_BYTES
    assert first != second
    assert not first.is_public


@pytest.mark.parametrize("data", [b"", bytes(31), bytes(33), bytes(64), bytearray(5)])
def test_wrong_length_is_refused(data):
    with pytest.raises(InvalidKey, match=rf"exactly 32 bytes; got {len(data)}"):
        Key.from_bytes(data)


@pytest.mark.parametrize("data", ["a" * 32, 32, None, [1] * 32, Key.for_tests(0)])
def test_wrong_type_is_refused_without_showing_it(data):
    with pytest.raises(InvalidKey, match=f"type {type(data).__name__}") as caught:
        Key.from_bytes(data)
    assert "aaaa" not in str(caught.value)


def test_neither_repr_nor_str_nor_format_shows_the_secret(key):
    for text in (repr(key), str(key), f"{key}", f"{[key]}"):
        assert not shows_secret(text)
    assert shows_secret(str(list(SECRET)))
    assert shows_secret(SECRET.hex())


def test_pickling_raises_and_names_the_way_out(key):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(InvalidKey, match="to_bytes") as caught:
            pickle.dumps({"config": [key]}, protocol=protocol)
        assert not shows_secret(str(caught.value))


def test_copies_are_the_same_key(key):
    assert copy.copy(key) is key
    assert copy.deepcopy([key])[0] is key


def test_shipping_to_a_worker_gives_an_equal_key(key):
    assert Key.from_bytes(key.to_bytes()) == key
    assert Key.from_bytes(bytearray(SECRET)) == key


def test_keys_compare_by_value_and_only_with_keys(key):
    assert key == Key.from_bytes(SECRET)
    assert key != Key.from_bytes(bytes(KEY_BYTES))
    assert key != SECRET
    with pytest.raises(TypeError, match="unhashable"):
        hash(key)


def test_a_key_has_no_attributes_to_list(key):
    assert not hasattr(key, "__dict__")
    with pytest.raises(InvalidKey, match=r"Key\.generate"):
        Key()


def test_derived_keys_depend_on_key_and_purpose(key):
    assert key.derive("noise") == key.derive("noise")
    assert key.derive("noise") != key.derive("sampling")
    assert key.derive("noise") != Key.from_bytes(bytes(KEY_BYTES)).derive("noise")
    assert key.derive("noise") != key


def test_derivation_is_hkdf_sha256(key):
    import hashlib
    import hmac

    extracted = hmac.digest(b"truebatch key v1", SECRET, hashlib.sha256)
    assert key.derive("noise").to_bytes() == hmac.digest(extracted, b"noise\x01", hashlib.sha256)


@pytest.mark.parametrize("purpose", ["", None, b"noise", 3])
def test_purposes_are_non_empty_strings(key, purpose):
    with pytest.raises(InvalidArgument, match="purpose"):
        key.derive(purpose)


def test_test_keys_are_public_and_stay_public_when_derived(key):
    public = Key.for_tests(3)
    assert public.is_public
    assert public.derive("noise").is_public
    assert public == Key.for_tests(3)
    assert public != Key.for_tests(4)
    assert "public" in repr(public)
    assert not key.derive("noise").is_public


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, True, "1", None])
def test_test_seeds_are_64_bit_numbers(seed):
    with pytest.raises(InvalidArgument, match="seed"):
        Key.for_tests(seed)


def test_saved_key_comes_back_and_only_its_owner_can_read_it(key, tmp_path):
    path = tmp_path / "run.key"
    old = os.umask(0)
    try:
        key.save(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Key.load(path) == key
    assert Key.load(str(path)) == key


def test_saving_never_overwrites_even_through_a_link(key, tmp_path):
    path = tmp_path / "run.key"
    key.save(path)
    with pytest.raises(InvalidKey, match="never overwritten"):
        Key.generate().save(path)
    assert Key.load(path) == key
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidKey, match="never overwritten"):
        key.save(link)
    assert not (tmp_path / "elsewhere").exists()


def test_of_many_threads_saving_one_wins(tmp_path):
    path, refused = tmp_path / "run.key", []
    keys = [Key.generate() for _ in range(8)]

    def save(key):
        try:
            key.save(path)
        except InvalidKey:
            refused.append(key)

    threads = [threading.Thread(target=save, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == len(keys) - 1
    assert Key.load(path) in keys


def test_public_keys_are_not_saved(tmp_path):
    with pytest.raises(InvalidKey, match="for_tests"):
        Key.for_tests(1).save(tmp_path / "run.key")
    assert not (tmp_path / "run.key").exists()


def test_saving_where_nothing_can_be_written(key, tmp_path):
    with pytest.raises(InvalidKey, match="creatable"):
        key.save(tmp_path / "missing" / "run.key")


def test_a_failed_write_leaves_no_file(key, tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        key.save(tmp_path / "run.key")
    assert not (tmp_path / "run.key").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o622, 0o601, 0o777, 0o610])
def test_files_open_to_others_are_refused(tmp_path, mode):
    path = tmp_path / "run.key"
    path.write_bytes(SECRET)
    path.chmod(mode)
    with pytest.raises(InvalidKey, match=f"mode {mode:04o}") as caught:
        Key.load(path)
    assert not shows_secret(str(caught.value))


@pytest.mark.parametrize("size", [0, 31, 33, 4096])
def test_files_of_the_wrong_length_are_refused(tmp_path, size):
    path = tmp_path / "run.key"
    path.write_bytes((SECRET * 200)[:size])
    path.chmod(0o600)
    with pytest.raises(InvalidKey, match="exactly 32 bytes") as caught:
        Key.load(path)
    assert not shows_secret(str(caught.value))


def test_links_directories_pipes_and_missing_files_are_refused(key, tmp_path):
    key.save(tmp_path / "run.key")
    (tmp_path / "link").symlink_to(tmp_path / "run.key")
    with pytest.raises(InvalidKey, match="symbolic link"):
        Key.load(tmp_path / "link")
    (tmp_path / "folder").mkdir(mode=0o700)
    with pytest.raises(InvalidKey, match="regular file"):
        Key.load(tmp_path / "folder")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(InvalidKey, match="regular file"):
        Key.load(tmp_path / "pipe")
    with pytest.raises(InvalidKey, match="No such file"):
        Key.load(tmp_path / "missing")


def test_a_traceback_of_a_failed_load_holds_no_key_bytes(tmp_path):
    import traceback

    path = tmp_path / "run.key"
    path.write_bytes(SECRET + b"x")
    path.chmod(0o600)
    with pytest.raises(InvalidKey) as caught:
        Key.load(path)
    text = "".join(traceback.format_exception(caught.value))
    assert not shows_secret(text)
    assert pickle.loads(pickle.dumps(caught.value)).message == caught.value.message

from __future__ import annotations

import copy
import gc
import json
import pickle

import pytest

from pyiceberg_encryption import Secret
from pyiceberg_encryption.errors import SecretExposureError

KEY = b"0123456789abcdef"


def test_shows_its_bytes_only_when_exposed() -> None:
    secret = Secret(KEY)
    assert bytes(secret.expose()) == KEY
    assert secret.expose().readonly
    for text in (repr(secret), str(secret), f"{secret}", f"{secret:>40}", f"{secret!r}", repr([secret])):
        assert "redacted" in text
        assert "0123" not in text and KEY.hex() not in text


def test_does_not_take_part_in_pickle_copy_and_json() -> None:
    secret = Secret(KEY)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(SecretExposureError):
            pickle.dumps(secret, protocol)
    for copier in (copy.copy, copy.deepcopy):
        with pytest.raises(SecretExposureError):
            copier(secret)
    with pytest.raises(SecretExposureError):
        secret.__getstate__()
    with pytest.raises(TypeError):
        json.dumps(secret)
    with pytest.raises(TypeError):
        bytes(secret)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        hash(secret)


def test_equality() -> None:
    assert Secret(KEY) == Secret(bytearray(KEY))
    assert Secret(KEY) != Secret(KEY[:-1] + b"x")
    assert Secret(KEY) != Secret(KEY[:-1])
    assert Secret(KEY) != KEY


def test_holds_a_copy() -> None:
    given = bytearray(KEY)
    secret = Secret(given)
    given[0] = 0
    assert bytes(secret.expose()) == KEY


def test_is_wiped_when_nothing_refers_to_it() -> None:
    data = Secret(KEY)._data
    data.__del__()  # as Python calls it
    assert not any(data)


def test_is_not_wiped_while_a_view_is_in_use() -> None:
    secret = Secret(KEY)
    view = secret.expose()
    del secret
    gc.collect()
    assert bytes(view) == KEY


def test_a_view_of_a_secret_that_has_no_name_is_the_key() -> None:
    assert bytes(Secret(KEY).expose()) == KEY


def test_is_made_of_bytes_only() -> None:
    for wrong in (16, "text", None, [1, 2]):
        with pytest.raises(TypeError):
            Secret(wrong)  # type: ignore[arg-type]


def test_random_takes_its_bytes_from_the_given_source() -> None:
    assert Secret.random(3, lambda length: b"abc"[:length]) == Secret(b"abc")
    assert Secret.random(16) != Secret.random(16)

"""Whether something said reveals a key or who was drawn, in any of the ways that programs write them."""

import base64
import contextlib
import re
from collections.abc import Iterable, Iterator

import numpy as np

from truebatch import Key, schedule
from truebatch.specs import Sampler
from trust.fault import replaced

# So many bytes of a key in a row, or numbers of a membership, are no accident. Eight bytes of keys that are
# derived for nothing else are in the open on purpose, to tell one key from another.
_BYTES, _NUMBERS = 12, 5
# Sizes may stand between other numbers: step 3 of 48 has 17 rows.
_MOST_BETWEEN = 6
_NUMBER = re.compile(rb"(?<![\w.])\d+(?![\w.])")


@contextlib.contextmanager
def derived_keys() -> Iterator[list[bytes]]:
    """Every key that is derived in here, whatever for."""
    found: list[bytes] = []
    derive = Key.derive

    def remembered(self: Key, purpose: str) -> Key:
        key = derive(self, purpose)
        if key.to_bytes() not in found:
            found.append(key.to_bytes())
        return key

    with replaced({"truebatch.keys:Key.derive": remembered}):
        yield found


def leak(said: bytes, key: Key, spec: Sampler, derived: Iterable[bytes] = ()) -> str | None:
    """What is revealed of the key, of keys that were derived from it, or of the batches; or None."""
    drawn = schedule(spec, key)
    for name, secrets in (("the key", [key.to_bytes()]), ("a key made from it", derived)):
        if any(form in said for secret in secrets for form in _forms(secret)):
            return f"{name} is in it"
    numbers = [int(number) for number in _NUMBER.findall(said)]
    sizes = drawn.sizes().tolist()
    if sum(sizes) in numbers:
        return "how many rows were drawn in all is in it"
    if _stand_in(sizes, numbers, said):
        return "the sizes of batches are in it"
    if any(_stand_in(rows.tolist(), numbers, said) for rows in drawn.batches(0, 3)):
        return "the rows of a batch are in it"
    return None


def _forms(secret: bytes) -> Iterator[bytes]:
    """A part of the key as bytes, in hexadecimal, escaped, as numbers; and all of it in base 64 and 10."""
    for first in range(len(secret) - _BYTES + 1):
        part = secret[first : first + _BYTES]
        yield from (part, part.hex().encode(), part.hex().upper().encode(), repr(part)[2:-1].encode())
        yield from (", ".join(map(str, part)).encode(), ",".join(map(str, part)).encode())
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(secret).rstrip(b"=")
    for order in ("big", "little"):
        yield str(int.from_bytes(secret, order)).encode()


def _stand_in(secret: list[int], numbers: list[int], said: bytes) -> bool:
    if any(np.array(secret[:_NUMBERS], kind).tobytes() in said for kind in ("<i4", "<i8")):
        return True
    parts = {tuple(secret[i : i + _NUMBERS]) for i in range(len(secret) - _NUMBERS + 1)}
    for stride in range(1, _MOST_BETWEEN + 1):
        reach = stride * (_NUMBERS - 1) + 1
        if any(tuple(numbers[i : i + reach : stride]) in parts for i in range(len(numbers) - reach + 1)):
            return True
    return False

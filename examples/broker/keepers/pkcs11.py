"""A wrapping key in a PKCS#11 token: an AES key that never leaves it, used by CKM_AES_GCM.

The token's library is called through ctypes, by the function list of PKCS #11 2.40 (section 5.4).
Only this module knows its structures. Each use opens a session and closes it.
"""

from __future__ import annotations

import base64
import ctypes
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from appliance.errors import ModelKeyError
from appliance.keys.document import NBYTES
from appliance.secure.locked import SecretBytes
from appliance.secure.wipe import wipe
from examples.broker.keepers.wrapping import TAG_BYTES, decoded, private, refused

_IV_BYTES = 12
_MAX_SLOTS = 64
_TOKEN_INFO_BYTES = 512  # of CK_TOKEN_INFO, with room; its first 32 bytes are the label
_ULONG: Final = ctypes.c_ulong
# Places in CK_FUNCTION_LIST, behind the version.
_PLACES: Final = {
    "C_Initialize": 0, "C_GetSlotList": 4, "C_GetTokenInfo": 6, "C_OpenSession": 12, "C_CloseSession": 13,
    "C_Login": 18, "C_GetAttributeValue": 24, "C_FindObjectsInit": 26, "C_FindObjects": 27, "C_FindObjectsFinal": 28,
    "C_EncryptInit": 29, "C_Encrypt": 30, "C_DecryptInit": 33, "C_Decrypt": 34}
_PLACES_TOTAL = 35
_OK, _ALREADY_INITIALIZED, _ALREADY_LOGGED_IN = 0, 0x191, 0x100
_WRONG_PIN = (0xA0, 0xA4)  # CKR_PIN_INCORRECT, CKR_PIN_LOCKED
_NAMES: Final = {
    0x30: "CKR_DEVICE_ERROR", 0x32: "CKR_DEVICE_REMOVED", 0x40: "CKR_ENCRYPTED_DATA_INVALID",
    0x68: "CKR_KEY_FUNCTION_NOT_PERMITTED", 0x70: "CKR_MECHANISM_INVALID", 0xA0: "CKR_PIN_INCORRECT",
    0xA4: "CKR_PIN_LOCKED", 0xE0: "CKR_TOKEN_NOT_PRESENT"}
_SERIAL_SESSION, _USER, _OS_LOCKING, _SECRET_KEY, _AES_GCM = 4, 1, 2, 4, 0x1087
_CLASS, _LABEL, _EXTRACTABLE = 0, 3, 0x162


class _Arguments(ctypes.Structure):
    """CK_C_INITIALIZE_ARGS."""

    _fields_ = (("functions", ctypes.c_void_p * 4), ("flags", _ULONG), ("reserved", ctypes.c_void_p))


class _Attribute(ctypes.Structure):
    """CK_ATTRIBUTE."""

    _fields_ = (("kind", _ULONG), ("value", ctypes.c_void_p), ("nbytes", _ULONG))


class _Mechanism(ctypes.Structure):
    """CK_MECHANISM."""

    _fields_ = (("mechanism", _ULONG), ("parameter", ctypes.c_void_p), ("nbytes", _ULONG))


class _Gcm(ctypes.Structure):
    """CK_GCM_PARAMS, as its header has it."""

    _fields_ = (("iv", ctypes.c_void_p), ("iv_nbytes", _ULONG), ("iv_nbits", _ULONG), ("aad", ctypes.c_void_p),
                ("aad_nbytes", _ULONG), ("tag_nbits", _ULONG))


class _Functions(ctypes.Structure):
    """CK_FUNCTION_LIST, as far as it is used."""

    _fields_ = (("version", ctypes.c_ubyte * 2), ("places", ctypes.c_void_p * _PLACES_TOTAL))


class _ReturnedError(Exception):
    """A function returned another value than CKR_OK."""

    def __init__(self, name: str, value: int) -> None:
        super().__init__(f"{name}: {_NAMES.get(value, hex(value))}")
        self.value = value


class _Library:
    """A token's library, loaded and initialised."""

    def __init__(self, path: Path) -> None:
        listed = ctypes.POINTER(_Functions)()
        entry = ctypes.CDLL(str(path)).C_GetFunctionList
        entry.restype, entry.argtypes = _ULONG, [ctypes.POINTER(ctypes.POINTER(_Functions))]
        if value := entry(ctypes.byref(listed)):
            raise _ReturnedError("C_GetFunctionList", value)
        self._places = listed.contents.places
        self.call("C_Initialize", ctypes.byref(_Arguments(flags=_OS_LOCKING)), fine=(_ALREADY_INITIALIZED,))

    def call(self, name: str, *given: Any, fine: tuple[int, ...] = ()) -> None:
        """Call a function. Integers are CK_ULONG, as handles and lengths are."""
        function = ctypes.CFUNCTYPE(_ULONG)(self._places[_PLACES[name]])
        value = function(*(_ULONG(each) if isinstance(each, int) else each for each in given))
        if value not in (_OK, *fine):
            raise _ReturnedError(name, value)

    def slot(self, label: str) -> int:
        """The slot that has the token of this label; -1 if none has."""
        slots, count = (_ULONG * _MAX_SLOTS)(), _ULONG(_MAX_SLOTS)
        self.call("C_GetSlotList", ctypes.c_ubyte(1), slots, ctypes.byref(count))
        info = ctypes.create_string_buffer(_TOKEN_INFO_BYTES)
        for slot in slots[:count.value]:
            self.call("C_GetTokenInfo", slot, info)
            if info.raw[:32].decode("utf-8", "replace").rstrip() == label:
                return slot
        return -1


class TokenWrapper:
    """An AES key in a token, by the token's label and the key's."""

    kind = "pkcs11"

    def __init__(self, module: Path, token: str, key: str, pin_file: Path) -> None:
        """`pin_file`: a file of mode 0600 with the user's PIN."""
        self._module, self._token, self._key, self._pin_file = module, token, key, pin_file
        self._where = f"token {token!r}, key {key!r}"
        self._lock = threading.Lock()
        self._library: _Library | None = None
        self._locked_out = False  # a wrong PIN is not tried again: a token locks after a few

    def wrap(self, key: bytearray, context: bytes) -> str:
        """Encrypt in the token, under a random nonce."""
        iv = secrets.token_bytes(_IV_BYTES)
        made = self._use("C_Encrypt", iv, bytes(key), context, NBYTES + TAG_BYTES)
        return base64.b64encode(iv + bytes(made)).decode()

    def unwrap(self, ciphertext: str, context: bytes) -> bytearray:
        """Decrypt in the token."""
        raw = decoded(ciphertext, _IV_BYTES + NBYTES + TAG_BYTES, self._where)
        return self._use("C_Decrypt", raw[:_IV_BYTES], raw[_IV_BYTES:], context, NBYTES)

    def _use(self, name: str, iv: bytes, data: bytes, context: bytes, nbytes: int) -> bytearray:
        # Of several that ask at once, one tries the PIN. A token's library may leave errors in
        # OpenSSL's queue, and TLS would take them for its own. Each thread has a queue, so each use
        # has a thread.
        with self._lock, ThreadPoolExecutor(1) as alone:
            return alone.submit(self._tried, name, iv, data, context, nbytes).result()

    def _tried(self, name: str, iv: bytes, data: bytes, context: bytes, nbytes: int) -> bytearray:
        if self._locked_out:
            raise refused(self._where, "its PIN was wrong, and is not tried again",
                          f"write the PIN to {self._pin_file}, and start the broker again")
        try:
            with self._session() as (library, session):
                return _crypt(library, session, name, self._found(library, session), iv, data, context, nbytes)
        except _ReturnedError as error:
            self._locked_out = error.value in _WRONG_PIN
            raise refused(self._where, str(error), f"is the token there, is the PIN in {self._pin_file} right, and may "
                          "the key encrypt and decrypt by AES-GCM?") from None
        except OSError as error:
            raise refused(str(self._module), str(error), "name the library of the token") from None

    @contextmanager
    def _session(self) -> Iterator[tuple[_Library, int]]:
        library = self._library = self._library or _Library(self._module)
        slot = library.slot(self._token)
        if slot < 0:
            raise refused(self._where, "no token of this label", "list them by: pkcs11-tool -L")
        session = _ULONG()
        library.call("C_OpenSession", slot, _SERIAL_SESSION, None, None, ctypes.byref(session))
        try:
            pin = private(self._pin_file)
            held = (ctypes.c_ubyte * len(pin)).from_buffer(pin)
            try:
                library.call("C_Login", session.value, _USER, held, len(pin), fine=(_ALREADY_LOGGED_IN,))
            finally:
                wipe(pin)
            yield library, session.value
        finally:
            library.call("C_CloseSession", session.value)

    def _found(self, library: _Library, session: int) -> int:
        """The handle of the one key of this label, which must not leave the token."""
        label, kind = self._key.encode(), _ULONG(_SECRET_KEY)
        held = ctypes.create_string_buffer(label, len(label))
        wanted = (_Attribute * 2)(
            _Attribute(_CLASS, ctypes.cast(ctypes.byref(kind), ctypes.c_void_p), ctypes.sizeof(kind)),
            _Attribute(_LABEL, ctypes.cast(held, ctypes.c_void_p), len(label)))
        found, count = (_ULONG * 2)(), _ULONG()
        library.call("C_FindObjectsInit", session, wanted, 2)
        library.call("C_FindObjects", session, found, 2, ctypes.byref(count))
        library.call("C_FindObjectsFinal", session)
        if count.value != 1:
            raise refused(self._where, f"{'no secret key' if not count.value else 'several secret keys'} of this label",
                          "make one: pkcs11-tool --keygen --key-type aes:32 --label LABEL --sensitive")
        leaves = ctypes.c_ubyte(1)
        asked = _Attribute(_EXTRACTABLE, ctypes.cast(ctypes.byref(leaves), ctypes.c_void_p), 1)
        library.call("C_GetAttributeValue", session, found[0], ctypes.byref(asked), 1)
        if leaves.value:
            raise refused(self._where, "the key may leave the token (CKA_EXTRACTABLE)",
                          "make a key that may not, and wrap the model's key again")
        return int(found[0])


def _crypt(library: _Library, session: int, name: str, key: int, iv: bytes, data: bytes, context: bytes,
           nbytes: int) -> bytearray:
    """Encrypt or decrypt by AES-GCM. Returns `nbytes`, for the caller to wipe."""
    parts = [ctypes.create_string_buffer(each, len(each)) for each in (iv, context)]
    gcm = _Gcm(ctypes.cast(parts[0], ctypes.c_void_p), len(iv), 8 * len(iv), ctypes.cast(parts[1], ctypes.c_void_p),
               len(context), 8 * TAG_BYTES)
    mechanism = _Mechanism(_AES_GCM, ctypes.cast(ctypes.byref(gcm), ctypes.c_void_p), ctypes.sizeof(gcm))
    library.call(f"{name}Init", session, ctypes.byref(mechanism), key)
    room = SecretBytes(nbytes + TAG_BYTES)  # libraries ask for the room of a block more
    count = _ULONG(len(room))
    library.call(name, session, ctypes.c_char_p(data), len(data), (ctypes.c_ubyte * len(room)).from_buffer(room),
                 ctypes.byref(count))
    if count.value != nbytes:
        wipe(room)
        raise ModelKeyError(f"the token returned {count.value} bytes, not {nbytes}", code="key-wrapped")
    found = SecretBytes(memoryview(room)[:nbytes])
    wipe(room)
    return found

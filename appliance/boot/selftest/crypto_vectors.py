"""Known answers of the cryptography that the appliance relies on, typed in from their publications.

Each vector names its source. Values are hex; a line break inside one has no meaning.
"""

from __future__ import annotations

from dataclasses import dataclass


def unhex(text: str) -> bytes:
    """Bytes of hex that may contain white space."""
    return bytes.fromhex("".join(text.split()))


@dataclass(frozen=True)
class GcmVector:
    """AES-256-GCM: `sealed` is ciphertext then tag."""

    source: str
    key: bytes
    nonce: bytes
    aad: bytes
    plain: bytes
    sealed: bytes


@dataclass(frozen=True)
class HashVector:
    """A message and its digest under one of SHA-256, SHA-384, SHA-512."""

    source: str
    algorithm: str
    message: bytes
    digest: bytes


@dataclass(frozen=True)
class HkdfVector:
    """HKDF-SHA-256: `output` from the other fields."""

    source: str
    key: bytes
    salt: bytes
    info: bytes
    output: bytes


@dataclass(frozen=True)
class SignatureVector:
    """Ed25519: `private` and `public` are the raw 32 bytes."""

    source: str
    private: bytes
    public: bytes
    message: bytes
    signature: bytes


@dataclass(frozen=True)
class AgreementVector:
    """ECDH on P-256 and Concat KDF with SHA-256: `shared` from `private` and the point; `derived`
    from `shared`."""

    source: str
    private: bytes
    x: bytes
    y: bytes
    shared: bytes
    info: bytes
    derived: bytes


@dataclass(frozen=True)
class WrapVector:
    """AES-256 key wrap: `wrapped` from the others."""

    source: str
    key: bytes
    plain: bytes
    wrapped: bytes


GCM = (
    GcmVector(
        "McGrew and Viega, The Galois/Counter Mode of Operation, test case 14",
        key=bytes(32), nonce=bytes(12), aad=b"", plain=bytes(16),
        sealed=unhex("cea7403d4d606b6e074ec5d3baf39d18 d0d1c8a799996bf0265b98b5d48ab919")),
    GcmVector(
        "McGrew and Viega, The Galois/Counter Mode of Operation, test case 16",
        key=unhex("feffe9928665731c6d6a8f9467308308 feffe9928665731c6d6a8f9467308308"),
        nonce=unhex("cafebabefacedbaddecaf888"),
        aad=unhex("feedfacedeadbeeffeedfacedeadbeef abaddad2"),
        plain=unhex("""d9313225f88406e5a55909c5aff5269a 86a7a9531534f7da2e4c303d8a318a72
                       1c3c0c95956809532fcf0e2449a6b525 b16aedf5aa0de657ba637b39"""),
        sealed=unhex("""522dc1f099567d07f47f37a32a84427d 643a8cdcbfe5c0c97598a2bd2555d1aa
                        8cb08e48590dbb3da7b08b1056828838 c5f61e6393ba7a0abcc9f662
                        76fc6ece0f4e1768cddf8853bb2d551b""")),
)

_TWO_BLOCKS_32 = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"
_TWO_BLOCKS_64 = (b"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopq"
                  b"klmnopqrlmnopqrsmnopqrstnopqrstu")
_NIST_SHA = "NIST, Cryptographic Standards and Guidelines: Examples with Intermediate Values, "

SHA = (
    HashVector(_NIST_SHA + "SHA256, one block", "sha256", b"abc", unhex(
        "ba7816bf8f01cfea414140de5dae2223 b00361a396177a9cb410ff61f20015ad")),
    HashVector(_NIST_SHA + "SHA256, two blocks", "sha256", _TWO_BLOCKS_32, unhex(
        "248d6a61d20638b8e5c026930c3e6039 a33ce45964ff2167f6ecedd419db06c1")),
    HashVector(_NIST_SHA + "SHA384, one block", "sha384", b"abc", unhex(
        "cb00753f45a35e8bb5a03d699ac65007 272c32ab0eded1631a8b605a43ff5bed 8086072ba1e7cc2358baeca134c825a7")),
    HashVector(_NIST_SHA + "SHA384, two blocks", "sha384", _TWO_BLOCKS_64, unhex(
        "09330c33f71147e83d192fc782cd1b47 53111b173b3b05d22fa08086e3b0f712 fcc7c71a557e2db966c3e9fa91746039")),
    HashVector(_NIST_SHA + "SHA512, one block", "sha512", b"abc", unhex(
        """ddaf35a193617abacc417349ae204131 12e6fa4e89a97ea20a9eeee64b55d39a
           2192992a274fc1a836ba3c23a3feebbd 454d4423643ce80e2a9ac94fa54ca49f""")),
    HashVector(_NIST_SHA + "SHA512, two blocks", "sha512", _TWO_BLOCKS_64, unhex(
        """8e959b75dae313da8cf4f72814fc143f 8f7779c6eb9f7fa17299aeadb6889018
           501d289e4900f7e4331b99dec4b5433a c7d329eeb6dd26545e96e55b874be909""")),
)

HKDF = (
    HkdfVector(
        "RFC 5869, appendix A.1",
        key=bytes([0x0b] * 22), salt=unhex("000102030405060708090a0b0c"), info=unhex("f0f1f2f3f4f5f6f7f8f9"),
        output=unhex("3cb25f25faacd57a90434f64d0362f2a 2d2d0a90cf1a5a4c5db02d56ecc4c5bf 34007208d5b887185865")),
    HkdfVector(
        "RFC 5869, appendix A.3",
        key=bytes([0x0b] * 22), salt=b"", info=b"",
        output=unhex("8da4e775a563c18f715f802a063c5a31 b8a11f5c5ee1879ec3454e5f3c738d2d 9d201395faa4b61a96c8")),
)

ED25519 = (
    SignatureVector(
        "RFC 8032, section 7.1, test 1",
        private=unhex("9d61b19deffd5a60ba844af492ec2cc4 4449c5697b326919703bac031cae7f60"),
        public=unhex("d75a980182b10ab7d54bfed3c964073a 0ee172f3daa62325af021a68f707511a"),
        message=b"",
        signature=unhex("""e5564300c360ac729086e2cc806e828a 84877f1eb8e5d974d873e06522490155
                           5fb8821590a33bacc61e39701cf9b46b d25bf5f0595bbe24655141438e7a100b""")),
    SignatureVector(
        "RFC 8032, section 7.1, test 3",
        private=unhex("c5aa8df43f9f837bedb7442f31dcb7b1 66d38535076f094b85ce3a2e0b4458f7"),
        public=unhex("fc51cd8e6218a1a38da47ed00230f058 0816ed13ba3303ac5deb911548908025"),
        message=unhex("af82"),
        signature=unhex("""6291d657deec24024827e69c3abe01a3 0ce548a284743a445e3680d7db5ac3ac
                           18ff9b538d16f290ae67f760984dc659 4a7c15e9716ed28dc027beceea1ec40a""")),
)

AGREEMENT = (
    AgreementVector(
        "RFC 7518, appendix C",
        private=unhex("d3f3716913d4310a0026de741b3f1889 3afc8114f0c84682ba677e313a13988a"),
        x=unhex("c1e349cb61ec70248ce801034c3834e1 b88ebe1161cb25af38741f785fcfc4c4"),
        y=unhex("7bc96708ef80952b53f8d2555fe72b84 1ed04588628b1d378a594939500ec9c9"),
        shared=unhex("9e56d91d817135d372834283bf84269c fb316ea3da806a48f6daa7798cfe90c4"),
        info=b"\0\0\0\7A128GCM\0\0\0\5Alice\0\0\0\3Bob\0\0\0\x80",
        derived=unhex("56aa8deaf8236d205c2228cd71a7101a")),
)

WRAP = (
    WrapVector(
        "RFC 3394, section 4.6", key=bytes(range(32)),
        plain=unhex("00112233445566778899aabbccddeeff 000102030405060708090a0b0c0d0e0f"),
        wrapped=unhex("28c9f404c4b810f4cbccb35cfb87f826 3f5786e2d80ed326cbc7f0e71a99f43b fb988b9b7a02dd21")),
)

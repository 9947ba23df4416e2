"""An image's folder without a build: real boot stub and kernel if given, else small programs of the same shape."""

from __future__ import annotations

import hashlib
import json
import struct
import uuid
import zlib
from pathlib import Path
from typing import Any

CPIO_END = b"070701" + b"0" * 32 + b"00000001" + b"0" * 48 + b"0000000B" + b"0" * 8 + b"TRAILER!!!\x00\x00\x00\x00"
ROOT_HASH = hashlib.sha256(b"root").hexdigest()
GATE = b"\xe9gate"
CMDLINE = f"console=ttyS0 panic=-1 roothash={ROOT_HASH}"


def pe(*sections: tuple[str, bytes]) -> bytes:
    """A PE32+ file: 0x400 bytes of headers, then the sections, each padded to 512 bytes (Microsoft "PE Format")."""
    head, body, at, address = bytearray(0x400), b"", 0x400, 0x1000
    head[:2] = b"MZ"
    struct.pack_into("<I", head, 0x3C, 0x80)
    struct.pack_into("<4sHH12xHH", head, 0x80, b"PE\x00\x00", 0x8664, len(sections), 240, 0x22E)
    struct.pack_into("<H", head, 0x98, 0x20B)
    struct.pack_into("<II", head, 0x98 + 32, 0x1000, 0x200)
    struct.pack_into("<II", head, 0x98 + 56, 0x1000 * (len(sections) + 1), 0x400)
    struct.pack_into("<I", head, 0x98 + 108, 16)
    for number, (name, content) in enumerate(sections):
        size = -(-len(content) // 512) * 512
        struct.pack_into("<8sIIII", head, 0x188 + 40 * number, name.encode(), len(content), address, size, at)
        body += content.ljust(size, b"\x00")
        at += size
        address += max(0x1000, -(-len(content) // 0x1000) * 0x1000)
    return bytes(head) + body


def stub() -> bytes:
    """A program that calls itself systemd-stub 257."""
    return pe((".text", b"\xc3"), (".sbat", b"sbat,1\n"),
              (".sdmagic", b"#### LoaderInfo: systemd-stub 257.13-1 ####\x00"))


def with_sections(program: bytes, *sections: tuple[str, bytes]) -> bytes:
    """A PE32+ file with sections appended, as ukify does it; written apart from the builder's own."""
    image = bytearray(program)
    (start,) = struct.unpack_from("<I", image, 0x3C)
    count, optional_size = struct.unpack_from("<H12xH", image, start + 6)
    optional, table = start + 24, start + 24 + optional_size
    address = max(sum(struct.unpack_from("<II", image, table + 40 * number + 8)) for number in range(count))
    for name, content in sections:
        address = -(-address // 0x1000) * 0x1000
        image += bytes(-len(image) % 512)
        size = -(-len(content) // 512) * 512
        struct.pack_into("<8sIIIIIIHHI", image, table + 40 * count, name.encode(), len(content), address, size,
                         len(image), 0, 0, 0, 0, 0x40000040)
        if name == ".gate":
            struct.pack_into("<I", image, optional + 16, address)
        image += content.ljust(size, b"\x00")
        address, count = address + len(content), count + 1
    struct.pack_into("<H", image, start + 6, count)
    struct.pack_into("<I", image, optional + 56, -(-address // 0x1000) * 0x1000)
    struct.pack_into("<I", image, optional + 60, max(struct.unpack_from("<I", image, optional + 60)[0],
                                                     -(-(table + 40 * count) // 512) * 512))
    return bytes(image)


def disk(content: bytes) -> bytes:
    """A GPT disk with one partition at 1 MiB (UEFI 2.10, section 5.3)."""
    sectors = -(-len(content) // 512)
    last = 2048 + sectors + 33
    system = uuid.UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b").bytes_le
    table = struct.pack("<16s16sQQQ72s", system, uuid.UUID(int=5).bytes_le, 2048, 2047 + sectors, 0,
                        "esp".encode("utf-16-le")).ljust(128 * 128, b"\x00")

    def header(here: int, other: int, entries: int, crc: int) -> bytes:
        return struct.pack("<8sIIIIQQQQ16sQIII", b"EFI PART", 0x10000, 92, crc, 0, here, other, 34, last - 34,
                           uuid.UUID(int=6).bytes_le, entries, 128, 128, zlib.crc32(table))

    def sealed(*place: int) -> bytes:
        return header(*place, zlib.crc32(header(*place, 0))).ljust(512, b"\x00")

    mbr = (bytes(446) + struct.pack("<B3sB3sII", 0, b"\0\2\0", 0xEE, b"\xff\xff\xff", 1, last)).ljust(510, b"\x00")
    return ((mbr + b"\x55\xaa" + sealed(1, last, 2) + table).ljust(2048 * 512, b"\x00")
            + content.ljust(sectors * 512, b"\x00") + table + sealed(last, 1, last - 32))


def write(folder: Path, *, kernel: bytes | None = None, boot_stub: bytes | None = None, cmdline: str = CMDLINE,
          initrd: bytes = CPIO_END, osrel: bytes = b"ID=appliance\n", policy: str | None = None,
          system: Any = None) -> Path:
    """Write the folder as `appliance image build` lays it out; `system(program)` makes the system partition."""
    folder.mkdir(parents=True, exist_ok=True)
    kernel = kernel or pe((".text", b"kernel" * 300))
    program = with_sections(boot_stub or stub(), (".gate", GATE), (".osrel", osrel), (".cmdline", cmdline.encode()),
                            (".uname", b"6.12.0"), (".initrd", initrd), (".linux", kernel))
    files = {"appliance.efi": program, "gate.bin": GATE, "vmlinuz": kernel, "initrd.cpio": initrd,
             "cmdline": cmdline.encode(), "root.img": b"root file system",
             "disk.raw": disk(system(program) if system else program)}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    manifest(folder, policy=policy, cmdline=cmdline)
    return folder


def manifest(folder: Path, **changed: Any) -> None:
    """Write image.json for the files that are there."""
    names = ("appliance.efi", "gate.bin", "vmlinuz", "initrd.cpio", "cmdline", "root.img", "disk.raw")
    files = {name: {"sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest(),
                    "size": (folder / name).stat().st_size} for name in names}
    policy = changed.get("policy")
    document = {
        "format": "appliance/image/v1", "files": files, "cmdline": changed.get("cmdline", CMDLINE),
        "verity": {"root_hash": ROOT_HASH, "salt": "00" * 32, "data_blocks": 1, "hash_offset": 4096,
                   "block_size": 4096},
        "policy": {"placement": "baked" if policy else "launch", "sha384": policy},
        "build": {"version": "0.1.0", "code_sha384": hashlib.sha384(b"code").hexdigest(), "kernels_sha384": None},
        "kernel": {"release": "6.12.0"}, "source_date_epoch": 1760000000,
        "packages": [{"name": "libc6", "version": "2.41-12", "sha256": hashlib.sha256(b"libc6").hexdigest()},
                     {"name": "python3.13-minimal", "version": "3.13.5-2",
                      "sha256": hashlib.sha256(b"python").hexdigest()}],
        "wheels": [{"name": "cryptography", "version": "46.0.3",
                    "sha256": hashlib.sha256(b"cryptography").hexdigest()}],
    }
    (folder / "image.json").write_bytes(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())

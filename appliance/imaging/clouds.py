"""The clouds that an image can be exported for: one row each, with what each demands of a disk.

The commands are those of the clouds' own tools by their manuals. Nobody ran them, since no cloud
was reached.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.errors import ImageError
from appliance.imaging.disk.gpt import ALIGN, ESP
from appliance.imaging.export import Format
from appliance.imaging.predict import gpt

_HEADER = 100  # bytes of a table's event before its entries: header, and their number


@dataclass(frozen=True)
class Cloud:
    """One cloud.

    `format`: the form that it takes. `command`: its own tool's words, where FILE is the export, and
    other words in capitals are to be chosen. `lacks`: what stops an image there, if anything does.
    The drivers of its machines stand in `image/modules.toml`.
    """

    name: str
    title: str
    format: Format
    most: int  # bytes of a disk
    command: tuple[str, ...]
    lacks: str = ""


_TIB = 1 << 40
CLOUDS = {each.name: each for each in (
    Cloud("gce", "Google Compute Engine", "tar", 2 * _TIB, (
        "gcloud storage cp FILE gs://BUCKET/NAME.tar.gz",
        "gcloud compute images create NAME --source-uri=gs://BUCKET/NAME.tar.gz --architecture=X86_64 "
        "--guest-os-features=UEFI_COMPATIBLE,GVNIC,VIRTIO_SCSI_MULTIQUEUE,SEV_SNP_CAPABLE,TDX_CAPABLE")),
    Cloud("ec2", "Amazon EC2", "raw", 64 * _TIB, (
        "aws s3 cp FILE s3://BUCKET/NAME.raw",
        "aws ec2 import-snapshot --region REGION --disk-container "
        "'Format=RAW,UserBucket={S3Bucket=BUCKET,S3Key=NAME.raw}'",
        "aws ec2 register-image --region REGION --name NAME --architecture x86_64 --boot-mode uefi --ena-support "
        "--virtualization-type hvm --tpm-support v2.0 --root-device-name /dev/xvda --block-device-mappings "
        "'DeviceName=/dev/xvda,Ebs={SnapshotId=SNAPSHOT}'")),
    Cloud("azure", "Microsoft Azure", "vhd", 4 * _TIB, (
        "azcopy copy FILE 'https://ACCOUNT.blob.core.windows.net/BUCKET/NAME.vhd?SAS' --blob-type PageBlob",
        "az sig image-definition create -g GROUP -r GALLERY -i NAME -p PUBLISHER -f NAME -s NAME --os-type Linux "
        "--os-state Specialized --hyper-v-generation V2 --features SecurityType=ConfidentialVmSupported",
        "az sig image-version create -g GROUP -r GALLERY -i NAME -e 1.0.0 --os-vhd-storage-account ACCOUNT "
        "--os-vhd-uri https://ACCOUNT.blob.core.windows.net/BUCKET/NAME.vhd"),
        lacks="its disks and network hang on VMBus, which the kernel finds by the host's ACPI tables, and the image's "
        "gate takes these away"),
)}


def commands(cloud: Cloud, output: Path) -> list[str]:
    """Return the words of the cloud's own tool for an export."""
    return [each.replace("FILE", str(output)) for each in cloud.command]


def check(cloud: Cloud, folder: Path, document: dict[str, Any]) -> None:
    """Check that a cloud takes an image's disk. Raises ImageError, which names what it demands."""
    if wrong := "; ".join(_misfits(cloud, folder, document)):
        raise ImageError(f"{folder}: not an image for {cloud.title}: {wrong}", code="image-cloud",
                         hint=f"build one: appliance image build POLICY -o DIR --cloud {cloud.name}")


def _misfits(cloud: Cloud, folder: Path, document: dict[str, Any]) -> Iterator[str]:
    """Yield what is not as the cloud has it."""
    disk = folder / "disk.raw"
    size = disk.stat().st_size if disk.is_file() else 0
    if not 0 < size <= cloud.most:
        yield f"the disk has {size} bytes, at most {cloud.most} are taken"
        return
    if cloud.name not in document.get("clouds", ()):
        yield "its initrd has no drivers for these machines"
    table = gpt.event(disk)[_HEADER:]
    entries = [table[at:at + gpt.ENTRY_BYTES] for at in range(0, len(table), gpt.ENTRY_BYTES)]
    if ESP not in [uuid.UUID(bytes_le=entry[:16]) for entry in entries]:
        yield "there is no EFI system partition"
    for number, entry in enumerate(entries, start=1):
        first, last = struct.unpack_from("<QQ", entry, 32)
        if first % ALIGN:
            yield f"partition {number} begins at sector {first}, not at a whole MiB"
        if (last + 1) * gpt.SECTOR > size:
            yield f"partition {number} ends behind the disk"

"""Debian's signed indices: InRelease (checked by gpgv against pinned fingerprints) -> Packages by
SHA-256.

Only `appliance image lock` uses this; a build trusts only the lock file.
"""

from __future__ import annotations

import email.utils
import hashlib
import lzma
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import ImageError
from appliance.imaging.packages.downloads import fetch
from appliance.imaging.recipe.recipe import Archive

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@dataclass(frozen=True)
class Candidate:
    """A package as an index offers it."""

    name: str
    version: str
    size: int
    sha256: str
    archive: str
    path: str
    needs: tuple[tuple[str, ...], ...]  # for each dependency, package names of which one will do
    provides: tuple[str, ...]


def verify(signed: bytes, signers: tuple[str, ...], name: str, keyring: Path = KEYRING) -> bytes:
    """Return the signed text of an InRelease file, if one of the pinned keys signed it; else
    ImageError.
    """
    if shutil.which("gpgv") is None:
        raise ImageError("gpgv is not installed", hint="apt-get install gpgv debian-archive-keyring",
                         code="tool-missing")
    with tempfile.TemporaryDirectory() as folder:
        source, text = Path(folder, "InRelease"), Path(folder, "Release")
        source.write_bytes(signed)
        command = ["gpgv", "--status-fd", "1", "--keyring", str(keyring), "--output", str(text), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        valid = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("[GNUPG:] VALIDSIG ")]
        if not set(valid) & set(signers) or "[GNUPG:] BADSIG" in done.stdout:
            raise ImageError(f"{name}: signed by {', '.join(valid) or 'no known key'}; expected one of "
                             f"{', '.join(signers)}", code="index-forged")
        return text.read_bytes()


def index(archive: Archive, address: str, architecture: str) -> tuple[int, list[Candidate]]:
    """Return every package of an archive's suites, and the newest date among them (seconds)."""
    newest, found = 0, []
    for suite in archive.suites:
        place = f"{address}/dists/{suite}"
        release = verify(fetch(f"{place}/InRelease"), archive.signers, f"{place}/InRelease").decode()
        date = re.search(r"^Date: (.+)$", release, re.M)
        listed = re.search(rf"^ ([0-9a-f]{{64}})\s+\d+ main/binary-{architecture}/Packages\.xz$", release, re.M)
        if date is None or listed is None:
            raise ImageError(f"{place}/InRelease: no date, or no Packages.xz for {architecture}")
        packed = fetch(f"{place}/main/binary-{architecture}/Packages.xz")
        if hashlib.sha256(packed).hexdigest() != listed[1]:
            raise ImageError(f"{place}: Packages.xz is not what InRelease signed", code="index-forged")
        newest = max(newest, int(email.utils.parsedate_to_datetime(date[1]).timestamp()))
        stanzas = lzma.decompress(packed).decode().split("\n\n")
        found += [_candidate(stanza, archive.name) for stanza in stanzas if stanza]
    return newest, found


def _candidate(stanza: str, archive: str) -> Candidate:
    fields = dict(re.findall(r"^([A-Za-z0-9-]+): (.*)$", stanza, re.M))
    needs = [tuple(re.split(r"[ :(]", option.strip())[0] for option in group.split("|"))
             for key in ("Pre-Depends", "Depends") for group in fields.get(key, "").split(",") if group.strip()]
    provides = tuple(item.split()[0] for item in fields.get("Provides", "").split(",") if item.strip())
    return Candidate(fields["Package"], fields["Version"], int(fields["Size"]), fields["SHA256"], archive,
                     fields["Filename"], tuple(needs), provides)

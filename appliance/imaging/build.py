"""Build an image. Read `build()`: it is the list of steps.

    packages      .debs and wheels, by their SHA-256, from the cache or the machine's mirrors
    tools         compiler, linker and file system maker are unpacked: nothing of the machine's shapes the image
    gate          our first code, which takes the host's ACPI tables away
    kernels       for every target, ahead of time
    root          the tree: packages, wheels, the appliance, kernels, policy
    bytecode      compiled by the image's own interpreter
    file-system   erofs, compressed, then its dm-verity tree
    initrd        our init, modules, and the command line that holds the root hash
    kernel-image  gate, boot stub, kernel, initrd and command line in one EFI program
    disk          a GPT disk of both
    manifest      image.json
    export        the disk in further formats, if any are asked for

The bytes of every artefact depend only on the sources, lock files and policy.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance import __version__
from appliance.boot import checks, identity
from appliance.errors import ImageError
from appliance.imaging import export
from appliance.imaging.disk import bytecode, fat, gpt, initrd, linux, programs, rootfs, uki, verity
from appliance.imaging.disk.toolchain import Toolchain
from appliance.imaging.disk.tree import Tree
from appliance.imaging.packages import lockfile, wheels
from appliance.imaging.packages.downloads import Downloads, default_folder
from appliance.imaging.packages.fetching import fetch_packages
from appliance.imaging.recipe import manifest
from appliance.imaging.recipe.recipe import Recipe
from appliance.imaging.recipe.stages import Steps
from appliance.kernelbuild import cache as kernelcache
from appliance.platforms import BY_NAME, NAMES
from appliance.policy import Loaded

_LINKER = "usr/bin/x86_64-linux-gnu-ld.bfd"
_MAKE_EROFS = "usr/bin/mkfs.erofs"
_STUB = "usr/lib/systemd/boot/efi/linuxx64.efi.stub"


@dataclass(frozen=True)
class Options:
    """The inputs of one build; `policy` None: an image that takes its policy at launch."""

    recipe: Recipe
    output: Path
    policy: Loaded | None = None
    mirrors: dict[str, str] | None = None
    cache: Path | None = None
    targets: tuple[str, ...] = ()  # of the kernels; none: all
    words: tuple[str, ...] = ()  # further words of the kernel command line, measured like the rest
    exports: tuple[export.Format, ...] = ()  # formats in which the disk is written besides
    clouds: tuple[str, ...] = ()  # whose machines' drivers are in the initrd

    @property
    def downloads(self) -> Downloads:
        """The cache of downloads."""
        return Downloads((self.cache or default_folder()) / "downloads")


def build(options: Options, steps: Steps) -> dict[str, Any]:
    """Build an image into a folder, whole or not at all; returns its manifest. Raises ImageError,
    which names the step."""
    recipe, downloads = options.recipe, options.downloads
    if options.policy is not None and (unkept := list(checks.unkept(options.policy))):
        raise ImageError("; ".join(unkept), hint="no image with this policy would boot: appliance check "
                         f"{options.policy.path}", code="policy-not-met-here")
    with _output(options.output) as out, tempfile.TemporaryDirectory(prefix="appliance-image-") as scratch:
        work = Path(scratch)
        with steps.step("packages") as step:
            epoch, packages = lockfile.read_packages(recipe.file("packages.lock"))
            locked = lockfile.read_wheels(recipe.file("wheels.lock"))
            fetch_packages(recipe, packages, downloads, options.mirrors or {}, steps.progress)
            wheels.fetch(recipe, locked, downloads)
            step.detail = f"{len(packages)} packages, {len(locked)} wheels"
        with steps.step("tools"):
            tools = Toolchain(work / "tools")
            for role in ("tools", "boot"):
                rootfs.unpack(Tree(work / role, dict(recipe.links)), _of(packages, role), downloads)
        with steps.step("gate") as step:
            stub = (work / "boot" / _STUB).read_bytes()
            gate = _gate(options, tools, uki.place(stub))
            step.detail = f"{len(gate)} bytes"
        with steps.step("kernels") as step:
            libraries = kernelcache.libraries(
                downloads.folder.parent / "kernels", options.targets, tools.command(_LINKER),
                lambda done, total, name: steps.progress(f"kernels {name}", done, total))
            step.detail = ", ".join(path.stem.removeprefix("kernels-") for path in libraries if path.suffix == ".so")
        with steps.step("root"):
            tree = rootfs.begin(work / "root", recipe, development=options.policy is not None
                                and options.policy.policy.simulated)
            rootfs.unpack(tree, _of(packages, "root"), downloads, recipe.prune["debian"])
            rootfs.install_wheels(tree, recipe, locked, downloads)
            source = options.policy.path.read_bytes() if options.policy else None
            rootfs.install_appliance(tree, recipe, libraries, source, gate)
            tree.prune_empty(recipe.directories)
        with steps.step("bytecode") as step:
            made = bytecode.compile_tree(tree, recipe.places["python"],
                                         [recipe.places["library"], recipe.places["site"]])
            step.detail = f"{made} files"
        with steps.step("file-system") as step:
            tree.stamp(epoch)
            sealed = _root_image(tools, tree, out / "root.img", epoch)
            step.detail = f"{(out / 'root.img').stat().st_size / 1e6:.1f} MB, root hash {sealed.root_hash}"
        with steps.step("initrd") as step:
            cmdline = " ".join([*recipe.words, *options.words, f"roothash={sealed.root_hash}",
                                f"verity.blocks={sealed.data_blocks}", f"verity.salt={sealed.salt}"])
            kernel = linux.read(work / "boot", recipe.modules_required, optional_modules(options))
            init = programs.compile_init(tools, recipe.file("init/init.c"))
            packed = initrd.pack(init, kernel, cmdline)
            step.detail = f"{len(packed) / 1e6:.2f} MB, {len(kernel.required) + len(kernel.optional)} modules"
        with steps.step("kernel-image") as step:
            program = uki.assemble(stub, gate, [
                (".osrel", recipe.files["etc/os-release"].encode()), (".cmdline", cmdline.encode()),
                (".uname", kernel.release.encode()), (".initrd", packed), (".linux", kernel.image)])
            for name, data in (("appliance.efi", program), ("vmlinuz", kernel.image), ("initrd.cpio", packed),
                               ("cmdline", cmdline.encode()), ("gate.bin", gate)):
                (out / name).write_bytes(data)
            step.detail = f"{len(program) / 1e6:.1f} MB, Linux {kernel.release}"
        with steps.step("disk"):
            _disk(out, program, sealed.root_hash, epoch)
        with steps.step("manifest"):
            manifest.write(out, _facts(options, sealed, cmdline, kernel.release, packages, locked, libraries, tree,
                                       epoch))
        if options.exports:
            with steps.step("export") as step:
                for kind in options.exports:
                    export.export(out, kind, out / export.FILES[kind])
                step.detail = ", ".join(export.FILES[kind] for kind in options.exports)
        for path in out.iterdir():
            path.chmod(0o644)
    return manifest.read(options.output)


def _of(packages: tuple[lockfile.Package, ...], role: str) -> list[lockfile.Package]:
    return [package for package in packages if package.role == role]


def _gate(options: Options, tools: Toolchain, place: uki.Place) -> bytes:
    """Return the parts that the gate lets through, by the needs of the policy's platforms; that of
    a policy given at launch, what any needs."""
    allowed = NAMES if options.policy is None else options.policy.policy.tee.platforms
    let = {BY_NAME[name].gate for name in allowed}
    return programs.compile_gate(tools, options.recipe.file("gate"), programs.Gate(
        place.address, place.entry, tpm="tpm" in let, td="td" in let))


def clouds_of(options: Options) -> tuple[str, ...]:
    """The clouds whose drivers the image has: named at the build, or in its policy."""
    google = options.policy is not None and options.policy.policy.tee.evidence.gce is not None
    return tuple(sorted({*options.clouds, *(("gce",) if google else ())}))


def optional_modules(options: Options) -> tuple[str, ...]:
    """An image with a policy has no module for a listener that it lacks."""
    wanted = options.policy is None or any(
        listener.kind == "vsock" or listener.transport == "vsock"
        for listener in options.policy.policy.service.listeners)
    drivers = [name for cloud in clouds_of(options) for name in options.recipe.modules_clouds[cloud]]
    return (*options.recipe.modules_optional, *(options.recipe.modules_vsock if wanted else ()), *drivers)


def _root_image(tools: Toolchain, tree: Tree, image: Path, epoch: int) -> verity.Verity:
    """Pack the tree as erofs and append the hash tree; salt and UUIDs come from the content."""
    identity = hashlib.sha256(b"appliance/root/v1\n" + str(epoch).encode()).digest()
    tools.run(_MAKE_EROFS, "--quiet", "-zzstd,level=3", "-C65536", f"-T{epoch}",
              "--all-root", "-U", str(uuid.UUID(bytes=identity[:16], version=5)), "-x-1", str(image), str(tree.root))
    with image.open("r+b") as file:
        size = -(-image.stat().st_size // verity.BLOCK) * verity.BLOCK
        file.truncate(size)
        content = hashlib.file_digest(file, "sha256").digest()
        file.seek(0)
        sealed = verity.build(file, size, hashlib.sha256(b"appliance/verity/v1\n" + content).digest(), content[:16])
        file.seek(size)
        file.write(sealed.tree)
    return sealed


def _disk(out: Path, program: bytes, root_hash: str, epoch: int) -> None:
    """The GPT disk. GUIDs come from what is on it."""
    digest = hashlib.sha256(program).digest()

    def guid(name: str) -> uuid.UUID:
        named = hashlib.sha256(f"appliance/{name}/v1\n{root_hash}\n".encode() + digest).digest()
        return uuid.UUID(bytes=named[:16], version=5)

    system = fat.pack(program, int.from_bytes(digest[:4], "big"), epoch)
    partitions = [gpt.Partition(gpt.ESP, guid("esp"), "appliance-esp", system),
                  gpt.Partition(gpt.ROOT_X86_64, guid("root"), "appliance-root", (out / "root.img").read_bytes())]
    with (out / "disk.raw").open("wb") as disk:
        for piece in gpt.pack(guid("disk"), partitions):
            disk.write(piece)


def _facts(options: Options, sealed: verity.Verity, cmdline: str, release: str,
           packages: tuple[lockfile.Package, ...], locked: tuple[lockfile.Wheel, ...], libraries: list[Path],
           tree: Tree, epoch: int) -> dict[str, Any]:
    """Return the statements of image.json besides the files."""
    code = identity.code_digest(tree.root / options.recipe.places["site"] / "appliance").hex()
    digests = {path.stem.removeprefix("kernels-"): hashlib.sha384(path.read_bytes()).hexdigest()
               for path in libraries if path.suffix == ".so"}
    return {
        "cmdline": cmdline,
        "verity": {"root_hash": sealed.root_hash, "salt": sealed.salt, "data_blocks": sealed.data_blocks,
                   "hash_offset": sealed.hash_offset, "block_size": verity.BLOCK},
        "policy": {"placement": "baked" if options.policy else "launch",
                   "sha384": options.policy.digest.hex() if options.policy else None},
        "listeners": manifest.listeners(options.policy),
        "build": {"version": __version__, "code_sha384": code, "kernels_sha384": None},  # which one, the CPU decides
        "kernels": digests,
        "kernel": {"release": release},
        **({"clouds": list(clouds)} if (clouds := clouds_of(options)) else {}),
        "packages": [{"name": item.name, "version": item.version, "sha256": item.sha256, "role": item.role}
                     for item in packages],
        "wheels": [{"name": item.name, "version": item.version, "sha256": item.sha256} for item in locked],
        "source_date_epoch": epoch,
    }


@contextmanager
def _output(folder: Path) -> Iterator[Path]:
    """A new folder beside the output, which takes its place at the end; an older image there is
    replaced."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / manifest.NAME).is_file())):
        raise ImageError(f"{folder} holds something that is not an image", hint="name an empty or new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield fresh
        fresh.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        fresh.rename(folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise

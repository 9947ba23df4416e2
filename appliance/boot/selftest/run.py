"""The self-test: known answers for every kernel, for the cryptography, and health of the random
source.

Nothing is trusted to compute before it has been seen to compute right. The digest over all results
is bound in the attestation, so a client can tell which tests the appliance that answers has passed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from appliance.boot.selftest import crypto, entropy, kernels
from appliance.codec.canonical import canonical
from appliance.codec.printable import quantity
from appliance.errors import BootError
from appliance.kernels.runtime.table import KernelTable

FORMAT = "appliance/self-test/v1"


@dataclass(frozen=True)
class Result:
    """One test. `expected` and `found` are SHA-256 of the answers (hex), or words for tests without
    bytes."""

    name: str
    expected: str
    found: str

    @property
    def passed(self) -> bool:
        """Whether the answer was the expected one."""
        return hmac.compare_digest(self.expected, self.found)


@dataclass(frozen=True)
class SelfTest:
    """All results of one run. `formats`: the block formats whose kernels were tested; None is all
    of them."""

    results: tuple[Result, ...]
    target: str
    origin: str
    formats: frozenset[str] | None
    random_source: str

    @property
    def passed(self) -> bool:
        """Whether every test passed."""
        return all(result.passed for result in self.results)

    @property
    def failures(self) -> tuple[Result, ...]:
        """The tests that failed."""
        return tuple(result for result in self.results if not result.passed)

    def as_json(self) -> dict[str, Any]:
        """The document that the digest is over, and that `/health` shows in part."""
        return {
            "type": FORMAT, "target": self.target, "origin": self.origin, "random_source": self.random_source,
            "formats": None if self.formats is None else sorted(self.formats),
            "results": [{"name": result.name, "expected": result.expected, "found": result.found}
                        for result in self.results]}

    @property
    def digest(self) -> bytes:
        """SHA-384 over the canonical results: 48 bytes."""
        return hashlib.sha384(canonical(self.as_json())).digest()


def _hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def crypto_results(answers: Iterable[crypto.Answer]) -> Iterator[Result]:
    """Results of the cryptography's known answers."""
    for name, expected, found in answers:
        yield Result(name, _hashed(expected), _hashed(found))


def random_results(draw: Callable[[], bytes] = entropy.draw) -> Iterator[Result]:
    """Result of the random source's health tests."""
    yield Result("random", "healthy", "; ".join(entropy.problems(draw(), draw())) or "healthy")


def cpu_random_result(source: str) -> Result:
    """Whether the CPU has a random instruction: in a TEE the host's sources must not stand alone.
    """
    return Result("random/cpu", "present", "absent" if source == "none" else "present")


@contextlib.contextmanager
def report_crashes() -> Iterator[None]:
    """Within, a crash in compiled code leaves a line on standard error and the place in our code. A
    damaged library can end the process before its answers can be compared."""
    ours = not faulthandler.is_enabled()
    if ours:
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # a standard error that is no file
            faulthandler.enable(all_threads=False)
    try:
        yield
    finally:
        if ours:
            faulthandler.disable()


def run(table: KernelTable, *, formats: frozenset[str] | None = None, need_cpu_random: bool = False,
        progress: Callable[[int, int], None] = lambda done, total: None) -> SelfTest:
    """Run every test. `formats` limits the kernels to those that these block formats need (for
    kernels that are compiled when first called); None tests every kernel of the table. Never raises
    for a wrong answer."""
    results = [*crypto_results(crypto.answers()), *random_results()]
    if need_cpu_random:
        results.append(cpu_random_result(entropy.cpu_source()))
    names = kernels.selection(table, formats)
    for done, name in enumerate(names):
        progress(done, len(names))
        results.append(Result(name, *kernels.answer(table, name)))
    progress(len(names), len(names))
    return SelfTest(tuple(results), table.target.name, table.origin, formats, entropy.cpu_source())


def require(tested: SelfTest) -> str:
    """A line about the tests that passed. Raises BootError naming what failed, expected and found.
    """
    if tested.failures:
        first = tested.failures[0]
        more = f" and {len(tested.failures) - 1} more" if len(tested.failures) > 1 else ""
        raise BootError(
            f"{first.name}: expected {first.expected}, found {first.found}{more}", code="self-test-failed",
            hint="this CPU or this build computes wrong, or a kernel was changed without its known answer")
    which = "all kernels" if tested.formats is None else f"kernels for {', '.join(sorted(tested.formats)) or 'none'}"
    answers = quantity(len(tested.results), "answer")
    return f"{answers}, {which} ({tested.origin}, {tested.target}), {tested.digest.hex()}"

"""The cost of each test file in seconds of a processor: `costs.json` beside this, by file, for
those above a second.

    python -m tests.support.costs        writes it from build/tests/times.json, after a run of `make test`

Workers take dear files first, so that they end at about one time. `make quick` leaves out files above `QUICK` seconds.
A file that is not in the table counts as quick until `make quick` names one of its tests (see `tests.support.times`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.times import TIMES

TABLE = Path(__file__).with_suffix(".json")
QUICK = 3.0  # seconds of a processor, above which a file is not part of `make quick`
UNTRACED = 10.0  # seconds, above which the lines that a file reaches are not counted
LISTED = 1.0  # seconds, from which a file is in the table

COSTS: dict[str, float] = json.loads(TABLE.read_text())
THOROUGH = frozenset(name for name, seconds in COSTS.items() if seconds > QUICK)

UNMEASURED = frozenset(name for name, seconds in COSTS.items() if seconds > UNTRACED)

# Files that are measured for coverage whatever they cost, with their children: they alone reach some modules.
# Measuring the others would take longer than all else, for lines that others reach.
MEASURED = frozenset({
    "tests/acceptance/test_acceptance.py",
    "tests/detectors/test_looks.py",
    "tests/drills/test_drills.py",
    "tests/oblivious/test_oblivious_contents.py",
    "tests/service/test_tenant_push.py",
    "tests/state/test_state_key.py",
    "tests/attestation/test_collateral_fetch.py",
    "tests/attestation/test_tpm_activation.py",
    "tests/attestation/test_tpm_seal.py",
    "tests/audit/test_audit_stdlib.py",
    "tests/auditor/test_pack_service.py",
    "tests/boot/test_base_model.py",
    "tests/boot/test_boot_sequence.py",
    "tests/keys/test_key_release.py",
    "tests/keys/test_key_release_boot.py",
    "tests/boot/test_plan_memory.py",
    "tests/boot/test_prompt_cache.py",
    "tests/state/test_state_disk.py",
    "tests/cli/test_cli_streams.py",
    "tests/cli/test_engine_infer.py",
    "tests/cli/test_isolated.py",
    "tests/cli/test_service_cli.py",
    "tests/cli/test_tokenizer_cli.py",
    "tests/client/test_client_flips.py",
    "tests/client/test_client_proxy.py",
    "tests/client/test_client_verify.py",
    "tests/constraint/test_constraint_schema.py",
    "tests/engine/decode/test_engine_choices.py",
    "tests/engine/decode/test_engine_shift.py",
    "tests/engine/forward/test_engine_cache.py",
    "tests/engine/forward/test_engine_prefixes.py",
    "tests/kernels/test_kernel_runtime_build.py",
    "tests/text/calls/test_calls_vectors.py",
    "tests/text/test_template_chats.py",
    "tests/text/test_template_language.py",
    "tests/text/test_tokenizer_text.py",
    "tests/imaging/test_formats.py",
    "tests/imaging/test_image_build.py",
    "tests/imaging/test_image_container.py",
    "tests/imaging/test_predict_boot.py",
    "tests/models/test_streamed.py",
    "tests/policy/test_policy_syntax.py",
    "tests/sealing/test_sealed_roundtrip.py",
    "tests/api/test_service_api.py",
    "tests/api/test_service_wire.py",
    "tests/http/test_service_http.py",
    "tests/http/test_service_leaving.py",
    "tests/http/test_service_protocol.py",
    "tests/http/test_service_tls.py",
    "tests/service/test_receipts.py",
    "tests/service/test_service_anthropic.py",
    "tests/service/test_service_console.py",
    "tests/service/test_service_responses.py",
    "tests/signed/test_approvals.py",
})


def main() -> int:
    """Write the table again. Files that the run left out keep their figures."""
    times = json.loads(TIMES.read_text())
    costs = {name: seconds for name, seconds in COSTS.items() if (TABLE.parents[2] / name).exists()}
    costs |= {name: round(seconds / times["pace"], 1) for name, _, seconds in times["files"]}
    kept = {name: seconds for name, seconds in costs.items() if seconds >= LISTED}
    TABLE.write_text(json.dumps(dict(sorted(kept.items(), key=lambda row: -row[1])), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

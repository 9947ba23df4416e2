"""The rules of TDX that no other platform has, in words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from appliance.attestation.case.rule import Rule

_BLOCK = "tee.evidence.tdx"
FIELDS: Mapping[str, str] = MappingProxyType({  # the policy's field that a rule compares
    "collateral-age": "tee.evidence.max_collateral_age", "tcb-status": f"{_BLOCK}.tcb_status",
    "advisories": f"{_BLOCK}.accepted_advisories", "evaluation-number": f"{_BLOCK}.min_evaluation_number",
    "mrseam": f"{_BLOCK}.mr_seam", "tee-tcb-svn": f"{_BLOCK}.min_tee_tcb_svn", "xfam": f"{_BLOCK}.xfam",
    "service-td": f"{_BLOCK}.service_tds", "gce-svn": "tee.evidence.gce.min_svn"})
QUIET = frozenset({"report-data", "mrconfigid", "mrowner", "mrownerconfig", "rtmr0", "rtmr3"})

RULES = (
    Rule("mrtd", "the TD was launched with a firmware that the measurements name", "executables", attack="wrong image",
         hint="give the image's measurements: --measurements FILE --builder-key KEY"),
    Rule("sept-ve-disable", "the host cannot inject exceptions on memory access", "runtime-opaque"),
    Rule("td-attributes", "the TD has no attribute that is unknown here", "configuration"),
    Rule("service-td", "the TD is bound to no service TD that the policy does not accept",
         "runtime-opaque", attack="another TD that may see or move this one"),
    Rule("mrseam", "the TDX module is one that the policy accepts", "hardware", quiet=True),
    Rule("tee-tcb-svn", "the TDX module's security versions are high enough",
         "hardware", attack="downgrade", quiet=True),
    Rule("xfam", "the TD has no CPU feature that the policy does not allow", "configuration", quiet=True),
    Rule("gce-svn", "Google endorses the firmware, in a version that is high enough", "executables",
         attack="downgrade", quiet=True),
    Rule("seam", "the TDX module is Intel's production module", "hardware"),
    Rule("tcb-status", "Intel's judgement of the platform is one that the policy allows",
         "hardware", attack="downgrade"),
    Rule("advisories", "no advisory is open that the policy does not accept", "hardware"),
    Rule("evaluation-number", "Intel's judgement is recent enough by its number", "hardware", attack="downgrade"),
    Rule("collateral-age", "Intel's judgement is recent enough", "hardware", attack="stale collateral"),
)

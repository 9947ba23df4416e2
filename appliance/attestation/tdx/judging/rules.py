"""The rules of TDX that no other platform has, in words."""

from __future__ import annotations

from appliance.attestation.case.rule import Rule

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
    Rule("seam", "the TDX module is Intel's production module", "hardware"),
    Rule("tcb-status", "Intel's judgement of the platform is one that the policy allows",
         "hardware", attack="downgrade"),
    Rule("advisories", "no advisory is open that the policy does not accept", "hardware"),
    Rule("evaluation-number", "Intel's judgement is recent enough by its number", "hardware", attack="downgrade"),
    Rule("collateral-age", "Intel's judgement is recent enough", "hardware", attack="stale collateral"),
)

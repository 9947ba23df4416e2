# A production deployment on AMD SEV-SNP: a sealed model whose key a broker releases after attestation, RA-TLS as the
# only way in, tenants from a signed list, two approvals of three, and an audit log on the sealed state disk.
#
# What evidence must show is all that a patched machine of late 2026 shows (docs/attacks.md names the attacks). Where a
# comment says that a line is the site's choice, public reports of patched machines do not show it: leave the line out
# where your provider cannot do it, and read there what remains.
#
# Hashes and keys are made up; `appliance model pin` and `appliance check` say what belongs there.

appliance {
  name   = "acme-production"
  schema = 2
}

tee {
  platforms        = ["sev-snp"]
  memory_budget    = "6GiB"
  plaintext_budget = "8MiB"

  evidence {
    debug     = false
    migration = false
    smt       = false # the site's choice: a neighbour's thread shares caches and counters
    vmpl      = 0

    # The site's choice: `machines { authority, list }` accepts listed machines alone (docs/formats/machine-list.md).

    sev_snp {
      products             = ["genoa", "turin"] # not Milan: software extracts its root seed (arXiv 2605.12990)
      signing_keys         = ["vcek"]           # a VLEK names no chip; a cloud that has one goes into csp_ids
      min_report_version   = 5                  # older reports show no mitigations
      min_api              = "1.55"
      committed_is_current = true # nothing to go back to
      alias_check          = true # against BadRAM
      ecc                  = true

      # The site's choice. Firmware of interface 1.58 takes a guest policy against Heracles, too: page_swap_disabled.
      single_socket           = true
      ciphertext_hiding       = true
      guest_ciphertext_hiding = true
      rapl_disabled           = true
      guest_rapl_disabled     = true

      # The image's builder signs its ID block; without this key the operator could sign one with any number.
      min_guest_svn = 3
      id_key_sha384 = "ed54658a48bc65877ecbab9c4b763a53d63cd013facdb1c3a9eddcbfc8f744e295ba7d8ea24b55da129daeeaf26d8fa9"

      # What AMD's bulletins ask for, up to AMD-SB-3020, -3016 and -3027, and the mitigations that reports of patched
      # machines show. Genoa-X has lower patch levels than Genoa: a fleet without it writes microcode = 86. Bit 2 of
      # the mitigations is the host's part of AMD-SB-3016: add it (0xf) once your machines show it.
      min_tcb "genoa" {
        bootloader          = 10
        snp                 = 27
        microcode           = 81
        launch_mitigations  = "0xb"
        current_mitigations = "0xb"
      }
      min_tcb "siena" { # and Bergamo, which have Genoa's keys and patch levels of their own
        bootloader          = 10
        snp                 = 27
        microcode           = 27
        launch_mitigations  = "0xb"
        current_mitigations = "0xb"
      }
      min_tcb "turin" {
        fmc                 = 1
        bootloader          = 1
        tee                 = 1
        snp                 = 4
        microcode           = 81
        launch_mitigations  = "0x3f"
        current_mitigations = "0x3f"
      }
    }
  }
}

state {
  device = "/dev/vdb"

  key {
    provider = "broker"
    version  = 2

    broker {
      url         = "https://keys.acme.example"
      root_sha256 = "1fcfd0c1a5a7e9a37a3c6f60fc6b6c5c1d43ad4cda8d0b8be0d1f0a4e3d7a6b5"
      resource    = "acme/production/state"
    }
  }
}

approvals {
  required = 2

  approver "security" {
    public_key = "ed25519:ec08b5b9530381069238c587d1b42775f48f1a320af7ea8ef4b958ae41682090"
  }
  approver "data-protection" {
    public_key = "ed25519:a60d0b682bad95e64c5571b3783b2ae6076a9bf612da9804c6fc5b57b1a87e0b"
  }
  approver "platform" {
    public_key = "ed25519:095fa5c3c94336dbcce60da7f0ad4c5a7b0402d8cfcebd672a9facc4c3d3c2cc"
  }
}

model "assistant" {
  file                 = "mistral-7b-instruct.Q4_K_M.sealed"
  sha256               = "8a1d5f2f6e0c4f7c1b3a9d0e2c4b6a8f7e5d3c1b0a9f8e7d6c5b4a3928170615"
  sealed_header_sha256 = "3c9e1b7d5f0a8264c2e4d6b8fa1c3e5079b1d3f5a7c9e0b2d4f6a8c0e1b3d5f7"

  streaming_decrypt   = true
  access_pattern      = "hidden"
  context_length      = 8192
  kv_cache            = "q8"
  speculation         = "hidden" # guesses free a place earlier, and show nowhere
  context_shift       = false
  session_persistence = true

  prefix_cache {
    size     = "512MiB"
    lifetime = "10m"
  }

  key {
    provider = "broker"

    broker {
      url         = "https://keys.acme.example"
      root_sha256 = "1fcfd0c1a5a7e9a37a3c6f60fc6b6c5c1d43ad4cda8d0b8be0d1f0a4e3d7a6b5"
      resource    = "acme/production/assistant"
    }
  }

  publisher {
    public_key = "ed25519:99ba96467092bcfba80fd6b460c3e718072b6cdc4ed581f222643252a45ecebe"
    bundle     = "mistral-7b-instruct.sigstore"
  }
}

privacy {
  timing_padding {
    first_token = "500ms"
    total       = "2s"
    jitter      = "50ms"
    cadence     = "500ms" # a pass of one size at each multiple; `appliance plan-memory` says what it costs
  }

  size_padding         = "4KiB"
  token_count_rounding = 64
  auditor_key          = "x25519:4f2a1b3c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708"

  redaction {
    fields    = ["user", "metadata"]
    detectors = ["credit-card", "email", "iban", "ip-address", "national-id", "phone", "secret"]

    pattern "case-number" {
      regex       = "\\bCASE-[0-9]{6,10}\\b"
      replacement = "[case]"
    }
  }

  retention {
    audit    = "365d"
    sessions = "8h"
  }
}

limits {
  prompt_tokens       = 6000
  generation_tokens   = 512
  concurrent_requests = 64
  queued_requests     = 256
  first_token_timeout = "30s"
  answer_timeout      = "5m"
  requests_per_minute = 60
  tokens_per_minute   = 40000
  tokens_per_day      = 4000000
}

tenants {
  authority   = "ed25519:2385055e832db340b0abcbe0e37ebfd7cbfa4b19e92dd5dd8d2afbe1a29d142c"
  list        = "tenants.json"
  min_version = 17
}

service {
  operator_may_set = ["listen_address"]
  drain_timeout    = "1m"

  listen "public" {
    kind     = "ra-tls"
    address  = "0.0.0.0"
    port     = 8443
    names    = ["llm.acme.example"]
    rotation = "12h"
  }
  listen "host" {
    kind      = "ra-tls"
    transport = "vsock"
    port      = 8443
  }
}

audit {
  sink                = "state"
  checkpoint_interval = "5m"
  receipts            = true

  witness "acme-audit" {
    url        = "https://witness.acme.example"
    public_key = "ed25519:9a4837fa669c4de7a30e4d2a348261074883a14156fb4318e3f40216e244782a"
  }

  timestamp_authority {
    url         = "https://tsa.acme.example"
    root_sha256 = "9b1d3f5a7c9e0b2d4f6a8c0e1b3d5f73c9e1b7d5f0a8264c2e4d6b8fa1c3e507"
  }
}

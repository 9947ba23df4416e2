# A site without a way out: analysts, a broker, two witnesses and a clock on one network. SEV-SNP on listed machines.
# It meets policies/baselines/high-assurance.hcl.
#
# The choices: what the machine's operator and the network can see is as little as this version can make it, whatever
# it costs in speed. Collateral comes in by hand once a month, and the policy counts on no more.
#
# Hashes and keys are made up, and `.example` hosts do not exist: README.md beside this folder says what belongs there.

appliance {
  name   = "air-gapped"
  schema = 2
}

tee {
  platforms        = ["sev-snp"]
  memory_budget    = "6GiB"
  plaintext_budget = "8MiB"

  evidence {
    smt                = false
    max_collateral_age = "30d"

    machines {
      authority   = "ed25519:925378c6d680e6a31f3f2ec4119ee04a7b78d7382ae4fc335a6641088f1f94c5"
      list        = "machines.json"
      min_version = 3
    }

    sev_snp {
      products                = ["genoa"]
      signing_keys            = ["vcek"]
      min_report_version      = 5
      min_api                 = "1.55"
      max_revocation_age      = "45d" # AMD's list is carried in each month
      committed_is_current    = true
      alias_check             = true
      ecc                     = true
      single_socket           = true
      guest_ciphertext_hiding = true
      guest_rapl_disabled     = true

      min_guest_svn = 3
      id_key_sha384 = "ed54658a48bc65877ecbab9c4b763a53d63cd013facdb1c3a9eddcbfc8f744e295ba7d8ea24b55da129daeeaf26d8fa9"

      min_tcb "genoa" {
        bootloader          = 10
        snp                 = 27
        microcode           = 81
        launch_mitigations  = "0xb"
        current_mitigations = "0xb"
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
      url         = "https://keys.air-gapped.example"
      root_sha256 = "0926461c0794a50f14513139d8f5b3049b8659f6501eb6c0ad0853ccc3a52cdb"
      resource    = "air-gapped/state"
    }
  }
}

approvals {
  required = 2

  approver "security" {
    public_key = "ed25519:943286b27b0bdcb972f39084ebd75e752458b61d13d67fd2a4b06c6a6d9751f3"
  }
  approver "mission" {
    public_key = "ed25519:bf7c9fbbbae5538e93cb65bb1e52776a44d737dffcf10dea21775649b9d02891"
  }
  approver "operations" {
    public_key = "ed25519:bb7f0f2707e157843fabcc75173d1093e78616d9773f04f51fee4ce3f2fd0469"
  }
}

model "assistant" {
  file                 = "mistral-7b-instruct.Q4_K_M.sealed"
  sha256               = "0b69f38a33f03ae5ab65e04c07a64f4845c919b8492b16f6369ced253dfe9e30"
  sealed_header_sha256 = "386a0204b2c8edb4609eb20bdaf0d47c1bf452d94741a7a005874f96d5e2860e"

  streaming_decrypt = true
  access_pattern    = "hidden"
  context_length    = 4096
  kv_cache          = "q8"
  speculation       = "off"

  key {
    provider = "broker"

    broker {
      url         = "https://keys.air-gapped.example"
      root_sha256 = "0926461c0794a50f14513139d8f5b3049b8659f6501eb6c0ad0853ccc3a52cdb"
      resource    = "air-gapped/assistant"
    }
  }

  publisher {
    public_key = "ed25519:669bbaa3499e4f6cda84e6db7d57c14610e7330fdbf76695027234bceda5273c"
    bundle     = "mistral-7b-instruct.sigstore"
  }
}

privacy {
  timing_padding {
    first_token = "500ms"
    total       = "2s"
    jitter      = "50ms"
    cadence     = "500ms" # a pass of one size at each multiple
  }

  size_padding         = "4KiB"
  token_count_rounding = 64
  auditor_key          = "x25519:3aae86a754892c420db0e451de139b8c18439ae328149567d03984f7b701237c"

  redaction {
    fields    = ["metadata", "user"]
    detectors = ["secret"]
  }

  retention {
    audit = "3650d"
  }
}

limits {
  prompt_tokens       = 3000
  generation_tokens   = 512
  concurrent_requests = 8
  queued_requests     = 32
  first_token_timeout = "2m"
  answer_timeout      = "10m"
  requests_per_minute = 10
  tokens_per_day      = 500000
}

tenants {
  authority   = "ed25519:f10bb3e6efa287c13b9fa85d043ae80bc0c61b1198254abc89aa6cd56ef68a72"
  list        = "tenants.json"
  min_version = 17
}

service {
  strict        = true
  drain_timeout = "1m"

  tls {
    key_exchange = "post-quantum"
  }

  listen "analysts" {
    kind     = "ra-tls"
    address  = "0.0.0.0"
    port     = 8443
    names    = ["llm.site.example"]
    rotation = "12h"
  }
}

audit {
  sink                = "state"
  checkpoint_interval = "5m"
  receipts            = true
  receipt_position    = "later" # a place at once would count the records of others

  witness "security" {
    url        = "https://security.air-gapped.example"
    public_key = "ed25519:943286b27b0bdcb972f39084ebd75e752458b61d13d67fd2a4b06c6a6d9751f3"
  }

  witness "operations" {
    url        = "https://operations.air-gapped.example"
    public_key = "ed25519:bb7f0f2707e157843fabcc75173d1093e78616d9773f04f51fee4ce3f2fd0469"
  }

  timestamp_authority {
    url         = "https://tsa.air-gapped.example"
    root_sha256 = "8c0315ee0efcd2368ad1c6142758ea9a10d7acd9b326e270c73fdacf765b776d"
  }
}

# A bank's advisers ask about customers, accounts and contracts. SEV-SNP on listed machines in the bank's own rooms.
# It meets policies/baselines/finance.hcl.
#
# The choices: no cadence, since advisers wait for each answer and the network between them and the machine is the
# bank's own; every answer may be proved years later; numbers of cards and accounts never reach the model.
#
# Hashes and keys are made up, and `.example` hosts do not exist: README.md beside this folder says what belongs there.

appliance {
  name   = "bank"
  schema = 2
}

tee {
  platforms        = ["sev-snp"]
  memory_budget    = "7GiB"
  plaintext_budget = "8MiB"

  evidence {
    smt = false # no neighbour's thread on a core

    machines {
      authority   = "ed25519:c737272266d793f0b3fda4154e63c3c4d69ebd09732ebbedc95adb386408063a"
      list        = "machines.json"
      min_version = 3
    }

    sev_snp {
      products                = ["genoa"] # the bank's machines are of one line
      signing_keys            = ["vcek"]
      min_report_version      = 5
      min_api                 = "1.55"
      committed_is_current    = true
      alias_check             = true
      ecc                     = true
      guest_ciphertext_hiding = true

      # The builder's key, so that nobody else numbers images.
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
      url         = "https://keys.bank.example"
      root_sha256 = "595a63c4022ecdc055136a1a94f2d95422b1875d905549a48ac3e77acffaec96"
      resource    = "bank/state"
    }
  }
}

approvals {
  required = 2

  approver "security" {
    public_key = "ed25519:286009a80ed5f34adde0a34c2053247e8e7c14d4451257629790f233cc9f0d8a"
  }
  approver "data-protection" {
    public_key = "ed25519:794be092471ef5430b35ae9da19665e6ccf34faf5ee6f964a331ccb664dbbd70"
  }
  approver "operations" {
    public_key = "ed25519:2a3247af569bc1a60484ab7676a064ec9eef40a0c10dfde6cff7c13e6b20b777"
  }
}

model "assistant" {
  file                 = "mistral-7b-instruct.Q4_K_M.sealed"
  sha256               = "532a8b790ebf1cecb32c8ac9c64d99194009b8409db0327d081d020696f1f89d"
  sealed_header_sha256 = "a23728a15370d242e4037da17d5dcaa9c26f7dddf516db2f927c1328eb343b86"

  streaming_decrypt = "auto" # resident as far as the memory budget goes: advisers wait
  context_length    = 8192
  kv_cache          = "q8"
  speculation       = "off" # how well a text is guessed would show in its times

  prefix_cache {
    size     = "512MiB"
    lifetime = "10m"
  }

  sampling {
    bound "temperature" {
      default = 0.2
      max     = 1.0
    }
    max_logprobs = 0
  }

  key {
    provider = "broker"

    broker {
      url         = "https://keys.bank.example"
      root_sha256 = "595a63c4022ecdc055136a1a94f2d95422b1875d905549a48ac3e77acffaec96"
      resource    = "bank/assistant"
    }
  }

  publisher {
    public_key = "ed25519:a0d359578521a0d1a5eeee06285f34dbbe44e783418f6c464be16be29a19a9fe"
    bundle     = "mistral-7b-instruct.sigstore"
  }
}

privacy {
  timing_padding {
    first_token = "100ms"
    total       = "500ms"
    jitter      = "10ms"
  }

  size_padding         = "1KiB"
  token_count_rounding = 16
  auditor_key          = "x25519:e8996cf0ac9aa1b2c431080bcd65c05131ceae256cdbc176224aa5f154a4e859"

  redaction {
    fields    = ["metadata", "user"]
    detectors = ["credit-card", "email", "iban", "national-id", "phone", "secret"]

    pattern "contract" {
      regex       = "\\bCONTRACT-[0-9]{6,10}\\b"
      replacement = "[contract]"
    }
  }

  retention {
    audit = "2700d" # seven years, and a period of the log's keys
  }
}

limits {
  prompt_tokens       = 6000
  generation_tokens   = 1024
  concurrent_requests = 32
  queued_requests     = 128
  answer_timeout      = "5m"
  requests_per_minute = 30
  tokens_per_minute   = 40000
  tokens_per_day      = 2000000
}

tenants {
  authority   = "ed25519:6f2003b8fce78b88cb623ce8c2169038f0282ca4beac6642cb58fc56ae4d8b1b"
  list        = "tenants.json"
  min_version = 17
}

service {
  drain_timeout = "1m"

  listen "advisers" {
    kind     = "ra-tls"
    address  = "0.0.0.0"
    port     = 8443
    names    = ["llm.bank.example"]
    rotation = "12h"
  }
}

audit {
  sink                = "state"
  checkpoint_interval = "5m"
  receipts            = true

  witness "internal-audit" {
    url        = "https://internal-audit.bank.example"
    public_key = "ed25519:95b1022a4099df2cf249d1f085c04a5f4a3d274dbbfa73c0d63b74c4cf7f7aa1"
  }

  witness "supervisor" {
    url        = "https://supervisor.bank.example"
    public_key = "ed25519:dbf645bc743d534210f77a8eb6733e5fe4a7341d18a040b2d8d0fb5dddf32782"
  }

  timestamp_authority {
    url         = "https://tsa.bank.example"
    root_sha256 = "3fa9eba4c76f069b6d679071c7d0823a1bd0c7075ce7f0e6f8134e216b00c3a9"
  }
}

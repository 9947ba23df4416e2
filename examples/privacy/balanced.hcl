# A balanced deployment: answers leave on a grid and in padded sizes, at a small cost. The number of tokens, a cache's hit
# and a neighbour's load show only in steps of the grid, but they show (docs/concepts/privacy.md).
# It uses the demo model on the simulated platform, which protects nothing. The key of its one tenant is
# "sk-appliance-balanced", weak on purpose.

appliance {
  name   = "balanced"
  schema = 2
}

tee {
  platforms = ["simulated"]
}

model "demo" {
  file   = "SmolLM2-135M-Instruct.Q4_1.gguf"
  sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

  context_length = 512

  prefix_cache {
    size     = "64MiB"
    lifetime = "1m"
  }
}

privacy {
  timing_padding {
    first_token = "100ms" # an event at each multiple, whether there is text or not
    total       = "1s"    # an answer ends at a multiple of this
  }

  size_padding         = "1KiB" # of each event and each whole answer
  token_count_rounding = 16     # in usage, metrics, log and receipts

  redaction { fields = ["user", "metadata"] }
}

limits {
  prompt_tokens       = 256
  generation_tokens   = 256
  concurrent_requests = 8
  queued_requests     = 64
}

tenants {
  tenant "example" {
    models         = ["demo"]
    api_key_sha256 = ["f304748bcf805127746045608c15ed668ae7a6719adf25388692b597f9bf12b0"]
  }
}

service {
  listen "api" {
    kind    = "ra-tls"
    address = "127.0.0.1"
    port    = 8443
  }
}

audit {
  receipts            = true
  checkpoint_interval = "1m"
}

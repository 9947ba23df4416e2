# A strict deployment: what leaves looks the same for each request of a class. Passes run at a fixed interval, each event
# has one size, and each answer ends at one time (docs/concepts/privacy.md has what was measured, and the cost).
# It uses the demo model on the simulated platform, which protects nothing. The key of its one tenant is
# "sk-appliance-strict", weak on purpose.

appliance {
  name   = "strict"
  schema = 2
}

tee {
  platforms = ["simulated"]
}

model "demo" {
  file   = "SmolLM2-135M-Instruct.Q4_1.gguf"
  sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

  context_length = 512
  speculation    = "hidden" # guesses free a place earlier, and show nowhere

  prefix_cache {
    size     = "64MiB"
    lifetime = "1m"
  }
}

privacy {
  timing_padding {
    first_token = "200ms" # an event at each multiple, whether there is text or not
    total       = "7s"    # 256 tokens take 6.4 s: with short prompts, all answers end at the first multiple
    cadence     = "25ms"  # a pass of one size at each multiple, whether there is work or not
  }

  size_padding         = "8KiB" # a receipt fits as well, so that it leaves with the last text
  token_count_rounding = 256    # as many as `generation_tokens`: one class

  metrics_interval     = "5m"   # no request shows in metrics: they change at once, and seldom

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
    api_key_sha256 = ["b60c1c3ecadaacf3857951021a6471b3f1249d542b155e9c21de6c4c423343f1"]
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
  receipt_position    = "later"  # a receipt does not count the records of others
  outcomes            = "hidden" # neither do records and receipts tell a refusal from an answer
}

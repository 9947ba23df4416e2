# The demo deployment: a small model on the simulated platform, which protects nothing.
# Run it with `make run`; the API key of its one tenant is "sk-appliance-demo", weak on purpose.

appliance {
  name   = "demo"
  schema = 2
}

tee {
  platforms = ["simulated"]
}

model "demo" {
  file   = "SmolLM2-135M-Instruct.Q4_1.gguf"
  sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

  streaming_decrypt = false

  sampling {
    bound "temperature" { default = 0.2 }  # what the model's makers advise
    bound "top_p" { default = 0.9 }
  }
}

privacy {
  # Answer times on a grid, so that the network sees little of what was computed.
  timing_padding {
    first_token = "50ms"
    total       = "100ms"
    jitter      = "10ms"
  }

  token_count_rounding = 1

  redaction {
    fields = ["user", "metadata"]

    pattern "us-ssn" {
      regex       = "\\b\\d{3}-\\d{2}-\\d{4}\\b"
      replacement = "[ssn]"
    }
  }
}

limits {
  prompt_tokens       = 2048
  generation_tokens   = 512
  concurrent_requests = 32
  queued_requests     = 64    # tokens of so many wait in memory: half a gigabyte is enough for all
  first_token_timeout = "30s"
}

tenants {
  tenant "demo" {
    models         = ["demo"]
    api_key_sha256 = ["2d2db9ca8e0da09e503fd50c46d9de622ca5e30d5ca0aabb4dcfd036bd23d849"]
  }
}

service {
  listen "api" {
    kind    = "tcp"
    address = "127.0.0.1"
    port    = 8080
  }
}

audit {
  sink = "stdout"
}

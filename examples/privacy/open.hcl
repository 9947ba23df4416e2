# An open deployment: answers leave as they are made. Whoever sees the network, the disk or the metrics can tell much of
# what is asked. Beside balanced.hcl and strict.hcl it shows what their padding costs (docs/concepts/privacy.md).
# It uses the demo model on the simulated platform, which protects nothing. The key of its one tenant is
# "sk-appliance-open", weak on purpose.

appliance {
  name   = "open"
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
  # Nothing is padded: an event leaves with each token, and its size is that of the token.
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
    api_key_sha256 = ["1952ccdaa367505bd51b71ec6f19261a90e55797b7670b13204933767d8d1d01"]
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

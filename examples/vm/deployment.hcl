# The demo model in a virtual machine with a TPM: measured boot, which proves what was started to whoever trusts the
# host's TPM. On SEV-SNP or TDX hardware, only `platforms` changes.
#
# The tenant list beside this file has one API key, "sk-appliance-demo", weak on purpose. The key that signed the list
# was thrown away: make your own with `appliance tenants`.

appliance {
  name   = "demo-vm"
  schema = 2
}

tee {
  platforms = ["tpm"]
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

limits {
  prompt_tokens       = 2048
  generation_tokens   = 512
  concurrent_requests = 8
  first_token_timeout = "10m"  # a guest without KVM is slow
}

tenants {
  authority = "ed25519:26c0b39f4761058a0b8060eaede9b4d0439f5b51b46973dd7c1a3b4dde00688f"
  list      = "tenants.json"
}

service {
  listen "api" {
    kind    = "ra-tls"
    address = "0.0.0.0"
    port    = 8443
    names   = ["localhost"]
  }
}

audit {
  sink = "stdout"
}

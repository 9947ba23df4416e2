# A development deployment: the simulated platform, everything that this version enforces, and nothing else.
# The tenants stand in the file itself, which only a simulated policy may do.
#
# The API keys were made for this file with `appliance key new`, and thrown away: make your own.

appliance {
  name   = "development"
  schema = 2
}

tee {
  platforms = ["simulated"]
}

model "smollm2-135m" {
  file   = "SmolLM2-135M-Instruct.Q4_1.gguf"
  sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

  streaming_decrypt      = false
  context_length         = 4096
  kv_cache               = "f16"
  chat_template_fallback = "chatml"

  # A template in the policy wins over the model's own. The text goes up to the line that holds the marker alone.
  chat_template = <<-TEMPLATE
    {%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}
    {%- endfor %}
    {%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
  TEMPLATE

  # A request may ask for anything inside of these bounds, and gets the default where it says nothing.
  sampling {
    bound "temperature" {
      default = 0.7
      max     = 1.5
    }
    bound "top_k" {
      default = 40
      max     = 200
    }
    max_logprobs = 5
  }
}

privacy {
  timing_padding {
    first_token = "20ms"
    total       = "50ms"
    jitter      = "5ms"
  }

  token_count_rounding = 16

  redaction {
    fields   = ["user", "metadata"]
    apply_to = ["prompt", "answer"]

    # Patterns apply in the order of their labels. Backslashes are doubled, as HCL takes one level of them.
    pattern "email" {
      regex       = "[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,200}\\.[A-Za-z]{2,24}"
      replacement = "[email]"
    }
    pattern "us-ssn" {
      regex       = "\\b\\d{3}-\\d{2}-\\d{4}\\b"
      replacement = "[ssn]"
    }
  }
}

limits {
  prompt_tokens       = 1024
  generation_tokens   = 256
  concurrent_requests = 8
  queued_requests     = 64
  first_token_timeout = "60s"
  answer_timeout      = "10m"
  request_size        = "256KiB"
  requests_per_minute = 120
  tokens_per_minute   = 60000
  tokens_per_day      = 5000000
}

tenants {
  tenant "alice" {
    role           = "admin"
    models         = ["smollm2-135m"]
    api_key_sha256 = ["6e3c555db5ffb552da0513e7d3e362cdaabdb6216cd4ec4d3765d89954780a46"]
  }
  tenant "bob" {
    models         = ["smollm2-135m"]
    api_key_sha256 = ["10b19cbb4e17bdd9e2c0ead914b76306b144d3890dc24d279c3961eb1bb78021", "aabec3a545308d183e2554cc8f62a9664eddcf26d45ef34ad3cf5b4559166427"]
  }
  tenant "carol" {
    role           = "auditor"
    api_key_sha256 = ["40ed12e1dfa6b03aeccd8444c488b5ceaaedabdf518b3c4e047c5e362d306136"]
  }
}

service {
  drain_timeout = "10s"

  listen "loopback" {
    kind = "tcp"
    port = 8080
  }
  listen "socket" {
    kind = "unix"
    path = "/tmp/appliance.sock"
  }
}

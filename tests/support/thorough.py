"""Modules of tests that `make quick` leaves out: they boot guests, fuzz, serve under load, or compile for other CPUs.

The others take about two minutes on two cores. A module belongs here once it takes more than some seven seconds.
"""

THOROUGH = frozenset({
    # attestation
    "test_collateral_fetch", "test_evidence_fuzz", "test_snp_verify", "test_tdx_tcb", "test_tdx_verify",
    "test_tpm_activation", "test_tpm_seal",
    # audit
    "test_audit_chain", "test_audit_stdlib",
    # auditor
    "test_auditor_fuzz", "test_claims", "test_mutations", "test_pack", "test_pack_report", "test_pack_service",
    "test_replays",
    # boot
    "test_base_model", "test_boot_hardening", "test_boot_sequence", "test_boot_shards", "test_key_release",
    "test_key_release_boot", "test_keys_in_memory", "test_memory_limits", "test_plan_memory", "test_prompt_cache",
    "test_sandbox", "test_selftest_kernels", "test_session_pages", "test_state_disk", "test_state_log_cuts",
    "test_state_writers", "test_streamed_boot",
    # cli
    "test_cli_streams", "test_engine_infer", "test_isolated", "test_service_cli", "test_tokenizer_cli",
    # client
    "test_client_alone", "test_client_flips", "test_client_proxy", "test_client_service", "test_client_verify",
    # engine
    "test_accuracy", "test_any_model", "test_breakers", "test_calls_corpus", "test_calls_vectors",
    "test_constraint_hostile", "test_constraint_pattern",
    "test_constraint_schema", "test_constraint_suite", "test_constraint_walk", "test_engine_cache", "test_engine_chain",
    "test_engine_choices", "test_engine_exact", "test_engine_families", "test_engine_guard", "test_engine_pages",
    "test_engine_persistence", "test_engine_prefixes", "test_engine_real_models", "test_engine_sampler",
    "test_engine_shift", "test_engine_targets", "test_matching",
    "test_plain_engine", "test_plain_samplers", "test_template_chats", "test_template_language", "test_tokenizer_fuzz",
    "test_tokenizer_llama_cpp", "test_tokenizer_text",
    # engine/kernels
    "test_aarch64", "test_kernel_runtime_build", "test_kernels_prefetch", "test_kernels_product",
    # imaging
    "test_formats", "test_image_attested", "test_image_boot", "test_image_build", "test_image_container",
    "test_image_gate", "test_image_launch", "test_predict_boot",
    # models
    "test_models_fuzz", "test_streamed", "test_tamper_matrix",
    # policy
    "test_inputfile", "test_policy_fuzz", "test_policy_syntax", "test_policy_upgrade",
    # project
    "test_benchmarks", "test_hostclock", "test_packaged", "test_site",
    # sealing
    "test_sealed_roundtrip",
    # service
    "test_audit_chained", "test_exit_residue", "test_hanging_disk", "test_hardware_service", "test_receipts",
    "test_service_anthropic", "test_service_api", "test_service_choices", "test_service_guidance",
    "test_service_prefixes", "test_service_responses",
    "test_service_canary", "test_service_chats",
    "test_service_console", "test_service_demo", "test_service_http", "test_service_leaving",
    "test_service_libraries", "test_service_load", "test_service_loading",
    "test_service_protocol", "test_service_queue", "test_service_recorded", "test_service_redaction",
    "test_service_residue", "test_service_sessions",
    "test_service_strict", "test_service_tls", "test_service_tools", "test_service_wire",
    "test_state_service", "test_timestamps",
    # signed
    "test_approvals", "test_signed_fuzz", "test_signed_releases", "test_signed_timestamps",
})

# Those of them that `make test` measures for coverage, and their children, since they alone reach some modules.
# Measuring the others would take most of the time of all tests, for lines that others reach.
MEASURED = frozenset({
    "test_engine_choices", "test_engine_prefixes", "test_engine_shift", "test_receipts",
    "test_service_anthropic", "test_service_responses",
    "test_collateral_fetch", "test_tpm_activation", "test_tpm_seal", "test_audit_stdlib", "test_base_model",
    "test_boot_sequence", "test_key_release", "test_key_release_boot", "test_plan_memory", "test_cli_streams",
    "test_isolated", "test_service_cli", "test_tokenizer_cli", "test_client_flips", "test_client_proxy",
    "test_client_verify", "test_engine_cache", "test_template_chats", "test_template_language", "test_tokenizer_text",
    "test_kernel_runtime_build", "test_formats", "test_image_build", "test_image_container", "test_predict_boot",
    "test_streamed", "test_policy_syntax", "test_sealed_roundtrip", "test_service_api", "test_service_console",
    "test_constraint_schema",
    "test_service_http", "test_service_leaving", "test_service_protocol", "test_service_tls", "test_service_wire",
    "test_approvals",
    "test_pack_service", "test_prompt_cache", "test_state_disk", "test_engine_infer", "test_calls_vectors",
})

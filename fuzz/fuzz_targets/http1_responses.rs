#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rolldrop_sidecar::fuzzing::target::http1_responses(bytes));

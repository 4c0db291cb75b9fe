#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rolldrop::fuzzing::target::api_body(bytes));

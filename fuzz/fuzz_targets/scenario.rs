#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rolldrop_scenario::fuzzing::target::scenario(bytes));

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rolldrop_proxy::fuzzing::target::admin(bytes));

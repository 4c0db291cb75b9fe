#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rolldrop_accesslog::fuzzing::target::access_log(bytes));

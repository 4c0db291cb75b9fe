#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rolldrop_wire::fuzzing::target::answer_sse(bytes));

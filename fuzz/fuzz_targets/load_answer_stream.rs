#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rolldrop_load::fuzzing::target::load_answer_stream(bytes));

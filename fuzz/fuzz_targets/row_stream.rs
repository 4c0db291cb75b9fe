#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rolldrop_record::fuzzing::target::row_stream(bytes));

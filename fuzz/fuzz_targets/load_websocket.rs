#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rolldrop::fuzzing::target::load_websocket(bytes));

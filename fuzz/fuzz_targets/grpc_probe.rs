#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rolldrop_lab::fuzzing::target::grpc_probe(bytes));

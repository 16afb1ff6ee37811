#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| felix_wire_fuzz::checks::binary_message(data));

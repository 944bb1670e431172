#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gym_fuzz::parsers::run(data));

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gym_fuzz::node::run(data));

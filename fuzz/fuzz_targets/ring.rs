#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gym_fuzz::ring::run(data));

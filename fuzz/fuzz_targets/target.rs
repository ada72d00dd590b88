//! Feeds libFuzzer's input to the parser that this binary is named after.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    instep_fuzz::run(env!("CARGO_BIN_NAME"), data);
});

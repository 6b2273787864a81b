//! weir.toml: refused with a reason, or accepted, and then printed with the same meaning.
#![no_main]

use weir_config::{Environment, Loaded};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let environment: Environment = [("HOME", "/home/u"), ("TMPDIR", "/tmp")]
        .into_iter()
        .collect();
    match Loaded::from_toml(text, &environment) {
        Ok(loaded) => {
            let said = loaded.toml();
            let again = Loaded::from_toml(&said, &environment).expect("what it prints is valid");
            let values = |loaded: &Loaded| format!("{:?}", loaded.config);
            assert_eq!(values(&again), values(&loaded));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});

//! libFuzzer's side: it calls back with one input after another. Which target runs is in
//! `$FENCEPOST_FUZZ_TARGET`.
#![no_main]

use std::sync::LazyLock;

use fencepost_fuzz::Target;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("FENCEPOST_FUZZ_TARGET").unwrap_or_default();
    let names = fencepost_fuzz::TARGETS.map(|target| target.name).join(", ");
    Target::named(&name)
        .unwrap_or_else(|| panic!("$FENCEPOST_FUZZ_TARGET is {name:?}, none of {names}"))
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| (TARGET.run)(input));
